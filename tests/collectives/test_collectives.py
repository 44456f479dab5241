"""Every algorithm in the folder does what it says (proof on chunks), and its phases carry what its steps carry."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from chunk_sizes import fraction_of

from clustersim import plugins
from clustersim.collectives import model, proof
from clustersim.collectives.model import AllPairs, Group, Phase, Step
from clustersim.errors import ClustersimError, InputError, SimulationError

ALGORITHMS = sorted(plugins.names(model.ROOM))
SIZES = range(2, 18)
LEVELLED = {
    *shlex.split(
        "collnet_chain collnet_direct hierarchical mesh_ring mesh_tree neusight_hierarchical nvls nvls_tree "
        "rail_ring rail_tree"
    )
}
"""Algorithms that look at the levels of a group."""
SPARE = {"tree", "rail_tree", "mesh_tree", "nvls_tree", "nvls"}
"""Algorithms with a step that none needs: two trees that share an edge, a switch that copies to its sender too."""


def module(algorithm: str) -> ModuleType:
    return __import__(plugins.names(model.ROOM)[algorithm], fromlist=["OPS"])


def splits(n: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write n as an ordered product, with some levels of 1."""
    yield (n,)
    yield (1, n, 1)
    for first in range(2, n):
        if n % first == 0:
            yield from ((first, *rest) for rest in splits(n // first))


def groups(algorithm: str) -> Iterator[tuple[str, Group]]:
    for op in sorted(module(algorithm).OPS):
        for n in SIZES:
            for levels in splits(n) if algorithm in LEVELLED else [(n,)]:
                try:
                    model.phases(algorithm, op, Group(n, levels))
                except InputError as error:
                    assert algorithm == "halving_doubling", error
                else:
                    yield op, Group(n, levels)
        for sizes in UNEVEN if algorithm in ("rail_ring", "rail_tree") else ():
            yield op, Group(sum(sizes), (1, sum(sizes)), sizes=sizes)


UNEVEN = ((1, 2), (4, 8), (2, 4, 2), (3, 2, 4, 2))
"""Positions of each node, of nodes that hold different numbers."""


def carried(phases: Sequence[Phase | AllPairs]) -> dict[tuple[int, int], float]:
    total: defaultdict[tuple[int, int], float] = defaultdict(float)
    for phase in phases:
        for source, destination, fraction in zip(*(array.tolist() for array in phase.pairs()[1:]), strict=True):
            total[source, destination] += fraction
    return dict(total)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_steps_fulfil_the_postcondition_and_the_phases_carry_what_they_send(algorithm: str) -> None:
    for op, group in groups(algorithm):
        steps = list(module(algorithm).steps(op, group))
        proof.check(op, group.n, steps)
        phases = model.phases(algorithm, op, group)
        assert carried(phases) == pytest.approx(sent(op, group, steps)), (op, group)
        assert sum(phase.rounds for phase in phases) == len({step.round for step in steps}), (op, group)


def sent(op: str, group: Group, steps: list[Step]) -> dict[tuple[int, int], float]:
    """Bytes of the steps over each pair, for each byte of the collective's size."""
    total: defaultdict[tuple[int, int], float] = defaultdict(float)
    chunks = proof.chunks_of(op, group.n, steps)
    for step in steps:
        total[step.source, step.destination] += fraction_of(op, group, chunks, step.chunk)
    return {pair: size for pair, size in total.items() if size}


def idle(phases: Sequence[Phase | AllPairs], bandwidth: float, latency: float) -> float:
    """Time when each pair has a link of its own."""
    return sum(phase.rounds * latency + max(phase.pairs().fraction) / bandwidth for phase in phases)


def port(phases: Sequence[Phase | AllPairs], n: int) -> float:
    """Largest number of arrays that leave one rank in all phases together, as one port a rank has to carry."""
    pairs = [phase.pairs() for phase in phases]
    return sum(float(np.bincount(phase.source, phase.fraction, n).max()) for phase in pairs)


@pytest.mark.parametrize("n", [2, 3, 8, 17, 256])
def test_ring_closed_forms(n: int) -> None:
    """2(n-1)/n S/B + 2(n-1) a, half of it for the two halves; a chain for broadcast and reduce."""
    size, bandwidth, latency = 1.0, 50.0, 1e-3
    wire = (n - 1) / n * size / bandwidth
    expected = {
        "all_reduce": 2 * wire + 2 * (n - 1) * latency,
        "all_gather": wire + (n - 1) * latency,
        "reduce_scatter": wire + (n - 1) * latency,
        "broadcast": size / bandwidth + (n - 1) * latency,
        "reduce": size / bandwidth + (n - 1) * latency,
    }
    for op, seconds in expected.items():
        assert idle(model.phases("ring", op, Group(n, (n,))), bandwidth, latency) == pytest.approx(seconds)


@pytest.mark.parametrize("n", [2, 8, 64, 1024])
def test_halving_doubling_closed_form(n: int) -> None:
    """2 log2 n a + 2(n-1)/n S/B."""
    phases = model.phases("halving_doubling", "all_reduce", Group(n, (n,)))
    assert idle(phases, 50.0, 1e-3) == pytest.approx(2 * math.log2(n) * 1e-3 + 2 * (n - 1) / n / 50)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 17, 100, 3840])
