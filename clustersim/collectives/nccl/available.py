"""Which algorithms and protocols NCCL can use for a communicator, and why not the others (tuning.cc, init.cc)."""

from __future__ import annotations

from clustersim.collectives.nccl.graphs import HEADS, nvls
from clustersim.collectives.nccl.model import HALVES, ROOTED, Case
from clustersim.collectives.switched import JOINED

SIMPLE_ONLY = "has Simple only"


def unavailable(case: Case, algorithm: str, protocol: int) -> str | None:
    """Return why NCCL would not use an algorithm with a protocol, None if it may."""
    nodes, switch = case.shape.nodes, case.node.scale_up == "nvswitch"
    if protocol != 2 and algorithm not in ("ring", "tree"):
        return SIMPLE_ONLY
    reasons = {
        "ring": None,
        "tree": None if case.op == "all_reduce" else f"does no {case.op}",
        "nvls": _no_nvls(case) or (None if nodes == 1 or case.node.nccl.collnet else "needs SHARP between nodes"),
        "nvls_tree": _no_nvls(case)
        or (f"does no {case.op}" if case.op != "all_reduce" else None if nodes > 1 else "is for several nodes"),
        "collnet_direct": _no_collnet(case) or (None if switch else "needs NVSwitch"),
        "collnet_chain": _no_collnet(case) or (None if case.op == "all_reduce" else f"does no {case.op}"),
        "pat": _no_pat(case),
    }
    return reasons[algorithm] or (_no_ll128(case) if protocol == 1 else None)


def _no_nvls(case: Case) -> str | None:
    if not case.node.nccl.nvls:
        return "nccl.nvls is false"
    if not case.node.multicast or case.node.scale_up != "nvswitch" or case.arch < 2:
        return "needs NVSwitch with multicast (Hopper or newer)"
    if case.op in ROOTED:
        return f"does no {case.op}"
    if case.shape.per_node < 2:
        return "needs two GPUs a node"
    if case.op in HALVES and case.shape.per_node > HEADS:
        return f"does {case.op} for {HEADS} GPUs a node at most"
    return "needs two channels" if nvls(case.shape, case.node).channels < 2 else None


def _no_collnet(case: Case) -> str | None:
    if not case.node.nccl.collnet or case.shape.nodes == 1:
        return "needs SHARP between nodes"
    if case.node.scale_up not in JOINED:
        return f"needs NVLink or PCIe to a switch in the node, not scale_up.kind: {case.node.scale_up}"
    return f"does no {case.op}" if case.op in ROOTED else None


def _no_pat(case: Case) -> str | None:
    if case.op not in HALVES:
        return f"does no {case.op}"
    return "is for one GPU a node" if case.shape.per_node > 1 or case.shape.nodes == 1 else None


def _no_ll128(case: Case) -> str | None:
    if case.node.scale_up == "none":
        return "needs NVLink"
    return None
