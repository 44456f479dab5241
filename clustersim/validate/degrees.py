"""Degrees of a measured run, completed where the source leaves them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clustersim.validate.runs import Refusal, Run


class Degrees(NamedTuple):
    """Split of a run over its GPUs; `assumed` lists in words the degrees that the source leaves open."""

    tp: int
    cp: int
    pp: int
    dp: int
    assumed: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """Number of GPUs of the job."""
        return self.tp * self.cp * self.pp * self.dp


def degrees(run: Run, launch: Mapping[str, object], domain: int) -> Degrees | None:
    """Return the degrees of a run; None if tp, pp and dp are unknown, so that memory must decide.

    launch: `parallelism` of the file in the run's column `launch`, for blank columns. domain: GPUs per NVLink domain. Raises
    Refusal if the degrees contradict the number of GPUs, or if both are incomplete.
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
    values = {"tp": tp or 1, "pp": pp or 1, "dp": dp or 1, **dict.fromkeys(others, 1), first: rest}
    assumed = tuple(f"parallelism.{name}: {values[name]} (of {gpus} GPUs)" for name in blank)
    return Degrees(values["tp"], cp, values["pp"], values["dp"], assumed)


def _degree(value: object) -> int | None:
    """Return a degree of a launch file if it is an integer, else None."""
    return value if isinstance(value, int) else None


def _part(run: Run, gpus: int, known: int) -> int:
    """Return gpus / known, the degree that is left if the others multiply to `known`. Raises Refusal if it is not whole."""
    if gpus % known:
        problem = f"the degrees of the run multiply to {known}, which does not divide its {run.num_gpus} GPUs"
        raise Refusal("layout", problem)
    return gpus // known


def _checked(run: Run, split: Degrees) -> Degrees:
    """Return `split`, with dp divided by cp if dp includes the ranks of cp. Raises Refusal for another product than num_gpus."""
    tp, cp, pp, dp, _ = split
    if split.gpus == run.num_gpus:
        return split
    if cp > 1 and tp * pp * dp == run.num_gpus and dp % cp == 0:
        return Degrees(tp, cp, pp, dp // cp, (f"parallelism.dp: {dp // cp} (dp {dp} of the row counts cp {cp} too)",))
    product = f"tp {tp}{f' × cp {cp}' if cp > 1 else ''} × pp {pp} × dp {dp}"
    raise Refusal("layout", f"{product} is {split.gpus}, not the {run.num_gpus} GPUs of the run")


def smallest_first(run: Run, layers: int, heads: int, domain: int) -> Iterator[Degrees]:
    """Yield the splits of a run's GPUs, fewest GPUs per replica first, then the widest tp.

    tp is a power of two up to `domain`, the GPUs per NVLink domain, and divides `heads`; pp divides `layers`.
    """
    gpus, cp = run.num_gpus or 1, run.cp or 1
    splits = [
        (tp, pp)
        for tp in (2**k for k in range(domain.bit_length()))
        for pp in range(1, layers + 1)
        if gpus % (tp * pp * cp) == 0 and heads % tp == 0 and layers % pp == 0
    ]
    for tp, pp in sorted(splits, key=lambda split: (split[0] * split[1], -split[0])):
        assumed = f"parallelism: tp {tp}, pp {pp} (the source does not say; the fewest GPUs on which a replica fits)"
        yield Degrees(tp, cp, pp, gpus // (tp * pp * cp), (assumed,))
