"""Workload files: aliases, overrides, placement, and messages with their places."""

import re
from copy import deepcopy
from pathlib import Path

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError, InputError
from clustersim.parallel.load import build, load

FOLDER = Path(__file__).parents[2] / "workloads"

GPT = """\
name: small
model:
  layers: 4
  hidden: 512
  heads: 8
  vocab: 1000
  max_positions: 128
training:
  global_batch: 16
  micro_batch: 2
  seq: 128
parallelism:
  tp: 2
  pp: 2
"""


def small(text=GPT, **overrides):
    return build(parse(text, "w.yaml"), {key.replace("__", "."): value for key, value in overrides.items()})


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_workload_loads_and_fits_256_gpus_or_those_that_it_was_trained_on(path):
    gpus = {"deepseek_v3": 2048}.get(path.stem, 256)
    job = load(path).place(gpus, 8)
    assert job.mesh.size <= gpus
    assert job.microbatches * job.dp * job.training.micro_batch == job.training.global_batch


def test_megatron_names_inside_sections():
    text = GPT.replace("tp: 2", "tensor-model-parallel-size: 4").replace("layers: 4", "num_layers: 6")
    job = small(text.replace("vocab: 1000", "padded_vocab_size: 1024"))
    assert (job.parallelism.tp, job.model.layers, job.model.vocab) == (4, 6, 1024)


def test_overrides_by_dotted_key_and_by_alias():
    job = small(parallelism__tp="4", seq_length=64, training__precision="fp16", parallelism__overlap__p2p="true")
    assert (job.parallelism.tp, job.training.seq, job.training.precision) == (4, 64, "fp16")
    assert job.parallelism.overlap.p2p is True


BROKEN = {
    "tp: 2 => tp: 3": "13:7: parallelism.tp: 3 does not divide 8 attention heads; use 1, 2, 4, 8",
    "heads: 8\n => heads: 6\n  head_dim: 64\n  kv_heads: 3\n": (
        "15:7: parallelism.tp: 2 is neither a divisor nor a multiple of 3 key/value heads, as Megatron-Core "
        "needs; use 1"
    ),
    "heads: 8\n => heads: 8\n  kv_heads: 3\n": "6:13: model.kv_heads: 3 does not divide 8 heads; use 1, 2, 4, 8",
    "heads: 8\n => heads: 8\n  ffn: 1001\n": "14:7: parallelism.tp: 2 does not divide the MLP's width 1001; use 1",
    "heads: 8\n => heads: 7\n": (
        "5:10: model.heads: 7 does not divide hidden 512; use a divisor of it or set model.head_dim"
    ),
    "pp: 2 => pp: 5": "14:7: parallelism.pp: pp > layers: 5 stages cannot share 4 layers; use at most 4",
    "pp: 2 => pp: 2\n  vpp: 3\n  schedule: interleaved": (
        "15:8: parallelism.vpp: 2 stages × 3 chunks > 4 layers; use at most 2"
    ),
    "pp: 2 => pp: 2\n  vpp: 2\n  schedule: 1f1b": (
        "15:8: parallelism.vpp: 2 chunks need an interleaved schedule, not 1f1b; use vpp 1"
    ),
    "seq: 128 => seq: 128\n  attention: cudnn_fp8": (
        "12:14: training.attention: cudnn_fp8 needs precision fp8 or narrower, not bf16; write it, or cudnn"
    ),
    "seq: 128 => seq: 256": "11:8: training.seq: 256 is longer than model.max_positions 128; shorten it or raise that",
    "micro_batch: 2 => micro_batch: 3": (
        "10:16: training.micro_batch: 3 does not divide global_batch 16; use 1, 2, 4, 8, 16"
    ),
    "pp: 2 => pp: 2\n  overlap:\n    param_gather: true": (
        "16:19: parallelism.overlap.param_gather: true gathers what zero: 1 shards; set parallelism.zero: 1 or "
        "write false"
    ),
    "pp: 2 => pp: 2\n  zero: 2": (
        "15:9: parallelism.zero: 2 frees gradients as they are reduced; set parallelism.overlap.grad_reduce: "
        "true or write 1"
    ),
    "seq: 128 => seq: 128\n  precision: fp32\n  gradients: bf16": (
        "13:14: training.gradients: bf16 is narrower than fp32 weights; write fp32"
    ),
    "heads: 8\n => heads: 8\n  topk: 2\n": "6:9: model.topk: 2 needs a mixture of experts; set model.experts",
    "tp: 2 => tp: 2\n  tensor_model_parallel_size: 4": (
        "14:31: parallelism.tp is given twice under two names; keep one of them"
    ),
    "pp: 2 => pp: 2\n  num-layers-per-virtual-pipeline-stage: 2": (
        "15:42: num-layers-per-virtual-pipeline-stage is not supported; write "
        "virtual_pipeline_model_parallel_size, the chunks of a pipeline rank"
    ),
}
"""What is replaced by what in the file => the sentence."""


