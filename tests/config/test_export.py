"""Launch scripts of Megatron-LM that are written: what is read back from them is what they were written of."""

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from clustersim.api.launch import differences, read_back
from clustersim.convert.megatron_arguments import script
from clustersim.errors import InputError
from clustersim.parallel.load import load

SPLITS = {
    "parallelism.tp": st.sampled_from([1, 2, 4, 8]),
    "parallelism.pp": st.sampled_from([1, 2, 4]),
    "parallelism.cp": st.sampled_from([1, 2]),
    "parallelism.cp_type": st.sampled_from(["p2p", "all_gather", "a2a"]),
    "parallelism.zero": st.sampled_from([0, 1, 2]),
    "parallelism.overlap.grad_reduce": st.booleans(),
    "parallelism.overlap.p2p": st.booleans(),
    "training.micro_batch": st.sampled_from([1, 2]),
    "training.seq": st.sampled_from([2048, 4096]),
    "training.precision": st.sampled_from(["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]),
    "training.recompute": st.sampled_from(["none", "selective", "full"]),
    "training.gradients": st.sampled_from(["fp32", "bf16"]),
    "training.clip_gradients": st.booleans(),
}
MODELS = ["llama3_70b", "llama3_8b", "mixtral_8x7b", "qwen3_30b_a3b", "gpt_oss_20b", "nemotron4_340b", "gpt3"]


@settings(max_examples=examples(100))
@given(st.sampled_from(MODELS), st.fixed_dictionaries({}, optional=SPLITS))
def test_what_a_script_says_is_read_back(name, changes):
    try:
        job = load(name, changes)
    except InputError:
        return
    split = job.parallelism
    said = dict(differences(job, read_back("megatron", script(job.spec, 16, 8), job)))
    allowed = {"parallelism.tp_across_nodes"}
    allowed |= {"parallelism.cp_type"} if split.cp == 1 else set()
    # Megatron: without overlap "pipeline-model-parallel size should be greater than 2" (arguments.py, interleaved schedules)
    allowed |= {"parallelism.overlap.p2p"} if split.vpp == 1 or split.pp <= 2 else set()
    if not split.overlap.grad_reduce:  # Megatron: "Must use --overlap-param-gather with --overlap-grad-reduce"
        allowed |= {"parallelism.overlap.param_gather"}
    allowed |= {"training.gradients"} if job.training.precision == "fp16" else set()
    assert said.keys() <= allowed


SAYS = "not said by"
RESULTS = [
    (
        "megatron",
        "sh",
        "gpt3_xl --tp 2 --schedule zero_bubble --pp 2",
        f"{SAYS} Megatron-LM's arguments: parallelism.sch",
    ),
    ("nemo", "yaml", "llama3_8b --tp 2 --zero 1", "written to mine.yaml"),
    ("megatron-bridge", "yaml", "llama3_8b --tp 2 --zero 1", "written to mine.yaml"),
    ("torchtitan", "toml", "llama3_8b --tp 1 --zero 3", f"{SAYS} torchtitan's settings: model.vocab_multiple: 128\n"),
    ("deepspeed", "json", "llama3_8b --tp 1 --zero 3", f"{SAYS} DeepSpeed's settings: training.kernels: fused\n"),
]


@pytest.mark.parametrize(("tool", "ending", "asked", "said"), RESULTS)
def test_a_result_is_written_and_read_on_the_command_line(call, tool, ending, asked, said):
    workload, _, tp, *more = asked.split()
    options = ("--predictor", "roofline", "--out", "result", "--quiet")
    assert call("run", "hgx_h100_8", workload, "--tp", tp, *more, *options)[0] == 0
    code, out, err = call("export", tool, "result", "--out", f"mine.{ending}")
    assert (code, err, out.splitlines()[-1]) == (0, "", f"written to mine.{ending}")
    assert said in out
    printed = call("export", tool, "result")[1]
    if tool == "megatron":
        assert "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py" in printed
        assert f"# {said}edule: zero_bubble\n" in printed
    model = ("--model", workload) if tool == "deepspeed" else ()
    assert call("import", tool, f"mine.{ending}", *model, "--out", "again.yaml")[0] == 0
    assert load("again.yaml").parallelism.tp == int(tp)
    code, _, err = call("export", tool, "result", "--out", "mine.none")
    assert (code, "--out mine.none" in err) == (2, True)


@pytest.mark.parametrize(("words", "sentence"), [(["nothing"], "nothing: is no result"), (["."], "no result")])
def test_what_is_no_result_is_one_sentence(call, words, sentence):
    code, out, err = call("export", "megatron", *words)
    assert (code, out) == (2, "")
    assert sentence in err


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (
            {"model.blocks": [{"mixer": "mamba2"}, {}], "model.mamba": {"heads": 64, "head_dim": 64, "state": 128}},
            "mamba",
        ),
        ({"model.blocks": [{"mixer": "conv"}, {}], "model.conv": 3}, "conv"),
        ({"model.output_gate": True}, "output_gate"),
        ({"model.feed_forward": False}, "feed_forward"),
    ],
)
def test_a_model_that_no_argument_says_gets_no_script(changes, key):
    """The script would launch another model."""
    with pytest.raises(
        InputError, match=rf"^model\.{key}: pretrain_gpt\.py has no argument for it; write the script by hand"
    ):
        script(load("llama3_8b", changes).spec, 16, 8)
