"""Small steps whose results several tests read."""

from __future__ import annotations

from clustersim.config.yaml import parse
from clustersim.parallel.load import build as build_workload
from clustersim.simulation import run
from clustersim.topology.build import build as build_topology

SINGLES = """\
cluster: {name: singles, nodes: 8, node: {extends: hgx-h100, gpus: {count: 1}, nics: {count: 1}}}
fabric:
  kind: fat_tree
  tiers: [{name: leaf, down: 2, up: 2}, {name: spine, radix: 8}]
  link: {rate: 400Gb/s}
"""

NODES = """\
cluster: {name: nodes, nodes: 4, node: hgx-h100}
fabric:
  kind: fat_tree
  rails: optimized
  tiers: [{name: leaf, down: 2, up: 1}, {name: spine, radix: 64}]
  link: {rate: 400Gb/s}
"""

JOB = """\
name: tiny
model: {layers: 8, hidden: 1024, heads: 16, vocab: 5000, max_positions: 512}
training: {global_batch: 64, micro_batch: 2, seq: 512, clip_gradients: false}
parallelism: {tp: 1, pp: 1}
predictor: roofline
"""

SPLITS = {
    "data parallel": (SINGLES, {}),
    "pipeline": (SINGLES, {"parallelism.pp": 4, "training.clip_gradients": True}),
    "tensor parallel": (NODES, {"parallelism.tp": 4, "parallelism.pp": 2, "training.clip_gradients": True}),
    "sequence parallel": (NODES, {"parallelism.tp": 8, "parallelism.sequence_parallel": True, "parallelism.zero": 1}),
    "gpipe": (NODES, {"parallelism.tp": 2, "parallelism.pp": 8, "parallelism.schedule": "gpipe"}),
    "interleaved": (
        NODES,
        {"parallelism.tp": 2, "parallelism.pp": 4, "parallelism.vpp": 2, "parallelism.schedule": "interleaved"},
    ),
    "zero bubble": (NODES, {"parallelism.pp": 4, "parallelism.schedule": "zero_bubble"}),
    "overlap": (
        NODES,
        {
            "parallelism.tp": 2,
            "parallelism.pp": 2,
            "parallelism.overlap": {"grad_reduce": True, "p2p": True},
            "parallelism.bucket": 1_000_000,
        },
    ),
    "recompute": (NODES, {"parallelism.tp": 2, "parallelism.pp": 2, "training.recompute": "full"}),
    "straggler": (NODES + "faults: [{gpu: 3, slowdown: 1.5}]\n", {"parallelism.tp": 2, "parallelism.pp": 2}),
    "one GPU": (NODES, {"training.global_batch": 2}),
}


def simulate(name, fold=True):
    cluster, overrides = SPLITS[name]
    return run(build_topology(parse(cluster)), build_workload(parse(JOB), overrides), fold=fold)
