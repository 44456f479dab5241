"""Megatron's names of arguments: understood, ignored and listed, or refused; and all unknown keys of a file at once."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from sweep_cases import plain, said

from clustersim.config.jobs import Jobs
from clustersim.config.workload import Algorithms, Model, Overlap, Parallelism, Training, Workload
from clustersim.config.yaml import parse
from clustersim.convert.megatron import ALIASES, NO_EFFECT, NOT_MODELLED, REMEDIES, YIELDS
from clustersim.convert.megatron_groups import GROUPED
from clustersim.convert.table import words
from clustersim.errors import ConfigError, InputError
from clustersim.model.parameters import kinds
from clustersim.parallel.load import build
from clustersim.topology.build import build as build_topology

PLAIN = """
name: t
num-layers: 12
hidden-size: 1024
num-attention-heads: 16
vocab-size: 32000
seq-length: 1024
global-batch-size: 8
tensor-model-parallel-size: 2
"""
SPLIT = """
model: {layers: 4, hidden: 64, heads: 4, vocab: 128}
training: {global_batch: 8, seq: 64}
"""


def job(more: str):
    return build(parse(PLAIN + more, "t.yaml"))


UNDERSTOOD = {
    "sequence-parallel: true": "parallelism.sequence_parallel=true",
    "training: {sequence-parallel: true}": "parallelism.sequence_parallel=true",
    "fp8-format: hybrid\nbf16: true": "training.precision=fp8 training.fp8_scaling=delayed",
    "fp8-format: hybrid\nfp8-recipe: tensorwise\nbf16: true": "training.precision=fp8 training.fp8_scaling=current",
    "fp8-format: hybrid\nfp8-recipe: blockwise\nbf16: true": "training.fp8_scaling=block",
    "no-gradient-accumulation-fusion: true": "training.fused_accumulation=false",
    "fp8-format: e4m3\nfp8-recipe: mxfp8\nbf16: true": "training.precision=mxfp8",
    "fp8-recipe: mxfp8\nbf16: true": "training.precision=bf16",
    "fp4-format: e2m1\nbf16: true": "training.precision=nvfp4",
    "fp4-format: e2m1\nfirst-last-layers-bf16: true": "training.bf16_first_layers=1",
    "first-last-layers-bf16: true\nnum-layers-at-start-in-bf16: 0\nnum-layers-at-end-in-bf16: 4": (
        "training.bf16_last_layers=4"
    ),
    "num-layers-at-end-in-bf16: 4": "training.bf16_last_layers=0",
    "clip-grad: 0.0": "training.clip_gradients=false",
    "attention-backend: unfused": "training.attention=unfused",
    "use-flash-attn: false": "training.attention=unfused",
    "untie-embeddings-and-output-weights: true": "model.tied_embeddings=false",
    "grad-reduce-in-bf16: true\naccumulate-allreduce-grads-in-fp32: true": "training.gradients=bf16",
    "use-rotary-position-embeddings: true": "model.positions=rotary",
    "recompute-granularity: full\nrecompute-method: block\nrecompute-num-layers: 3": "training.recompute_layers=3",
    "recompute-granularity: selective\nrecompute-modules: [mlp, core_attn]": (
        "training.recompute_modules=[mlp,core_attn]"
    ),
    "recompute-num-layers: 3": "training.recompute_layers=null",
    "squared-relu: true": "model.activation=squared_relu",
    "disable-bias-linear: true\nadd-qkv-bias: true": "model.qkv_bias=true",
    "kv-lora-rank: 32\nv-head-dim: 128": "model.mla=null",
    "num-experts: 8\nmoe-layer-freq: ([0]*3+[1]*9)\nffn-hidden-size: 256": "model.dense_layers=3",
    "num-experts: 8\nmoe-shared-expert-intermediate-size: 768": "model.shared_ffn=768",
    "pipeline-model-parallel-size: 4\npipeline-model-parallel-layout: Ett|(tttt|)*2,ttL": (
        "parallelism.layout=Ett|(tttt|)*2,ttL"
    ),
    "pipeline-model-parallel-size: 4\ndecoder-last-pipeline-num-layers: 2": "parallelism.last_layers=2",
    "ffn-hidden-size: 4096\nmoe-ffn-hidden-size: 512\nnum-experts: 8": "model.ffn=512",
}


@pytest.mark.parametrize("line", UNDERSTOOD)
def test_a_name_of_megatrons_is_understood_wherever_it_stands(line):
    for key, value in plain(UNDERSTOOD[line]).items():
        assert said(job(line), key) == value


def test_latent_attention_has_megatrons_defaults():
    latent = job("multi-latent-attention: true\nq-lora-rank: 96").model.mla
    assert latent.model_dump() == {
        "q_lora_rank": 96,
        "kv_lora_rank": 32,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }


@pytest.mark.parametrize(("said", "meant"), [("flex", "deepep"), ("alltoall", "nccl"), ("allgather", "nccl")])
def test_a_dispatcher_says_what_carries_the_rows_of_experts(said, meant):
    one = job(f"num-experts: 8\nmoe-token-dispatcher-type: {said}\nmoe-enable-deepep: true\nmoe-deepep-num-sms: 20")
    assert (one.parallelism.algorithms.ep, one.parallelism.overlap.sms) == (meant, 20)
    assert job("num-experts: 8\nmoe-token-dispatcher-type: nonsense").parallelism.algorithms.ep == "nonsense"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("moe-token-dispatcher-type: flex\nmoe-flex-dispatcher-backend: hybridep", "hybridep"),
        ("moe-flex-dispatcher-backend: deepep\nmoe-token-dispatcher-type: flex", "deepep"),
        ("moe-flex-dispatcher-backend: hybridep\nmoe-token-dispatcher-type: alltoall", "nccl"),
        ("moe-flex-dispatcher-backend: hybridep", "nccl"),
    ],
)
def test_the_backend_of_a_flexible_dispatcher_decides_beside_it_alone(said, meant):
    one = job(f"num-experts: 8\n{said}\nmoe-flex-dispatcher-num-sms: 16\nmoe-deepep-num-sms: 20")
    assert (one.parallelism.algorithms.ep, one.parallelism.overlap.sms) == (meant, 16)


EVERY_OTHER = [True, False] * 6
PATTERNS = {
    "2": EVERY_OTHER,
    "2 ": EVERY_OTHER,
    "([1]+[0])*6": EVERY_OTHER,
    "[0,1,1]*4": [False, True, True] * 4,
    "[0]*4+[1]*8": [False] * 4 + [True] * 8,
    "[1]*10+[0]*2": [True] * 10 + [False] * 2,
    "1": [True] * 12,
}


@pytest.mark.parametrize("said", PATTERNS)
def test_layers_with_experts_are_those_of_the_pattern(said):
    found = job(f"num-experts: 8\nffn-hidden-size: 512\nmoe-ffn-hidden-size: 128\nmoe-layer-freq: '{said}'").model
    assert [kind.experts is not None for kind in kinds(found)] == PATTERNS[said]
    assert {kind.ffn for kind in kinds(found)} == ({512, 128} if said != "1" else {128})


PATTERN = ("num-experts: 8\nmoe-layer-freq: ", "11:17: moe_layer_freq .* is not a ")
LIST = (PATTERN[0], PATTERN[1] + "list of 12 zeros and ones")
STRATEGY = (
    "use-megatron-fsdp: true\ndata_parallel_sharding_strategy: ",
    "11:34: .* is not a strategy; write no_shard, ",
)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        *((PATTERN, f'"{said}"') for said in ("[0]*3", "[2]*12", "open('x')", "[0]*10**9", "1+1", "[[0]*6]*2", "x")),
        *((LIST, said) for said in ("[[0], [1], 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]", "[0, 1]")),
        *((STRATEGY, said) for said in ("all", "[optim]", "3")),
    ],
)
def test_a_pattern_or_strategy_that_is_none_gets_one_sentence(key, said):
    with pytest.raises(ConfigError, match=f"^t.yaml:{key[1]}"):
        job(key[0] + said)


def test_arguments_without_effect_are_ignored_and_listed_once(tmp_path, command_line):
    more = "lr: 1e-4\ntrain-iters: 100\nuse-mcore-models: true\nrotary-base: 500000\nattention-softmax-in-fp32: true\n"
    more += "transformer-impl: local\ngroup-query-attention: true\nnum-query-groups: 8\ntraining: {weight-decay: 0.1}\n"
    path = tmp_path / "t.yaml"
    path.write_text(f"{PLAIN}{more}tp-comm-split-ag: true\n", encoding="utf-8")
    outputs = []
    for form in ([], ["--json"]):
        asked = ("run", "hgx_h100_8", str(path), "--no-save", "--predictor", "roofline", *form)
        code, out, _ = command_line(*asked)
        assert code == 0
        outputs.append(out)
    said = json.loads(outputs[1])["ignored_arguments"]
    assert said["no_effect"] == [
        *("lr", "train-iters", "use-mcore-models", "rotary-base", "attention-softmax-in-fp32"),
        *("transformer-impl", "group-query-attention", "weight-decay"),
    ]
    assert said["not_modelled"] == ["tp-comm-split-ag"]
    text = " ".join(outputs[0].split())  # long lists are folded
    assert f"ignored, no effect on the time of a step: {', '.join(said['no_effect'])} ignored, not modelled" in text
    assert "ignored, not modelled: tp-comm-split-ag\n" in outputs[0]


def test_an_override_may_be_ignored_too():
    changed = build(parse(PLAIN), {"training.lr": "1e-4", "sequence-parallel": "true"})
    assert changed.ignored.no_effect == ("training.lr",)
    assert changed.parallelism.sequence_parallel


def test_no_name_is_in_two_lists_or_one_of_ours():
    shared = (words(f"megatron_config_{kind}.txt") for kind in ("no_effect", "not_modelled"))  # with other tools
    every = [*itertools.chain(*shared), *ALIASES, *REMEDIES, *GROUPED, *NO_EFFECT, *NOT_MODELLED]
    assert len(every) == len(set(every))
    ours = {
        key for kind in (Workload, Model, Training, Parallelism, Overlap, Algorithms, Jobs) for key in kind.model_fields
    }
    assert not ours & (set(REMEDIES) | NO_EFFECT | NOT_MODELLED)
    assert set(YIELDS) <= set(ALIASES)
    assert set().union(*YIELDS.values()) <= set(ALIASES) | GROUPED


@pytest.mark.parametrize("name", REMEDIES)
def test_what_has_no_counterpart_is_refused_unless_it_is_off(name):
    assert job(f"{name}: false").name == "t"
    with pytest.raises(ConfigError, match=re.escape(f"t.yaml:10:{len(name) + 3}: {name} is not supported; ")):
        job(f"{name}: 7")


def test_all_unknown_keys_are_told_at_once():
    text = (
        "name: t\nfoo: 1\nmodle: 2\nmodel: {layers: 4, hidden: 64, heads: 4, vocab: 100, seq: 12}\n"
        "training: {global_batch: 4, seq: 32, dropout: true, recomput: full}\ntp: 4\nparallelism.pp: 2\n"
    )
    with pytest.raises(ConfigError) as caught:
        build(parse(text, "u.yaml"))
    assert str(caught.value) == (
        "u.yaml:2:1: 7 unknown keys: 'foo' (2:1), 'modle' (3:1; did you mean 'model'?), 'seq' (4:54; write it as training.seq), "
        "'dropout' (5:38; write it as model.dropout), 'recomput' (5:53; did you mean 'recompute'?), "
        "'tp' (6:1; write it as parallelism.tp), 'parallelism.pp' (7:1; write pp inside parallelism); rename or remove them"
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"training.dropout": "true"}, "(command line): unknown key 'dropout'; write it as model.dropout"),
        ({"tp": "4"}, "(command line): unknown key 'tp'; write it as parallelism.tp"),
        ({"model.predictor": "x"}, "unknown key 'predictor'; write it as predictor at the top level"),
        ({"overlap.p2p": "true"}, "(command line): unknown key 'overlap'; write it as parallelism.overlap"),
        ({"foo": "1", "bar": "2"}, "2 unknown keys: 'foo' (command line), 'bar' (command line); rename or remove them"),
        (
            {"cluster.nodes": "4"},
            "cluster.nodes: is a key of a topology, and this changes keys of the workload; change the",
        ),
    ],
)
def test_a_key_in_the_wrong_section_is_told_the_right_one(overrides, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        build(parse(f"name: t{SPLIT}", "t.yaml"), overrides)


def test_a_key_of_a_node_in_the_wrong_place_is_told_the_right_one():
    node = "{gpus: {model: h100, count: 8}, links_per_gpu: 18}"
    with pytest.raises(
        ConfigError, match=r"unknown key 'links_per_gpu'; write it as cluster\.node\.scale_up\.links_per_gpu"
    ):
        build_topology(parse(f"cluster: {{nodes: 1, node: {node}}}", "c.yaml"))


def test_files_in_the_wrong_order_are_told_so():
    with pytest.raises(ConfigError, match=r"c\.yaml:1:1: this is a topology, not a workload; the topology comes first"):
        build(parse("cluster: {nodes: 1, node: hgx-h100}", "c.yaml"))
    with pytest.raises(ConfigError, match=r"t\.yaml:2:1: this is a workload, not a topology; the topology comes first"):
        build_topology(parse(f"name: t{SPLIT}", "t.yaml"))
    with pytest.raises(ConfigError, match="this is a file of jobs, not a workload; `clustersim jobs` simulates it"):
        build(parse("jobs: [{workload: a.yaml}]", "j.yaml"))
