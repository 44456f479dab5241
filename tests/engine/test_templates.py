"""Ranks whose templates have one form share the patterns of their passes."""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import cluster, job

from clustersim.engine.compile import plan
from clustersim.engine.templates import Templates, patterns
from clustersim.simulation import Simulator


def written(nodes, **options):
    """How many patterns an unfolded job on so many nodes needs, and for how many templates."""
    simulator = Simulator(cluster(nodes))
    placed = simulator.placed(job(training__global_batch=32 * nodes, **options))
    work = simulator.preparation.work(placed, np.arange(placed.mesh.size))
    [planned] = plan([work], simulator.cluster, fold=False)
    templates = Templates(planned.programs, planned.members)
    return len(patterns(templates)[0]), len(templates.tasks)


@pytest.mark.parametrize(
    "options",
    [
        {"parallelism__tp": 2, "parallelism__pp": 4},
        {"parallelism__pp": 2, "parallelism__zero": 3},
        {"parallelism__pp": 4, "parallelism__overlap__grad_reduce": True, "parallelism__overlap__p2p": True},
    ],
)
def test_replicas_add_templates_but_no_patterns(options):
    (few, small), (many, large) = written(4, **options), written(16, **options)
    assert few == many
    assert large == 4 * small


def test_stages_between_the_first_and_the_last_add_no_patterns():
    (few, _), (many, _) = (written(4, parallelism__pp=pp, model__layers=16) for pp in (4, 8))
    assert few == many
