"""Launch scripts of Megatron-LM as workloads: bash that is read, arguments understood, and what is said of others."""

import json
import re

import pytest
from sweep_cases import plain, said

from clustersim.config.yaml import parse
from clustersim.convert.layout_text import written_out
from clustersim.convert.megatron_script import ImportRequest, imported
from clustersim.convert.shell import commands
from clustersim.errors import InputError
from clustersim.model.parameters import kinds
from clustersim.parallel.load import build, load
from clustersim.parallel.stages import stages


def last(text, **variables):
    return commands("train.sh", text, variables).commands[-1]


SHELL = {
    "a variable": ("N=4\nrun --n $N", "run --n 4"),
    "braces": ("N=4\nrun --n ${N}x", "run --n 4x"),
    "a default": ("run --n ${N:-8} --m ${M-2}", "run --n 8 --m 2"),
    "a default of a default": ("run --n ${N:-${M:-3}}", "run --n 3"),
    "an array": ("A=(--x 1\n  --y 2  # two\n)\nrun ${A[@]}", "run --x 1 --y 2"),
    "a quoted array": ('A=("--x 1" --y)\nrun "${A[@]}"', "run --x 1 --y"),
    "an array that grows": ("A=(--x)\nA+=(--y)\nrun ${A[@]}", "run --x --y"),
    "text that grows": ('A="--x 1"\nA+=" --y"\nrun $A', "run --x 1 --y"),
    "text over lines": ('A=" \\\n --x 1 \\\n --y 2 \\\n"\nrun $A', "run --x 1 --y 2"),
    "continued lines": ("run --x \\\n  1 \\\n  --y", "run --x 1 --y"),
    "sums": ("A=8\nB=$((A * 4))\nrun $B $(($B/2 - 1))", "run 32 15"),
    "export": ("export A=1 B=2\nrun $A$B", "run 12"),
    "single quotes": ("run '$A'", "run $A"),
    "comments": ("# run no\nrun yes # run maybe", "run yes"),
    "an environment before the command": ("A=1 run --x", "run --x"),
    "if": ('T=fp8\nif [[ "$T" == "fp8" ]]; then\n  A=1\nelse\n  A=2\nfi\nrun $A', "run 1"),
    "else": ('if [ -n "${T}" ]; then\n  A=1\nelse\n  A=2\nfi\nrun $A', "run 2"),
    "elif": ("N=3\nif [ $N -gt 5 ]; then\nA=1\nelif [ $N -ge 3 ]; then\nA=2\nelse\nA=3\nfi\nrun $A", "run 2"),
    "if inside if": ("if [ 1 = 2 ]; then\nif [ 1 = 1 ]; then\nA=1\nfi\nA=2\nfi\nrun ${A:-3}", "run 3"),
    "and": ("if [ 1 = 1 ] && [ 2 = 2 ]; then A=1; fi\nrun ${A:-2}", "run 1"),
    "or": ('if [[ "x" == "y" ]] || [[ -z "$U" ]]; then\nA=1\nfi\nrun ${A:-2}', "run 1"),
    "not": ("if [ ! 1 = 2 ]; then\nA=1\nfi\nrun ${A:-2}", "run 1"),
    "loops": ("A=1\nfor x in 1 2; do\n  A=2\ndone\nrun $A", "run 1"),
    "functions": ("f() {\n  A=2\n}\nA=1\nrun $A", "run 1"),
    "functions that run something": ("run 1\nf() {\n  run 2\n}\nfunction g {\n  run 3\n}", "run 1"),
    "functions whose body is on the next line": ("f()\n{\n  A=2\n}\nA=1\nrun $A", "run 1"),
    "a default of what is set to nothing": ("A=\nrun x${A-1} x${A:-2}", "run x x2"),
    "a pipe": ("run --x 1 2>&1 | tee --y log", "run --x 1"),
    "redirections": ("run --x 1 >> out.txt 2>err.txt --y < in.txt &", "run --x 1 --y"),
    "what runs otherwise": ("run --x || exit 1", "run --x"),
    "a quoted pipe": ("run --x '|' --y \">\"", "run --x | --y >"),
    "what programs print": ("A=$(hostname)x\nrun --a $A", "run --a x"),
    "two on a line": ("A=1; B=2; run $A $B", "run 1 2"),
    "a shell in a command": ('A="--x 1"\nC="cd /tmp; run $A"\nsrun -l bash -x -c "${C}" 2>&1 | tee log', "run --x 1"),
    "a shell in a job that is submitted": ("sbatch <<EOF\n#SBATCH -N 2\nsrun sh -c 'run --x 1'\nEOF\n", "EOF"),
    "eval": ('C="run --x 1"\neval $C', "run --x 1"),
    "a comment that ends in a backslash": ("# run no \\\nrun yes", "run yes"),
    "an argument and text": ("run ${1}x$2_y", "run x_y"),
}


