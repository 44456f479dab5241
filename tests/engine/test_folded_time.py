"""A step without the periods that repeat: unfolded again it is the step that was played."""

from collections import Counter

import numpy as np
import pytest

from clustersim.report.folded_time import NOT_FOLDED, folded_time
from clustersim.simulation import simulate

JOB = "topologies/hgx_h100_8.yaml", "workloads/gpt2_large.yaml"


def _played(microbatches, **split):
    keys = {"parallelism.tp": 1, "parallelism.dp": 2, "parallelism.pp": 4, "predictor": "roofline"}
    keys |= {"training.micro_batch": 1, "training.global_batch": 2 * microbatches}
    return simulate(*JOB, {**keys, **{f"parallelism.{name}": value for name, value in split.items()}})


@pytest.mark.parametrize(
    "split", [{}, {"schedule": "gpipe"}, {"schedule": "interleaved", "vpp": 3}, {"schedule": "zero_bubble"}]
)
def test_unfolded_again_it_is_the_step(split):
    result = _played(64, **split)
    record, fold = result.record, folded_time(result.record, 4)
    assert fold.periods * fold.microbatches >= 24
    shape, start, end = record.shape, record.starts, record.ends
    tasks, microbatches = shape.event_task, shape.event_microbatch
    rows = [
        (int(task), int(m), float(begin), float(over))
        for task, m, begin, over, shown in zip(
            tasks, microbatches, fold.folded(start), end - start, fold.shown(start), strict=True
        )
        if shown
    ]
    again = []
    for task, m, begin, over in rows:
        again.append((task, m, begin + fold.left_out * (begin > fold.cut), over))
        if fold.cut - fold.period < begin <= fold.cut:
            again += [
                (task, m + k * fold.microbatches, begin + k * fold.period, over) for k in range(1, fold.periods + 1)
            ]
    played = sorted(zip(tasks.tolist(), microbatches.tolist(), start.tolist(), (end - start).tolist(), strict=True))
    assert Counter(row[:2] for row in again) == Counter(row[:2] for row in played)
    np.testing.assert_allclose(
        [row[2:] for row in sorted(again)], [row[2:] for row in played], rtol=0, atol=1e-8 * record.end
    )


def test_a_short_step_is_shown_whole():
    assert folded_time(_played(8).record, 4) is NOT_FOLDED