def test_double_binary_tree_closed_form(n: int) -> None:
    """2 ceil(log2 n) rounds, and no rank sends more than two arrays: it is inside one tree and a leaf of the other."""
    phases = model.phases("tree", "all_reduce", Group(n, (n,)))
    assert [phase.rounds for phase in phases] == [2 * math.ceil(math.log2(n))]
    assert port(phases, n) <= 2.0
    broadcast = model.phases("tree", "broadcast", Group(n, (n,)))
    assert port(broadcast, n) <= 1.0


def test_hierarchical_closed_form() -> None:
    """2(g-1)/g S/B1 + 2(k-1)/k S/(g B2) + 2(g+k-2) a, and a ring on one level."""
    g, k = 8, 32
    inside, across, back = (p.pairs() for p in model.phases("hierarchical", "all_reduce", Group(g * k, (g, k))))
    assert set(inside.fraction) == set(back.fraction) == {(g - 1) / g}
    assert set(across.fraction) == {2 * (k - 1) / k / g}
    assert inside.rounds + across.rounds + back.rounds == 2 * (g + k - 2)
    assert (inside.source // g == inside.destination // g).all()
    assert (across.source % g == across.destination % g).all()
    (flat,), (ring,) = (model.phases(name, "all_reduce", Group(6, (6,))) for name in ("hierarchical", "ring"))
    assert all(np.array_equal(a, b) for a, b in zip(flat, ring, strict=True))


def test_direct_closed_form() -> None:
    (phase,) = model.phases("direct", "all_to_all", Group(8, (8,)))
    assert phase.rounds == 7
    assert len(phase.pairs().source) == 56
    assert port((phase,), 8) == pytest.approx(7 / 8)


def test_neusight_formula_and_its_distance_from_a_ring() -> None:
    """T = sum over levels of (f-1) S/B, f/2 times a ring's on one level: fan-outs 4, 96, 2, 5 give 103 S/B."""
    phases = model.phases("neusight_hierarchical", "all_reduce", Group(3840, (4, 96, 2, 5)))
    assert idle(phases, 1.0, 0.0) == 3 + 95 + 1 + 4
    one, ring = (model.phases(name, "all_reduce", Group(96, (96,))) for name in ("neusight_hierarchical", "ring"))
    assert idle(one, 1.0, 0.0) / idle(ring, 1.0, 0.0) == pytest.approx(96 / 2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_has_nothing_to_send(algorithm: str) -> None:
    for op in module(algorithm).OPS:
        assert model.phases(algorithm, op, Group(1, (1,))) == ()
        assert model.phases(algorithm, op, Group(1, ())) == ()


REFUSED = {
    ("ring", "all_to_all", Group(4, (4,))): (
        "ring cannot do all_to_all, only all_gather, all_reduce, broadcast, reduce, reduce_scatter; "
        "all_to_all is done by direct"
    ),
    ("tree", "dance", Group(4, (4,))): (
        "tree cannot do dance, only all_reduce, broadcast, reduce; dance is done by none of the algorithms"
    ),
    ("ring", "all_reduce", Group(8, (4,))): "levels (4,) of a group must multiply to its 8 ranks",
    ("halving_doubling", "all_reduce", Group(12, (12,))): (
        "halving_doubling needs a power of two of ranks, not 12; use 8, or ring or tree"
    ),
}


@pytest.mark.parametrize(("algorithm", "op", "group"), REFUSED)
def test_what_cannot_be_done_is_said(algorithm: str, op: str, group: Group) -> None:
    with pytest.raises(InputError) as caught:
        model.phases(algorithm, op, group)
    assert str(caught.value) == REFUSED[algorithm, op, group]


@pytest.mark.parametrize("name", sorted(plugins.names(model.ROOM)))
def test_shipped_algorithms_keep_the_protocol(name: str) -> None:
    assert model.algorithm(name) is module(name)


OUTSIDE = """
import numpy as np
from clustersim.collectives.model import Algorithm, uniform

class Star(Algorithm):
    OPS = frozenset({"broadcast"})
    def phases(self, op, group): return there(op, group)

class Whatever(Algorithm):
    def phases(self, op, group): return there(op, group)

def there(op, group):
    others = np.arange(1, group.n)
    return (uniform(1, 0 * others, others, 1.0),)
"""


def test_an_algorithm_needs_nothing_but_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class, or a function: without OPS it does whatever is asked, without steps there is nothing to prove."""
    (tmp_path / "outside_star.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    four = Group(4, (4,))
    with plugins.permitted("outside_star:Star", "outside_star:Whatever", "outside_star:there"):
        for name in ("Star", "Whatever", "there"):
            (phase,) = model.phases(f"outside_star:{name}", "broadcast", four)
            assert phase.fraction.tolist() == [1, 1, 1]  # type: ignore[union-attr]
            assert list(model.algorithm(f"outside_star:{name}").steps("broadcast", four)) == []
        for name in ("Whatever", "there"):
            assert model.algorithm(f"outside_star:{name}").OPS == model.OPERATIONS
        with pytest.raises(
            InputError, match="outside_star:Star cannot do reduce, only broadcast; reduce is done by mesh_ring"
        ):
            model.phases("outside_star:Star", "reduce", four)


def test_operations_that_are_not_read_are_not_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_half.py").write_text("OPS = frozenset({'reduce'})\ndef phases(op, group): return ()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with (
        plugins.permitted("outside_half:phases"),
        pytest.raises(InputError, match="its module has OPS, but not both phases and steps; write a class"),
    ):
        model.phases("outside_half:phases", "reduce", Group(4, (4,)))


RING2 = [Step(0, 0, 1, 1, True), Step(0, 1, 0, 0, True), Step(1, 0, 1, 0, False), Step(1, 1, 0, 1, False)]


@pytest.mark.parametrize(
    ("op", "steps", "message"),
    [
        ("all_reduce", RING2[:-1], "rank 0 ends with the contributions of ranks 0 in chunk 1, not with"),
        ("all_reduce", [*RING2, Step(2, 0, 1, 0, True)], "adds the contributions of ranks 0, 1 twice"),
        ("all_reduce", [*RING2, Step(2, 0, 1, 0, False), Step(2, 0, 1, 0, False)], "two steps overwrite one chunk"),
        ("broadcast", [Step(0, 1, 0, 0, False)], "sends a chunk that rank 1 does not have"),
        ("all_gather", [Step(0, 0, 1, 2, False)], "needs a multiple of 2 chunks, not 3"),
        ("all_to_all", [Step(0, 0, 1, 1, False)], "rank 0 ends with nothing in chunk 2"),
    ],
)
def test_the_proof_finds_mistakes(op: str, steps: list[Step], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        proof.check(op, 2, steps)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - SPARE))
def test_a_lost_step_breaks_every_proof(algorithm: str) -> None:
    for op in module(algorithm).OPS:
        steps = list(module(algorithm).steps(op, Group(4, (2, 2))))
        for lost in range(len(steps)):
            with pytest.raises(ClustersimError):
                proof.check(op, 4, steps[:lost] + steps[lost + 1 :])
