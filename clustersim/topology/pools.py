"""Clusters of several types of nodes: what of them must agree, so that ranks, NICs and links are numbered alike in all."""

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
    for key, (a, b), what in (
        ("gpus", (first.node.gpus.count, other.node.gpus.count), "GPUs a node"),
        ("nics", (first.nics, other.nics), "NICs a node"),
    ):
        if a != b:
            remedy = "all nodes of a cluster have as many; simulate each part as a cluster of its own"
            return other.error((*other.at, key), f"{key}.count: {b} {what} beside {a} of the first pool; {remedy}")
    if first.gpu.vendor != other.gpu.vendor:
        what = f"{other.gpu.name} beside {first.gpu.name}: no library joins GPUs of two vendors; write those of one"
        return other.error((*other.at, "gpus", "model"), f"gpus.model: {what}")
    if first.nic_of.tolist() != other.nic_of.tolist():
        what = "attach deals the GPUs out to the NICs differently than in the first pool; write the same"
        return other.error((*other.at, "nics", "attach"), f"nics.{what}")
    joined = [[(dim.name, dim.kind, dim.size) for dim in dims(one)] for one in (first, other)]
    if joined[0] != joined[1]:
        what = f"{other.node.scale_up.kind} beside {first.node.scale_up.kind} of the first pool"
        return other.error((*other.at, "scale_up"), f"scale_up.kind: {what}; join the GPUs of all nodes alike")
    return None