@pytest.mark.parametrize("case", SHELL)
def test_bash_is_read(case):
    text, words = SHELL[case]
    assert " ".join(last(text)) == words


def test_the_environment_decides():
    assert last("N=${NODES:-1}\nrun $N", NODES="16") == ["run", "16"]


def test_nothing_is_run(tmp_path):
    target = tmp_path / "made"
    commands("train.sh", f"touch {target}\nA=$(touch {target})\nB=`touch {target}`\n", {})
    assert not target.exists()


@pytest.mark.parametrize("text", ["A='x\nrun", "A=(1 2\nrun", 'A="1'])
def test_what_is_never_closed_is_said(text):
    with pytest.raises(InputError, match=r"^train\.sh: a (quote|parenthesis) is never closed; close it$"):
        commands("train.sh", text, {})


def test_what_grows_without_end_is_said():
    text = "A=aaaaaaaaaa\n" + 'A="$A$A$A$A$A$A$A$A$A$A"\n' * 9
    with pytest.raises(InputError, match="grows without end"):
        commands("train.sh", text, {})


BASE = (
    "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --vocab-size 32000 --bf16"
)


def read(more="", text=BASE, settings=None, **variables):
    asked = ImportRequest(variables, settings or {})
    found = imported("train.sh", f"{text} {more}\n", asked)
    return found, build(parse(json.dumps(found.workload)))


