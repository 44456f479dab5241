"""Assignment of the model's layers to global pipeline stages: embedding, blocks, further predictions (MTP) and the loss.

By default all stages get equally many blocks. If there is a remainder, the first stages get one more. `account_for_embedding` and
`account_for_loss` count these as a block. `first_layers` and `last_layers` fix the blocks of the first and last rank. `partition:
compute` weighs blocks and logits by FLOP. `layout` is Megatron's full string, such as `Ettt|(tt|)*29,m|L`
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
    """Part of the model that one global stage has."""

    embedding: bool
    """Whether the stage has the embedding, from token ids to vectors."""
    blocks: int
    """Number of blocks (layers of a transformer)."""
    mtp: int
    """Number of blocks that predict further tokens."""
    loss: bool
    """Whether the stage has the final norm, the logits and the loss."""


def portions(split: Parallelism, model: Model) -> tuple[Portion, ...]:
    """Return the part of the model on each of the pp·vpp global stages, in the order in which activations pass them.

    Raise InputError for an invalid layout, or one that does not match the model's blocks and predictions or pp·vpp stages.
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
    inner = {count: Portion(False, count, 0, False) for count in counts[1:-1]}
    return (
        Portion(True, counts[0], 0, False),
        *(inner[count] for count in counts[1:-1]),
        Portion(False, counts[-1], mtp, True),
    )


def cut(layers: int, split: Parallelism) -> tuple[int, ...]:
    """Return the number of blocks of each of the pp·vpp global stages: as even as possible, the first stages get one more.

    `first_layers` and `last_layers` are divided evenly over the chunks of the first and last rank. Raises InputError if they do
    not divide evenly, or leave blocks without a stage, a stage without blocks, or fewer than no blocks.
    """
    stages = split.pp * split.vpp
    rank = pipeline(split.schedule, split.pp, split.vpp).rank
    requested = {0: split.first_layers, split.pp - 1: split.last_layers}
    fixed = {rank: count for rank, count in requested.items() if count is not None}
    if not fixed:
        return share(layers, stages, split.account_for_embedding, split.account_for_loss)
    remaining, free = layers - sum(fixed.values()), stages - split.vpp * len(fixed)
    if remaining < 0 or bool(remaining) != bool(free) or any(count % split.vpp for count in fixed.values()):
        raise InputError(
            f"{' and '.join(map(str, fixed.values()))} of {layers} layers leave {remaining} for {split.pp - len(fixed)} pipeline "
            f"ranks of {split.vpp} chunks; give other numbers"
        )
    inner = iter(share(remaining, free) if free else ())
    return tuple(fixed[rank(i)] // split.vpp if rank(i) in fixed else next(inner) for i in range(stages))


def share(layers: int, stages: int, first: bool = False, last: bool = False) -> tuple[int, ...]:
    """Return the number of blocks of each of `stages` global stages: as even as possible, the first stages get one more.

    first, last: whether the embedding counts as a block of the first stage, and the loss as a block of the last. Both are
    subtracted again from the result.
    """
    quotient, remainder = divmod(layers + first + last, stages)
    counts = [quotient + (stage < remainder) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def balanced(costs: Sequence[float], logits: float, stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each of `stages` global stages with about equal FLOP.

    costs: FLOP of each block. logits: FLOP of the logits, which are on the last stage. A stage ends at the first block that lifts
    the sum so far above the proportional share of the stages so far, as in nanotron's `trainer.py` (build_model). Every stage but
    the last gets at least one block; the last may have only the logits.
    """
    counts, stage, so_far = [0] * stages, 0, 0.0
    total = sum(costs) + logits
    for index, cost in enumerate(costs):
        counts[stage] += 1
        so_far += cost
        must_end = len(costs) - index == stages - 1 - stage  # leave one block, or the logits, for each later stage
        if stage < stages - 1 and (must_end or so_far > total * (stage + 1) / stages):
            stage += 1
    return tuple(counts)


def read(layout: str, layers: int, mtp: int, pp: int, vpp: int) -> tuple[Portion, ...]:
    """Return the part of the model on each of the pp·vpp global stages of Megatron's layout string.

    layers: number of blocks of the model. mtp: number of its blocks that predict further tokens. Raises InputError if the string
    does not have pp·vpp stages with these blocks in a legal order.
    """
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
    """Yield (whether a rule is broken, text with the error and its remedy) for each rule of a layout string.

    stages: letters of each stage. letters: letters of all stages in one string.
    """
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
