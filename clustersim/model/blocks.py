"""Which kind of block each layer of a model is: a model is a list of blocks that need not be alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from clustersim.config.workload import Block, Model


def kinds(model: Model) -> tuple[Model, ...]:
    """Return for each layer in order the model that it would be a layer of if all were like it; equal ones are one object."""
    return _different(model) if model.blocks or model.dense_layers else (model,) * model.layers


def _different(model: Model) -> tuple[Model, ...]:
    whole = model.model_copy(update={"blocks": (), "dense_layers": 0, "dense_ffn": None})
    if model.blocks:
        same: dict[Model, Model] = {}
        made = {one: same.setdefault(kind, kind) for one in model.blocks if (kind := _with(whole, one))}
        return tuple(made[one] for one in islice(cycle(_listed(model.blocks)), model.layers))
    dense = model.dense_layers if model.experts else 0
    first = whole.model_copy(
        update={"experts": None, "topk": 1, "shared_experts": 0, "ffn": model.dense_ffn or model.ffn}
    )
    return (first,) * dense + (whole,) * (model.layers - dense)


def distinct(model: Model) -> list[tuple[Model, int]]:
    """Return the kinds of layers in order of appearance as (kind, how many in all)."""
    layers = kinds(model)
    found = {id(one): one for one in layers}
    return [(found[key], count) for key, count in Counter(map(id, layers)).items()]


def _listed(blocks: Sequence[Block]) -> Iterator[Block]:
    return (one for one in blocks for _ in range(one.count))


def _with(model: Model, block: Block) -> Model:
    """Return the model with what a block has otherwise; one without experts has none of their other keys."""
    given = {name: value for name, value in block if name != "count" and value is not None}
    if given.get("experts") == 0:
        given |= {"experts": None, "topk": 1, "shared_experts": 0}
    return model.model_copy(update=given)
