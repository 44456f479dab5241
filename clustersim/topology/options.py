"""Topology keys that have a command-line option of their own, shorter than `--set`."""

from __future__ import annotations

from clustersim.config.options import Option

OPTIONS = (
    Option("nodes", "cluster.nodes", "count", "64..4096x2", "Nodes of the cluster."),
    Option("gpu", "cluster.gpu", "word", "h100,b200", "GPU: the shipped type of node that has it, such as b200."),
    Option("nic", "cluster.nic", "word", "200Gb/s,400Gb/s", "Line rate of every NIC, and of the fabric's cables."),
    Option(
        "oversubscription",
        "fabric.oversubscription",
        "word",
        "1,2,4",
        "Ports in use of a full leaf of fat_tree, leaf_spine or rail_optimized, down over up.",
    ),
)
