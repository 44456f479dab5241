"""Kernels and bytes of a job with sharded parameters."""

from clustersim.model.kernel import Kernel
from clustersim.parallel.stages import stages
from clustersim.report.links import link_bytes


def parameters_of(one):
    """Return the parameters of one rank in blocks and outside."""
    [stage] = stages(one)
    blocks = sum(
        op.parameters * count for layer, count in stage.layers if layer.name == "block" for op in layer.operators
    )
    return blocks, stage.parameters - blocks


def sent(result, tier="nic"):
    """Return the bytes that crossed the busiest link of a tier."""
    crossed, topology = link_bytes(result.plan), result.topology
    own = [t for t in topology.tiers if t.name.startswith(tier)]
    return max(float(crossed[t.first : t.first + t.links].max()) for t in own)


def kernels(steps):
    return [step for step in steps if isinstance(step, Kernel)]
