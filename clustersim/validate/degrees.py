"""Degrees of a measured run, completed where the source leaves them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clustersim.validate.runs import Refusal, Run


class Degrees(NamedTuple):
    """Split of a run over its GPUs; `assumed` lists in words what the source leaves open."""

    tp: int
    cp: int
    pp: int
    dp: int
    assumed: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.cp * self.pp * self.dp


def degrees(run: Run, launch: Mapping[str, object], domain: int) -> Degrees | None:
    """Return the degrees of a run; None if tp and pp are unknown, so that memory must decide.

    launch: degrees of the file in the run's column `launch`, for blank columns. domain: GPUs per NVLink domain. Raises Refusal.
    """
    tp, pp, dp = (getattr(run, name) or _degree(launch.get(name)) for name in ("tp", "pp", "dp"))
    cp = run.cp or _degree(launch.get("cp")) or 1
    gpus = run.num_gpus
    if gpus is None:
        if tp is None or pp is None or dp is None:
            raise Refusal("incomplete source", "the source says neither num_gpus nor all of tp, pp and dp")
        return Degrees(tp, cp, pp, dp)
    if tp is None and pp is None:
        if dp is None:
            return None
        tp = min(domain, _part(run, gpus, cp * dp))
    known = cp * (tp or 1) * (pp or 1) * (dp or 1)
    blank = [name for name, value in (("tp", tp), ("pp", pp), ("dp", dp)) if value is None]
    if not blank:
        return _checked(run, Degrees(tp or 1, cp, pp or 1, dp or 1))
    rest = _part(run, gpus, known)
    first, *others = reversed(blank)  # what is left over is dp if that is open, else pp
    found = {"tp": tp or 1, "pp": pp or 1, "dp": dp or 1, **dict.fromkeys(others, 1), first: rest}
    said = tuple(f"parallelism.{name}: {found[name]} (of {gpus} GPUs)" for name in blank)
    return Degrees(found["tp"], cp, found["pp"], found["dp"], said)


def _degree(value: object) -> int | None:
    """Return a degree of a launch file if it is a whole number, else None."""
    return value if isinstance(value, int) else None


def _part(run: Run, gpus: int, known: int) -> int:
    """Return the degree left for `gpus` GPUs if the others multiply to `known`. Raises Refusal if it is not whole."""
    if gpus % known:
        what = f"the degrees of the run multiply to {known}, which does not divide its {run.num_gpus} GPUs"
        raise Refusal("layout", what)
    return gpus // known


def _checked(run: Run, found: Degrees) -> Degrees:
    """Return degrees whose product is the number of GPUs; a dp that includes cp's ranks is divided by cp."""
    tp, cp, pp, dp, _ = found
    if found.gpus == run.num_gpus:
        return found
    if cp > 1 and tp * pp * dp == run.num_gpus and dp % cp == 0:
        return Degrees(tp, cp, pp, dp // cp, (f"parallelism.dp: {dp // cp} (dp {dp} of the row counts cp {cp} too)",))
    said = f"tp {tp}{f' × cp {cp}' if cp > 1 else ''} × pp {pp} × dp {dp}"
    raise Refusal("layout", f"{said} is {found.gpus}, not the {run.num_gpus} GPUs of the run")


def smallest_first(run: Run, layers: int, heads: int, domain: int) -> Iterator[Degrees]:
    """Yield the splits of a run's GPUs over tp and pp, fewest GPUs per replica first, then the widest tp."""
    gpus, cp = run.num_gpus or 1, run.cp or 1
    splits = [
        (tp, pp)
        for tp in (2**k for k in range(domain.bit_length()))
        for pp in range(1, layers + 1)
        if gpus % (tp * pp * cp) == 0 and heads % tp == 0 and layers % pp == 0
    ]
    for tp, pp in sorted(splits, key=lambda split: (split[0] * split[1], -split[0])):
        said = f"parallelism: tp {tp}, pp {pp} (the source does not say; the fewest GPUs on which a replica fits)"
        yield Degrees(tp, cp, pp, gpus // (tp * pp * cp), (said,))