@pytest.mark.parametrize(("change", "message"), BROKEN.items())
def test_a_broken_file_gets_one_sentence_with_its_place(change, message):
    old, new = change.split(" => ")
    assert old in GPT
    with pytest.raises(ConfigError) as caught:
        small(GPT.replace(old, new, 1))
    assert str(caught.value).startswith(f"w.yaml:{message}")
    assert "\n" not in str(caught.value)


def test_several_chunks_are_interleaved_where_no_schedule_is_named():
    job = small(parallelism__vpp="2")
    assert job.parallelism.schedule == "interleaved"
    assert job.assumed == ("parallelism.schedule interleaved (vpp is above 1)",)


def test_sequence_parallelism_is_off_with_one_tensor_parallel_rank():
    """As in Megatron-LM's arguments.py."""
    text = GPT.replace("pp: 2", "pp: 2\n  sequence_parallel: true")
    split = small(text, parallelism__tp="1")
    assert not split.parallelism.sequence_parallel
    assert split.assumed == ("parallelism.sequence_parallel false (tp is 1)",)
    assert small(text).assumed == () == small(text, parallelism__tp="2").assumed
    assert not small(text.replace("tp: 2", "tp: 1")).parallelism.sequence_parallel


def test_sequence_parallelism_needs_a_divisible_sequence():
    text = GPT.replace("seq: 128", "seq: 127").replace("pp: 2", "pp: 2\n  sequence_parallel: true")
    with pytest.raises(ConfigError, match=r"^w.yaml:11:8: training.seq: 127 is not a multiple of tp 2"):
        small(text)


