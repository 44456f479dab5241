"""Clusters of several types of nodes: what of them must agree, so that links inside nodes are of one kind in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clustersim.errors import ConfigError
from clustersim.topology.node import dims
from clustersim.topology.specs import NodeSpecs


def pooled(types: Sequence[NodeSpecs]) -> NodeSpecs:
    """Return the nodes of all types, one type after the other; neighbours that are equal are one type."""
    merged: list[NodeSpecs] = []
    for one in types:
        if merged and (merged[-1].node, merged[-1].gpu) == (one.node, one.gpu):
            merged[-1] = replace(merged[-1], nodes=merged[-1].nodes + one.nodes)
        else:
            merged.append(one)
    if len(merged) == 1:
        return merged[0]
    return replace(merged[0], nodes=sum(one.nodes for one in merged), pools=tuple(merged))


def check(cluster: NodeSpecs) -> None:
    """Raise ConfigError where nodes of one type do not fit beside those of the first."""
    for one in cluster.pools[1:]:
        if problem := _apart(cluster.pools[0], one):
            raise problem


def _apart(first: NodeSpecs, other: NodeSpecs) -> ConfigError | None:
    """Return what keeps nodes of two types from one cluster, if anything."""
    if first.gpu.vendor != other.gpu.vendor:
        what = f"{other.gpu.name} beside {first.gpu.name}: no library joins GPUs of two vendors; write those of one"
        return other.error((*other.at, "gpus", "model"), f"gpus.model: {what}")
    ours, theirs = (_joined(one) for one in (first, other))
    if ours == theirs:
        return None
    if [dim[:2] for dim in ours] == [dim[:2] for dim in theirs]:
        few = f"{other.node.gpus.count} GPUs a node beside {first.node.gpus.count} of the first pool"
        wired = f"nodes joined by a {other.node.scale_up.kind} have as many; write as many, or join them by switches"
        return other.error((*other.at, "gpus", "count"), f"gpus.count: {few}; {wired}")
    what = f"{other.node.scale_up.kind} beside {first.node.scale_up.kind} of the first pool"
    return other.error((*other.at, "scale_up"), f"scale_up.kind: {what}; join the GPUs of all nodes alike")


def _joined(cluster: NodeSpecs) -> list[tuple[str, str, int]]:
    """Return what joins the GPUs of a node: a crossbar may have any size."""
    return [(dim.name, dim.kind, 0 if dim.kind == "switch" else dim.size) for dim in dims(cluster)]
