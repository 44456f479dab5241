"""Two jobs on one cluster, as files."""

from __future__ import annotations

CLUSTER = """\
cluster: {name: eight, nodes: 8, node: {extends: hgx-h100, gpus: {count: 4}, nics: {count: 4}}}
fabric:
  kind: leaf_spine
  tiers: [{name: leaf, down: 8, oversubscription: 8}, {name: spine, radix: 64}]
  link: {rate: 400Gb/s}
  routing: {mode: adaptive}
"""

JOB = """\
name: tiny
predictor: roofline
model: {layers: 4, hidden: 512, heads: 8, vocab: 1024}
training: {global_batch: 48, seq: 256}
"""
