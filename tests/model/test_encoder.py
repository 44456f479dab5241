"""An encoder before a decoder: parameters, FLOP, what stages hand on, and what does not go together."""

import math

import pytest

from clustersim.config.yaml import parse
from clustersim.errors import ConfigError
from clustersim.model.kernel import Kernel
from clustersim.model.parameters import parameters
from clustersim.parallel.flops import attention_flop, hardware_flop, linear_flop, logits_flop, model_flop
from clustersim.parallel.load import build
from clustersim.parallel.stages import stages

T5 = """\
name: t5
model: {layers: 4, encoder_layers: 4, hidden: 256, heads: 4, head_dim: 32, kv_heads: 2, ffn: 512, vocab: 1024, norm: rmsnorm,
  activation: relu, positions: none, bias: false}
training: {global_batch: 8, micro_batch: 2, seq: 128, encoder_seq: 512}
"""
Z, TABLE = 2, 1024 * 256
ENCODER, DECODER = Z * 2 * 512 * 256, Z * 2 * 128 * 256


def job(gpus=1, **overrides):
    return build(parse(T5, "w.yaml"), {key.replace("__", ".", 1): value for key, value in overrides.items()}).place(
        gpus, 8
    )


def products(steps):
    return math.fsum(s.flop for s in steps if isinstance(s, Kernel) and s.k)


def test_parameters_are_those_of_the_closed_form():
    [stage] = stages(job())
    assert stage.parameters == parameters(job().model)
    attention, mlp = 256 * 128 * 2 + 256 * 64 * 2, 2 * 256 * 512
    blocks = 4 * (attention + mlp + 2 * 256) + 4 * (2 * attention + mlp + 3 * 256)
    assert parameters(job().model) == TABLE + blocks + 2 * 256


def test_flop_are_those_of_the_kernels():
    one = job(training__attention="unfused")
    [stage] = stages(one)
    forward = linear_flop(one) + attention_flop(one, full=True) + logits_flop(one)
    assert one.microbatches * products(stage.forward) == pytest.approx(forward, rel=1e-12)
    assert one.microbatches * products(stage.backward) == pytest.approx(2 * forward, rel=1e-12)


@pytest.mark.parametrize("how", [{"recompute": "full"}, {"recompute": "selective"}])
def test_flop_that_run_again_are_those_of_the_kernels(how):
    again = job(training__attention="unfused", **{f"training__{key}": value for key, value in how.items()})
    more = products(stages(again)[0].backward) - products(stages(job(training__attention="unfused"))[0].backward)
    assert again.microbatches * more == pytest.approx(hardware_flop(again, True) - model_flop(again, True), rel=1e-12)


def test_stages_of_the_decoder_hand_the_encoders_output_on():
    found = stages(job(gpus=4, parallelism__pp=4, parallelism__dp=1))
    both = ENCODER + DECODER
    assert [stage.output_bytes for stage in found] == [ENCODER, ENCODER, both, 0]
    assert [stage.input_bytes for stage in found] == [0, ENCODER, ENCODER, both]
    assert [[layer.name for layer, _ in stage.layers].count("embedding") for stage in found] == [1, 0, 1, 0]
    copies = 2 * TABLE  # where the decoder begins, and the head
    assert sum(stage.parameters for stage in found) == parameters(job().model) + copies


def test_a_longer_encoder_costs_what_it_reads():
    short, long = (job(training__encoder_seq=seq) for seq in (512, 1024))
    encoder = 2.0 * 8 * 512 * 4 * (256 * 128 * 2 + 256 * 64 * 2 + 2 * 256 * 512)
    cross = 2.0 * 8 * 512 * 4 * 256 * 128
    assert linear_flop(long) - linear_flop(short) == pytest.approx(encoder + cross)


SPARSE = {"model__experts": 4, "model__blocks": [{"experts": 0}, {}]}


def test_encoder_and_decoder_have_experts_in_the_same_blocks():
    """Switch Transformers (Fedus et al. 2022): every second block has experts, of which a token visits one."""
    one = job(training__attention="unfused", **SPARSE)
    [stage] = stages(one)
    experts, router = 2 * 256 * 512, 4 * 256
    assert stage.parameters == parameters(one.model) == parameters(job().model) + 4 * (3 * experts + router)
    forward = linear_flop(one) + attention_flop(one, full=True) + logits_flop(one)
    routed = 2.0 * 8 * (512 + 128) * 2 * router
    assert linear_flop(one) == linear_flop(job()) + routed
    assert one.microbatches * products(stage.forward) == pytest.approx(forward, rel=1e-12)
    assert one.microbatches * products(stage.backward) == pytest.approx(2 * forward, rel=1e-12)


def test_experts_of_an_encoder_are_spread_as_those_of_a_decoder():
    [stage] = stages(job(gpus=4, parallelism__dp=4, parallelism__ep=4, **SPARSE))
    assert stage.experts == 4 * 2 * 256 * 512
    assert stage.dense + 4 * stage.experts == parameters(job(**SPARSE).model)


BROKEN = {
    "no encoder": (
        {"model__encoder_layers": 0},
        "training.encoder_seq: 512 needs an encoder; set model.encoder_layers",
    ),
    "no mask": ({"model__causal": False}, "model.causal: and model.encoder_layers 4 exclude each other"),
    "context parallelism": (
        {"parallelism__cp": 2},
        "parallelism.cp: 2 ranks share one sequence, and an encoder and a decoder",
    ),
    "a layout": ({"parallelism__layout": "Et*8L"}, "an encoder and a decoder are divided as evenly as they can be"),
    "a sequence": (
        {"parallelism__tp": 2, "parallelism__sequence_parallel": True, "training__encoder_seq": 511},
        "training.encoder_seq: 511 is not a multiple of tp 2, as sequence parallelism needs; pad it",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_contradicts_gets_one_sentence(case):
    overrides, message = BROKEN[case]
    with pytest.raises(ConfigError) as caught:
        job(gpus=2, **overrides)
    assert message in str(caught.value)