PROGRAM = BASE.partition("pretrain_gpt")[2]
LAUNCHES = {
    "Slurm": ("#SBATCH -N 4\n#SBATCH --gres=gpu:a100:8\nsrun", "4 nodes of 8 GPUs"),
    "PBS Professional": ("#PBS -N job-70\n#PBS -l select=4:ncpus=64:ngpus=8:mpiprocs=8\nmpiexec", "4 nodes of 8 GPUs"),
    "PBS without GPUs": ("#PBS -l select=4\n#PBS -l walltime=0:30:00\nmpiexec -n 16 --ppn 4", "4 nodes of 4 GPUs"),
    "Torque": ("#PBS -l nodes=4:ppn=48:gpus=8,walltime=8:00:00\nmpirun", "4 nodes of 8 GPUs"),
    "LSF": ('#BSUB -n 32\n#BSUB -nnodes 4\n#BSUB -gpu "num=8:mode=shared"\nmpirun', "4 nodes of 8 GPUs"),
    "jsrun": ("jsrun -n 24 -a 1 -g 1 -c 7 -r 6 -bpacked:7", "4 nodes of 6 GPUs"),
    "jsrun, a node a set": ("jsrun --nrs=4 --tasks_per_rs=6 --gpu_per_rs=6 --rs_per_host=1", "4 nodes of 6 GPUs"),
    "jsrun in a job of LSF": ("#BSUB -nnodes 4\njsrun -n24 -a1 -g1 -r6", "4 nodes of 6 GPUs"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_headers_and_launchers_say_nodes_and_gpus(name):
    launcher, machine = LAUNCHES[name]
    assert read(text=f"{launcher} python pretrain_gpt{PROGRAM}")[0].machine == machine


SAYS = {
    "--global-batch-size 64": "training.global_batch=64",
    # Megatron: one microbatch a replica
    "": "training.global_batch=64",
    "--tensor-model-parallel-size 4": "training.global_batch=16",
    "--context-parallel-size 2": "training.global_batch=32",
    "--swiglu": "model.ffn=2688",
    "--swiglu --ffn-hidden-size 4096": "model.ffn=4096",
    "--num-query-groups 4": "model.kv_heads=null",
    "--group-query-attention --num-query-groups 4": "model.kv_heads=4",
    "--sequence-parallel": "parallelism.sequence_parallel=false",
    "--sequence-parallel --tensor-model-parallel-size 2": "parallelism.sequence_parallel=true",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2": "parallelism.vpp=2",
    "--pipeline-model-parallel-size=2 --num-virtual-stages-per-pipeline-rank=4": "parallelism.schedule=interleaved",
    "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|(tt|)*2,tttL": "parallelism.vpp=2",
    "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3": "parallelism.first_layers=3",
    "--num-experts 8 --expert-model-parallel-size 4 --moe-ffn-hidden-size 512": "model.ffn=512",
    "--window-size 127,0": "model.window=128",
    "--multi-latent-attention --kv-lora-rank 64 --qk-layernorm": "model.qk_norm=false",
}


@pytest.mark.parametrize("more", SAYS)
def test_arguments_say_what_megatron_takes_them_for(more):
    [(key, value)] = plain(SAYS[more]).items()
    assert said(read(more)[1], key) == value


def test_every_other_layer_slides():
    assert [kind.window for kind in kinds(read("--window-size 127,0 --window-attn-skip-freq 2")[1].model)] == [
        128,
        0,
    ] * 4


PUBLISHED = [
    ("--recompute-granularity selective --recompute-modules mlp", {"recompute_modules": ["mlp"]}),
    ("--use-megatron-fsdp --use-distributed-optimizer", {"zero": 3}),
    ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", {"zero": 1}),
    (
        "--use-megatron-fsdp --fsdp-double-buffer",
        {"fsdp": {"copy_out": False, "copy_in": False, "forward_prefetch": 1}},
    ),
    ("--use-distributed-optimizer --num-distributed-optimizer-instances 2", {"optimizer_instances": 2, "zero": 1}),
    ("--use-megatron-fsdp --megatron-fsdp-grad-comm-dtype bf16", {"gradients": "bf16"}),
    ("--deepspeed --zero-stage 2", {"zero": 2, "reduce_every_microbatch": True, "attention": "unfused"}),
    ("--deepspeed --zero-stage 3", {"zero": 3, "zero3": {}}),
    ("--ds-sequence-parallel-size 4", {"cp": 4, "cp_type": "a2a"}),
    ("--deepspeed --num-experts 1 --moe-train-capacity-factor 1.0", {"zero": None}),
    ("--pp-partition-method 'type:transformer|embedding'", {"account_for_embedding": True, "account_for_loss": True}),
    ("--position-embedding-type alibi", {"positions": "none"}),
    ("--glu-activation geglu", {"activation": "geglu"}),
    ("--pad-vocab-size-to 32768", {"vocab": 32768}),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4\\\\|t*4L", {"vpp": 1}),
]


@pytest.mark.parametrize(("more", "said"), PUBLISHED)
def test_arguments_of_published_scripts(more, said):
    found, _ = read(more)
    flat = {key: value for part in ("model", "training", "parallelism") for key, value in found.workload[part].items()}
    assert {key: flat.get(key) for key in said} == said
    assert not found.unknown


def test_every_second_layer_of_deepspeeds_mixtures_has_experts():
    _, job = read(
        "--deepspeed --num-experts 16 --topk 2 --mlp-type residual --moe-expert-parallel-size 4 --disable-moe-token-dropping"
    )
    assert [kind.experts for kind in kinds(job.model)] == [None, 16] * 4
    assert (job.model.topk, job.model.shared_experts, job.parallelism.ep) == (2, 1, 4)


def test_rows_of_experts_are_summed_by_fused_kernels_where_a_script_asks_for_them():
    mixture = "--num-experts 8 --moe-router-topk 2"
    assert read(mixture)[1].training.permute_kernels == "eager"
    assert read(f"{mixture} --moe-permute-fusion")[1].training.permute_kernels == "fused"
    assert read("")[1].training.permute_kernels is None


def test_a_script_of_deepseek_is_its_model():
    text = """
MODEL_ARGS=" \\
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128 \\
    --multi-latent-attention --kv-lora-rank 512 --v-head-dim 128 --q-lora-rank 1536 --qk-head-dim 128 \\
    --qk-layernorm --qk-pos-emb-head-dim 64 --num-experts 256 --moe-layer-freq [0]*3+[1]*58 \\
    --moe-ffn-hidden-size 2048 --moe-router-topk 8 --moe-shared-expert-intermediate-size 2048 --mtp-num-layers 1 \\
    --moe-permute-fusion \\
    --seq-length 4096 --max-position-embeddings 163840 --swiglu --disable-bias-linear --normalization RMSNorm \\
    --untie-embeddings-and-output-weights --position-embedding-type rope --hidden-dropout 0 --micro-batch-size 1 \\
"
torchrun pretrain_gpt.py $MODEL_ARGS --tokenizer-type NullTokenizer --vocab-size 129280 --bf16 --global-batch-size 4096 \\
    --pipeline-model-parallel-size 16 --expert-model-parallel-size 16 --pipeline-model-parallel-layout 'Et*3|(tt|)*29,m|L' \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --recompute-granularity full \\
    --recompute-method uniform --recompute-num-layers 1
"""
    recipe = {
        "training.global_batch": 4096, "training.precision": "bf16", "training.dispatch": None,
        "training.moments": "fp32", "training.recompute": "full", "training.recompute_modules": [],
        "parallelism.schedule": "interleaved", "parallelism.vpp": 2, "parallelism.layout": "Et*3|(tt|)*29,m|L",
        "parallelism.ep": 16, "parallelism.algorithms.ep": "nccl", "parallelism.overlap.ep": "none",
    }  # fmt: skip
    ours, theirs = load("deepseek_v3", recipe).place(1024, 8), read(text=text)[1].place(1024, 8)
    kept = ("forward", "backward", "parameters", "saved_bytes")
    for one, other in zip(stages(ours), stages(theirs), strict=True):
        assert [getattr(one, name) for name in kept] == [getattr(other, name) for name in kept]


def test_what_is_left_out_is_said():
    found, _ = read("--lr 1e-4 --moe-grouped-gemm --frobnicate 7 --rampup-batch-size 16 16 1000")
    assert found.ignored == ("--lr",)
    assert found.not_modelled[-1] == "--moe-grouped-gemm"
    assert found.not_modelled[0].startswith("--rampup-batch-size (write the global_batch_size")
    assert found.unknown == ("--frobnicate",)
    assert "model.dropout: true (Megatron's --hidden-dropout 0.1)" in found.assumed


@pytest.mark.parametrize("more", ["--optimizer dist_muon", "--optimizer muon --use-distributed-optimizer"])
def test_a_layer_wise_muon_gathers_under_the_forward_pass(more):
    """Megatron-LM d98e8a6, training/arguments.py: --overlap-param-gather is for dist_muon too."""
    found, job = read(f"{more} --overlap-grad-reduce --overlap-param-gather")
    assert (job.training.optimizer, job.parallelism.zero, job.parallelism.overlap.param_gather) == ("muon", 1, True)
    assert "--overlap-param-gather" not in " ".join((*found.ignored, *found.not_modelled))


def test_settings_decide():
    text = BASE.replace("--vocab-size 32000", "--tokenizer-type HuggingFaceTokenizer")
    found, job = read(text=text, settings={"model.vocab": 4096, "parallelism.dp": 8})
    assert (job.model.vocab, job.parallelism.dp, found.workload["name"]) == (4096, 8, "train")


NO_VOCABULARY, GIVE = BASE.replace("--vocab-size 32000", ""), "give --set model.vocab=…"
WRONG = {
    "echo hello": "train.sh: launches no program such as `torchrun … pretrain_gpt.py",
    BASE.replace("--micro-batch-size 2", ""): "lacks --micro-batch-size; give the file that has it",
    BASE.replace("--hidden-size 1024", "--hidden-size $HIDDEN"): (
        "--hidden-size has no value; $HIDDEN is not set, give --var HIDDEN=… or --set model.hidden=…"
    ),
    "A=$4\nB=${A}\n" + BASE.replace("--micro-batch-size 2", "--micro-batch-size $B"): (
        "--micro-batch-size has no value; $4 (an argument of the script) is not set, give the script's arguments behind its "
        "name, --var 4=… or --set training.micro_batch=…"
    ),
    f"EP=$(($(nvidia-smi -L | wc -l)-2))\n{BASE} --num-experts 4 --expert-model-parallel-size $EP": (
        "--expert-model-parallel-size has no value that is known without running the script; give --set parallelism.ep=…"
    ),
    NO_VOCABULARY: f"lacks --vocab-size, and the file names no tokenizer; {GIVE}",
    f"{NO_VOCABULARY} --patch-tokenizer-type Qwen2Tokenizer": f"the vocabulary of 'Qwen2Tokenizer' lies in its files; {GIVE}",
    f"{BASE} --is-hybrid-model --hybrid-attention-ratio 0.1": (
        "--hybrid-attention-ratio: layers of that kind are not built; give another model"
    ),
    f"{BASE} --use-megatron-fsdp --data-parallel-sharding-strategy all": (
        "--data-parallel-sharding-strategy: 'all' is not a strategy; write no_shard, optim"
    ),
    'A=(\'eval "$A"\')\neval "$A"': "runs itself without end",
    f"{NO_VOCABULARY} --tokenizer-type SentencePieceTokenizer": (
        f"lacks --vocab-size, and the vocabulary of 'SentencePieceTokenizer' lies in its files; {GIVE}"
    ),
    f"{BASE} --num-experts 4 --moe-layer-freq [0]*3": "--moe-layer-freq: '[0]*3' is not a list of 8 zeros and ones",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_what_is_missing_gets_one_sentence(text, message):
    with pytest.raises(InputError) as caught:
        read(text=text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_script_is_called_with_its_own_arguments(tmp_path, command_line):
    script = tmp_path / "train.sh"
    text = BASE.replace("--hidden-size 1024", "--hidden-size $((${HEADS} * ${2} ))").replace(
        "--micro-batch-size 2", "--micro-batch-size ${1}"
    )
    script.write_text(f"HEADS=16\n{text}\n", encoding="utf-8")
    code, said, _ = command_line("import", "megatron", str(script), "4", "128")
    assert code == 0
    assert "micro_batch: 4" in said
    assert "hidden: 2048" in said
    code, said, _ = command_line("import", "megatron", str(script), "4", "128", "--var", "2=64")
    assert "hidden: 1024" in said


def test_the_command_writes_a_workload_that_loads(tmp_path, command_line):
    script, out = tmp_path / "train.sh", tmp_path / "train.yaml"
    script.write_text(f"{BASE} --lr 1e-4\n", encoding="utf-8")
    code, said, _ = command_line("import", "megatron", str(script), "--out", str(out))
    assert code == 0
    assert said.splitlines()[-1] == f"written to {out}"
    assert "ignored, no effect on the time of a step: --lr" in said
    assert load(out).model.layers == 8
    printed = command_line("import", "megatron", str(script))[1]
    assert parse(printed).data == parse(out.read_text(encoding="utf-8")).data


def test_a_split_that_contradicts_is_one_sentence(tmp_path, command_line):
    script = tmp_path / "train.sh"
    script.write_text(f"{BASE} --tensor-model-parallel-size 3\n", encoding="utf-8")
    code, _, said = command_line("import", "megatron", str(script))
    assert code == 2
    assert "parallelism.tp: 3 does not divide 16 attention heads; use 1, 2, 4, 8, 16; --set changes a key" in said
    assert command_line("import", "megatron", str(script), "--var", "x")[0] == 2


NUMBERS = {
    "--pipeline-model-parallel-size x": "--pipeline-model-parallel-size: x must be a whole number",
    "--pipeline-model-parallel-size 0": "--pipeline-model-parallel-size: 0 must be at least 1",
    "--num-layers x --num-layers-per-virtual-pipeline-stage 1": "--num-layers: x must be a whole number",
    "--num-layers 99999999999 --num-experts 4 --moe-layer-freq 2": "--num-layers: 99999999999 must be at most 10000",
    "--window-size x": "--window-size: 'x' is not a window; write two widths, such as 128,0",
    "--moe-token-dispatcher-type a b": "--moe-token-dispatcher-type: a list must be text",
}


@pytest.mark.parametrize("more", NUMBERS)
def test_a_value_that_an_argument_cannot_have_is_said_by_its_name(more):
    with pytest.raises(InputError) as error:
        read(more)
    assert str(error.value).startswith(f"train.sh: {NUMBERS[more]}")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"parallelism.pp": 0}, "train.sh: parallelism.pp: 0 must be at least 1"),
        ({"model.layers": "x"}, "train.sh: model.layers: x must be a whole number"),
        ({"parallelism.overlap": 3}, "train.sh: parallelism.overlap: 3 must be a mapping of keys"),
    ],
)
def test_a_setting_that_its_key_cannot_have_is_said_by_its_key(settings, sentence):
    with pytest.raises(InputError) as error:
        read(settings=settings)
    assert str(error.value).startswith(sentence)


