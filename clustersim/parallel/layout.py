"""The layers of each global pipeline stage: embedding, blocks, further predictions (MTP) and the loss, in this order.

By default all stages get equally many blocks, the first ones one more if there is a remainder. `account_for_embedding` and
`account_for_loss` count those as a block; `first_layers` and `last_layers` fix the ends; `partition: compute` weighs blocks and
logits; `layout` is Megatron's full string, such as `Ettt|(tt|)*29,m|L`
(megatron/core/transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clustersim.config.workload import Model, Parallelism
from clustersim.convert.layout_text import written_out
from clustersim.errors import InputError
from clustersim.model.parameters import block_products, kinds
from clustersim.schedules.check import pipeline


class Portion(NamedTuple):
    """Part of the model on one global stage."""

    embedding: bool
    """Whether the stage has the embedding, from token ids to vectors."""
    blocks: int
    """Number of blocks (layers of a transformer)."""
    mtp: int
    """Number of blocks that predict further tokens."""
    loss: bool
    """Whether the stage has the final norm, the logits and the loss."""


def portions(split: Parallelism, model: Model) -> tuple[Portion, ...]:
    """Return the layers of each of the pp·vpp global stages, in the order that activations pass them.

    Raises InputError for an invalid layout, or one that does not match the model's blocks and predictions or pp·vpp stages.
    """
    layers, mtp = model.encoder_layers + model.layers, model.mtp_layers
    if split.layout is not None:
        return read(split.layout, layers, mtp, split.pp, split.vpp)
    if split.partition == "compute":
        costs = [block_products(kind) for kind in kinds(model)]
        counts = balanced(costs, model.vocab * model.hidden, split.pp * split.vpp)
    else:
        counts = cut(layers, split)
    if len(counts) == 1:
        return (Portion(True, counts[0], mtp, True),)
    between = {count: Portion(False, count, 0, False) for count in counts[1:-1]}
    return (
        Portion(True, counts[0], 0, False),
        *(between[n] for n in counts[1:-1]),
        Portion(False, counts[-1], mtp, True),
    )


def cut(layers: int, split: Parallelism) -> tuple[int, ...]:
    """Return the number of blocks of each global stage: as even as possible, the first stages get one more.

    `first_layers` and `last_layers` are spread over the chunks of the first and last rank. Raises InputError for an empty stage.
    """
    stages = split.pp * split.vpp
    rank = pipeline(split.schedule, split.pp, split.vpp).rank
    given = {0: split.first_layers, split.pp - 1: split.last_layers}
    fixed = {rank: count for rank, count in given.items() if count is not None}
    if not fixed:
        return share(layers, stages, split.account_for_embedding, split.account_for_loss)
    left, free = layers - sum(fixed.values()), stages - split.vpp * len(fixed)
    if left < 0 or bool(left) != bool(free) or any(count % split.vpp for count in fixed.values()):
        raise InputError(
            f"{' and '.join(map(str, fixed.values()))} of {layers} layers leave {left} for {split.pp - len(fixed)} pipeline "
            f"ranks of {split.vpp} chunks; give other numbers"
        )
    between = iter(share(left, free) if free else ())
    return tuple(fixed[rank(i)] // split.vpp if rank(i) in fixed else next(between) for i in range(stages))


def share(layers: int, stages: int, first: bool = False, last: bool = False) -> tuple[int, ...]:
    """Return the number of blocks of each global stage: as even as possible, the first stages get one more.

    first, last: whether the embedding counts as a layer of the first stage, and the loss as a layer of the last.
    """
    each, extra = divmod(layers + first + last, stages)
    counts = [each + (stage < extra) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def balanced(costs: Sequence[float], logits: float, stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each global stage, such that all have about equal FLOP; the last stage also has the logits.

    costs: FLOP of each block. A stage ends at the first block that lifts the sum so far above the share of the stages so far, as
    in nanotron's `trainer.py` (build_model). Every stage gets a block, or the logits.
    """
    counts, stage, before = [0] * stages, 0, 0.0
    whole = sum(costs) + logits
    for index, cost in enumerate(costs):
        counts[stage] += 1
        before += cost
        last = len(costs) - index == stages - 1 - stage  # leave one block, or the logits, for each later stage
        if stage < stages - 1 and (last or before > whole * (stage + 1) / stages):
            stage += 1
    return tuple(counts)


def read(layout: str, layers: int, mtp: int, pp: int, vpp: int) -> tuple[Portion, ...]:
    """Return the stages of Megatron's layout string. Raises InputError with the error and the remedy."""
    stages = written_out(layout).split("|")
    if len(stages) != pp * vpp:
        chunks = f"; write vpp {len(stages) // pp}" if len(stages) % pp == 0 else f"; give {pp * vpp}, divided by |"
        raise InputError(f"{layout!r} has {len(stages)} stages, not pp {pp} × vpp {vpp}{chunks}")
    letters = "".join(stages)
    for wrong, sentence in _rules(stages, letters, layers, mtp):
        if wrong:
            raise InputError(f"{layout!r} {sentence}")
    return tuple(Portion("E" in stage, stage.count("t"), stage.count("m"), "L" in stage) for stage in stages)


def _rules(stages: Sequence[str], letters: str, layers: int, mtp: int) -> Iterator[tuple[bool, str]]:
    yield not all(stages), "has a stage without a layer; give it one"
    yield letters.count("E") != 1 or letters[:1] != "E", "does not begin with its one embedding; begin with E"
    yield letters.count("L") != 1 or letters[-1:] != "L", "does not end with its one loss; end with L"
    yield letters.count("t") != layers, f"has {letters.count('t')} blocks and the model {layers}; make them equal"
    yield letters.count("m") != mtp, f"has {letters.count('m')} MTP layers (m) and the model {mtp}; make them equal"
    yield (
        "m" in letters and "t" in letters[letters.index("m") :],
        "has a block after an MTP layer; put m behind the last t",
    )
    yield sum("m" in stage for stage in stages) > 1, "has MTP layers in several stages; put all m in one"