def test_an_override_that_is_wrong_says_it_is_from_the_command_line():
    with pytest.raises(ConfigError) as caught:
        small(parallelism__tp="3")
    message = "w.yaml (command line): parallelism.tp: 3 does not divide 8 attention heads; use 1, 2, 4, 8"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("parallelism.tq", "3", r"w.yaml \(command line\): unknown key 'tq'; known: account_for_embedding, "),
        ("training.0", "3", r"w.yaml \(command line\): unknown key '0'; known: attention, "),
        ("7", "3", r"w.yaml \(command line\): unknown key '7'; known: clocks, "),
        ("name.x", "3", r"w.yaml \(command line\): name.x: name is a single value and has no keys"),
        (
            "model.blocks.0.ffn",
            "64",
            r"w.yaml \(command line\): model.blocks: no list with an item 0 is here; write the ",
        ),
        ("parallelism", "null", r"w.yaml \(command line\): parallelism is empty; it must be a mapping of keys"),
        ("parallelism.tp", "[", r"parallelism.tp=\[: not valid YAML"),
    ],
)
def test_broken_overrides(key, value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        build(parse(GPT, "w.yaml"), {key: value})


@pytest.mark.parametrize(
    "given, more",
    [
        ({"model.blocks": [{"window": 64}, {}]}, {"model.blocks.0.window": 32}),
        ({"parallelism": {"tp": 4, "pp": 2}}, {"parallelism.tp": 2}),
        ({"parallelism": {"tp": 1, "sequence_parallel": True}}, {"parallelism.tp": 2}),
        ({"training": {"micro_batch": 2, "global_batch": 16, "seq": 128}}, {"training.seq": 64}),
    ],
)
def test_what_is_given_stays_as_it_is_and_has_the_same_answer_again(given, more):
    written, document = deepcopy(given), parse(GPT, "w.yaml")
    first, other, last = (build(document, asked).spec for asked in (given, {**given, **more}, given))
    assert given == written
    assert document == parse(GPT, "w.yaml")
    assert last == first != other
    assert build(document, {**more, **given}).spec == other  # a whole section comes before its parts


def test_keys_fill_an_empty_section_of_the_file_or_of_an_override():
    split = {"parallelism.tp": 2, "parallelism.pp": 2}
    empty = GPT[: GPT.index("parallelism:")] + "parallelism:\n"
    with pytest.raises(ConfigError, match=r"^w.yaml:\d+:\d+: parallelism is empty; it must be a mapping of keys"):
        build(parse(empty, "w.yaml"))
    assert build(parse(empty, "w.yaml"), split).spec == build(parse(GPT, "w.yaml"), {"parallelism": None, **split}).spec


def test_auto_takes_the_largest_degree_that_fits_and_divides():
    assert small().place(16, 8).dp == 4
    assert small().place(31, 8).dp == 4  # 7 replicas fit, 8 microbatches allow 1, 2, 4, 8
    assert small().place(4, 4).dp == 1
    assert small().place(10_000, 8).dp == 8


def test_gpt3_fills_30720_gpus():
    job = load(FOLDER / "gpt3.yaml").place(30720, 8)
    assert (job.dp, job.microbatches, job.mesh.size) == (240, 16, 30720)


def test_neusight_runs_one_microbatch_on_every_cluster_of_the_paper():
    for nodes in (1, 4, 384, 768, 3840):
        job = load(FOLDER / "neusight_gpt3_xl.yaml", {"training.global_batch": 8 * nodes}).place(8 * nodes, 8)
        assert (job.dp, job.microbatches) == (nodes, 1)


SMALL, LOWER = "the cluster is too small: ", "lower a degree or take a larger cluster"
BATCHES, ACROSS = "(global_batch 16 / micro_batch 2)", "or set parallelism.tp_across_nodes: true"


@pytest.mark.parametrize(
    ("gpus", "per_node", "change", "message"),
    [
        (3, 8, {}, f":14:7: parallelism.pp: {SMALL}tp 2 × pp 2 needs 4 GPUs, there are 3; {LOWER}"),
        (16, 8, {"dp": 8}, f": {SMALL}tp 2 × pp 2 × dp 8 needs 32 GPUs, there are 16; {LOWER}"),
        (16, 8, {"dp": 3}, f": 3 does not divide the 8 microbatches of a step {BATCHES}; use 1, 2, 4, 8"),
        (16, 4, {"tp": 8}, f": groups of 8 would span nodes of 4 GPUs; use 1, 2, 4, {ACROSS}"),
    ],
)
def test_placement_that_cannot_be(gpus, per_node, change, message):
    place = "".join(f" (command line): parallelism.{key}" for key in change)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'w.yaml{place}{message}')}$"):
        small(**{f"parallelism__{key}": value for key, value in change.items()}).place(gpus, per_node)


def test_tp_across_nodes_is_allowed_when_asked():
    assert small(parallelism__tp=8, parallelism__tp_across_nodes=True).place(16, 4).dp == 1


def test_dp_is_unknown_before_placement():
    with pytest.raises(InputError, match=r"parallelism.dp is auto; place the job on a cluster first"):
        _ = small().dp


def test_vocabulary_is_padded_as_megatron_does():
    assert small().vocab == 1024  # to a multiple of 128·2
    assert small(parallelism__tp=8).vocab == 1024
    assert small(model__vocab_multiple=1).vocab == 1000