def test_a_setting_decides_over_a_value_that_is_none():
    found, job = read("--context-parallel-size x", settings={"parallelism.cp": 2})
    assert found.workload["parallelism"]["cp"] == job.parallelism.cp == 2


def test_a_layout_does_not_grow_without_end():
    for times in ("9" * 5000, "0" * 20 + "9" * 9):
        with pytest.raises(InputError, match=r"is too long|has "):
            written_out(f"Et*{times}L")


def test_a_pattern_of_experts_in_a_file_is_as_long_as_layers_may_be():
    text = "name: a\nnum_layers: 99999999999\nnum_experts: 4\nmoe_layer_freq: 2\n"
    with pytest.raises(InputError, match=r"model\.layers: 99999999999 must be at most 10000"):
        build(parse(text, "j.yaml"))


CONFIG = """
ENV_VARS: {NCCL_ALGO: Ring, CUDA_DEVICE_MAX_CONNECTIONS: 1}
TEST_TYPE: regular
MODEL_ARGS:
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --vocab-size: 50257
  --bf16: true
  --log-throughput: false
  --data-path: ${DATA_PATH}/text
"""
CONFIGS = {
    "flags, equal keys of which the last counts": (
        "  --num-layers: 12\n  --swiglu: true\n  --num-layers: 8\n",
        {"model.layers": 8, "model.activation": "swiglu", "training.precision": "bf16"},
    ),
    "lists in brackets, patterns in parentheses": (
        "  --num-layers: 8\n  --num-experts: 4\n  --moe-layer-freq: ([0]*3+[1]*5)\n  --recompute-granularity: selective\n"
        '  --recompute-modules: "[moe_act layernorm]"\n',
        {"model.dense_layers": 3, "training.recompute_modules": ["moe_act", "layernorm"]},
    ),
    "two sizes in one word": (
        "  --num-layers: 8\n  --context-parallel-size: 4\n  --cp-comm-type: a2a+p2p\n"
        "  --hierarchical-context-parallel-sizes: 2 2\n",
        {"parallelism.cp_inner": 2},
    ),
    "an encoder and a decoder": (
        "  --encoder-num-layers: 24\n  --decoder-num-layers: 12\n  --encoder-seq-length: 512\n  --decoder-seq-length: 128\n",
        {"model.layers": 12, "model.encoder_layers": 24, "training.seq": 128, "training.encoder_seq": 512},
    ),
    "state spaces in stages": (
        "  --hybrid-layer-pattern: M-M*|M-M-\n  --pipeline-model-parallel-size: 2\n",
        {
            "model.layers": 8,
            "model.mamba": {"heads": 16, "head_dim": 64, "state": 128, "groups": 8, "chunk": 128},
            "parallelism.layout": "Etttt|ttttL",
        },
    ),
    "delta nets": (
        "  --num-layers: 8\n  --linear-attention-freq: 4\n  --experimental-attention-variant: gated_delta_net\n"
        "  --linear-num-value-heads: 8\n  --linear-key-head-dim: 64\n  --linear-value-head-dim: 64\n",
        {"model.blocks": [{"mixer": "delta", "count": 3}, {}], "model.delta.heads": 8},
    ),
    "no experts to cut": ("  --num-layers: 8\n  --expert-tensor-parallel-size: 4\n", {"parallelism.expert_tp": None}),
}


