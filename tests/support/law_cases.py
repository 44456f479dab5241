"""Clusters without network costs, and jobs that divide evenly."""

from engine_cases import job

from clustersim.simulation import run


def free(gpus):
    """Return a node whose communication costs next to nothing, so that only the schedule counts."""
    from clustersim.config.yaml import parse
    from clustersim.topology.build import build

    text = f"""
cluster:
  nodes: 1
  node:
    extends: hgx-h100
    gpus: {{model: h100-sxm, count: {gpus}}}
    nics: {{count: 1, rate: 400Gb/s, attach: shared}}
    scale_up: {{kind: nvswitch, links_per_gpu: 18, link: 1e9GB/s, payload_efficiency: 1, latency: 0s}}
nccl: {{launch: 0s}}
"""
    return build(parse(text, "free.yaml"))


def even(pp, m, schedule):
    """Simulate pp equal stages of 2 blocks with next to no head, and return (step, forward, backward) seconds."""
    result = run(
        free(pp),
        job(
            model__layers=2 * pp,
            model__hidden=8192,
            model__heads=64,
            model__vocab=1,
            model__vocab_multiple=1,
            model__positions="none",
            training__global_batch=m,
            parallelism__pp=pp,
            parallelism__dp=1,
            parallelism__schedule=schedule,
            training__optimizer="none",
            predictor="roofline",
        ),
        ignore_memory=True,
    )
    middle = [s for s in result.record.spans if s.stream == "compute" and s.stage == max(pp // 2 - 1, 0)]
    forward = max(s.end - s.start for s in middle if s.kind == "F")
    backward = max(s.end - s.start for s in middle if s.kind == "B")
    return result, forward, backward
