"""Fabrics and faults on which folded steps are compared with unfolded ones."""

import numpy as np
import pytest

FABRICS = {
    "one leaf": "{kind: switch, link: {rate: 400Gb/s}}",
    "leaf-spine": "{kind: fat_tree, rails: none, tiers: [{down: 4, up: 4}, {radix: 16}], link: {rate: 400Gb/s},"
    " routing: {mode: adaptive}}",
    "static": "{kind: fat_tree, rails: none, tiers: [{down: 4, up: 4}, {radix: 16}], link: {rate: 400Gb/s},"
    " routing: {mode: dmodk}}",
    "4 to 1": "{kind: fat_tree, rails: none, tiers: [{down: 4, oversubscription: 4}, {radix: 16}], link: {rate: 400Gb/s},"
    " routing: {mode: adaptive}}",
    "rails": "{kind: fat_tree, rails: optimized, scalable_unit: 2, tiers: [{down: 2, up: 2}, {radix: 16}],"
    " link: {rate: 400Gb/s}, routing: {mode: adaptive}}",
    "hashed": "{kind: fat_tree, rails: none, tiers: [{down: 4, up: 4}, {radix: 16}], link: {rate: 400Gb/s},"
    " routing: {mode: ecmp, qps: 2, seed: 3}}",
}

FAULTS = {
    "none": "",
    "slow GPU": "faults: [{gpu: 1, slowdown: 1.3}]",
    "slow node": "faults: [{node: 0, slowdown: 1.1}]",
    "slow NIC": 'faults: [{link: "nic-up[1]", rate: 100Gb/s}]',
}


def same(folded, whole):
    """Compare step time, every rank's parts and every link's bytes."""
    assert folded.summary["step_time_s"] == pytest.approx(whole.summary["step_time_s"], rel=1e-9)
    of = folded.plan.network.cells.ranks.of
    for rank, parts in zip(whole.plan.first.tolist(), whole.parts, strict=True):
        assert folded.parts[int(of[rank])] == pytest.approx(parts, rel=1e-9, abs=1e-12)
    from clustersim.report.links import link_bytes

    one, two = (link_bytes(r.plan) for r in (folded, whole))
    np.testing.assert_allclose(one, two, rtol=1e-9)