def configured(more):
    return imported("gpt_8/model_config.yaml", CONFIG + more, ImportRequest({}, {}))


@pytest.mark.parametrize("case", CONFIGS)
def test_arguments_of_a_configuration_file_are_those_of_a_script(case):
    """In the form of Megatron-LM's tests/functional_tests, as its _run_training.sh reads it."""
    more, meant = CONFIGS[case]
    found = configured(more)
    for key, value in meant.items():
        here = found.workload
        for part in key.split("."):
            here = here.get(part)
        assert here == value, key
    assert build(parse(json.dumps(found.workload))).name == "gpt_8"
    assert found.not_modelled[0] == "NCCL_ALGO=Ring"
    assert "--log-throughput" not in found.ignored


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\n", "lacks MODEL_ARGS, a mapping of arguments such as --num-layers: 32; add it"),
        (CONFIG, "lacks --num-layers, which says model.layers"),
        (CONFIG + "  --hybrid-layer-pattern: M*/*E\n", "--hybrid-layer-pattern: 'M*/*E' has '/'; layers are M * - E"),
        (
            CONFIG + "  --num-layers: 8\n  --dsa-indexer-n-heads: 8\n",
            "--dsa-indexer-n-heads: layers of that kind are not built",
        ),
        (
            CONFIG + "  --num-layers: 8\n  --linear-attention-freq: 4\n",
            "--linear-attention-freq: is understood with experimental",
        ),
    ],
)
def test_a_configuration_file_that_cannot_be_said_names_the_key(text, sentence):
    with pytest.raises(InputError, match=re.escape(f"m.yaml: {sentence}")):
        imported("m.yaml", text, ImportRequest({}, {}))
