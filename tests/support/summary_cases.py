"""A simulated step of a small job."""

from __future__ import annotations

import output_cases

from clustersim.config.yaml import parse
from clustersim.parallel.load import build as build_workload
from clustersim.simulation import run
from clustersim.topology.build import build as build_topology


def simulate(cluster=output_cases.NODES, job=output_cases.JOB, **overrides):
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return run(build_topology(parse(cluster)), build_workload(parse(job), changes))
