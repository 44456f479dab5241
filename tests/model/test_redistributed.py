"""What eager tensor parallelism of PyTorch copies besides what it sends."""

import pytest

from clustersim.model.linear import column, row
from clustersim.parallel.load import load


def copies(framework, kernels="eager", overlap="none", split=True):
    """Return the bytes that copies of a column-parallel and a row-parallel linear move, and those that their collectives send."""
    changed = {"parallelism.tp": 4, "parallelism.sequence_parallel": split, "parallelism.overlap.tp": overlap}
    changed |= {"training.framework": framework, "training.kernels": kernels, "parallelism.dp": 1, "parallelism.pp": 1}
    shard = load("llama3_8b", changed).shard
    pair = column(shard, "fc1", 4096, 3584, bias=False), row(shard, "fc2", 3584, 4096, bias=False, part="mlpwo")
    steps = [step for one in pair for step in (*one.forward, *one.backward_input)]
    moved = sum(step.bytes for step in steps if getattr(step, "op", "") == "redistribute")
    return moved, sum(step.size for step in steps if getattr(step, "group", "") == "tp")


def test_each_gathered_or_scattered_tensor_is_read_and_written():
    moved, sent = copies("torchtitan")
    assert moved == pytest.approx(2 * sent)


@pytest.mark.parametrize(
    "words", [{"kernels": "fused"}, {"overlap": "async"}, {"split": False}, {"framework": "megatron-core"}], ids=str
)
def test_compiled_chunked_whole_and_megatrons_tensors_are_not(words):
    assert copies(**{"framework": "torchtitan", **words})[0] == 0
