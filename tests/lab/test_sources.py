"""Where measurements come from: checkouts in their true layout, own files beside tables, GPUs left out, resumed training."""

import json

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from clustersim.cli.lab import app
from clustersim.errors import DataError, InputError
from clustersim.lab.data import sources, tables
from clustersim.lab.data.checkouts import aiconfigurator, neusight
from clustersim.lab.data.sources import ATTENTION, FP32, GEMM, GROUPED
from clustersim.lab.data.tables import test_samples as samples_to_judge
from clustersim.lab.train import dataset, training
from clustersim.lab.train.learners import linear
from clustersim.predictors.classes import SIMT

FACTS = (
    "Torch Version,CUDNN Version,Kernel Name,Warps per SM,Blocks per SM,Grid x,Grid y,Grid z,Block x,Block y,Block z"
)
GEMM_HEAD = f"OPName,Latency,Device,{FACTS},CUDA Version,Kernels,B,M,N,K\n"
VECTOR_HEAD = f"OPName,Latency,Device,{FACTS},CUDA Version,B,H,large\n"
FILL = 'p2.1.0,8902,"void at::kernel<4, float>(int, float)",1.0,1.0,1,1,1,64,1,1,cu121'


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def checkout(tmp_path):
    """A folder that is laid out as sitar-lab/NeuSight is."""
    root = tmp_path / "NeuSight"
    base = root / "scripts/asplos/data/dataset"
    for op, sizes in (("bmm", "13,27,15,29"), ("linear", "1,1024,2560,2560")):
        row = f"{op},0.0354,Tesla T4,{FILL},;volta_sgemm_64x64_nn,{sizes}\n"
        write(base / f"train/collect/{op}/p2.1.0/Tesla T4.csv", GEMM_HEAD + row)
        write(base / f"test/{op}.csv", GEMM_HEAD + row.replace("Tesla T4", "NVIDIA L4"))
    write(base / "train/collect/bmm/p2.1.0/Tesla P4.csv", GEMM_HEAD + f"bmm,0.05,Tesla P4,{FILL},;k,1,8,8,8\n")
    write(base / "train/collect/conv/p2.1.0/Tesla P4.csv", "OPName,Latency\nconv,1\n")
    for name, op in (("elem", "add"), ("softmax", "softmax"), ("ln", "ln")):
        write(base / f"train/{name}.csv", VECTOR_HEAD + f"{op},0.767,Tesla T4,{FILL},32768,1600,True\n")
        write(base / f"test/{name}.csv", VECTOR_HEAD + f"{op},0.767,NVIDIA L4,{FILL},32768,1600,True\n")
        write(base / f"train/collect/{op}/p2.1.0/Tesla T4.csv", VECTOR_HEAD + f"{op},0.7,Tesla T4,{FILL},64,512,True\n")
        write(base / f"train/collect/{op}.csv", "a merged copy that is not read")
    amd = root / "scripts/asplos/data/dataset_amd/test/collect/linear/p2.4.1/AMD Instinct MI100.csv"
    write(amd, GEMM_HEAD + f"linear,1.5,AMD Instinct MI100,{FILL},;k,1,64,64,64\n")
    return root


GEMM_PERF = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
ATTENTION_PERF = (
    "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,beam_width,"
    "attn_dtype,kv_cache_dtype,step,window_size,latency\n"
)
MOE_PERF = (
    "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,"
    "moe_tp_size,moe_ep_size,distribution,latency\n"
)


@pytest.fixture
def systems(tmp_path):
    """A folder that is laid out as ai-dynamo/aiconfigurator is: text in older versions, parquet in newer ones."""
    root = tmp_path / "aiconfigurator"
    base = root / "src/aiconfigurator/systems/data"
    for version, latency in (("1.0.0", 0.9), ("1.2.0rc5", 0.8), ("1.3.0rc10", 0.7)):
        row = f"TRTLLM,{version},NVIDIA H100 80GB HBM3,gemm,torch_flow,bfloat16,4096,8192,8192,{latency}\n"
        write(base / f"h100_sxm/trtllm/{version}/gemm_perf.txt", GEMM_PERF + row)
    row = {"kernel_source": "x", "gemm_dtype": "fp8", "m": 256, "n": 512, "k": 512, "latency": 0.01}
    path = base / "b200_sxm/vllm/0.19.0/gemm_perf.parquet"
    path.parent.mkdir(parents=True)
    pl.DataFrame([row]).write_parquet(path)
    write(base / "some_future_board/vllm/0.1/gemm_perf.txt", GEMM_PERF + "V,1,x,gemm,k,bfloat16,1,1,1,1\n")
    common = "VLLM,0.20.0,NVIDIA A100-SXM4-80GB,context_attention,flash_attention"
    rows = [
        f"{common},2,1024,8,4,128,1,bfloat16,bfloat16,{step},{window},0.0509\n"
        for step, window in ((0, 0), (5, 0), (0, 128))
    ]
    write(base / "a100_sxm/vllm/0.20.0/context_attention_perf.txt", ATTENTION_PERF + "".join(rows))
    moe = "VLLM,0.20.0,x,moe,vllm_fused_moe,bfloat16,128,4096,14336,2,8,1,1,{},0.5\n"
    write(base / "a100_sxm/vllm/0.20.0/moe_perf.txt", MOE_PERF + moe.format("balanced") + moe.format("power_law_1.2"))
    return root


def test_neusights_checkout_gives_the_tidy_table(checkout):
    frame = neusight.table(neusight.root(checkout), FP32)
    counts = dict(
        frame.group_by("vendor", "split", "group")
        .len()
        .select(pl.concat_str("vendor", "split", "group"), "len")
        .iter_rows()
    )
    assert counts["nvidiatrainbmm"] == 2
    assert counts["nvidiatrainlinear"] == counts["nvidiatestbmm"] == counts["amdtestlinear"] == 1
    assert counts["nvidiatraincollect_add"] == counts["nvidiatrainelem"] == 1
    [row] = frame.filter((pl.col("op") == "bmm") & (pl.col("gpu") == "Tesla T4")).iter_rows(named=True)
    assert (row["b"], row["m"], row["n"], row["k"], row["h"]) == (13, 27, 15, 29, None)
    assert row["latency_s"] == pytest.approx(0.0354e-3)


def test_neusights_checkout_is_read_like_the_table(checkout):
    train, test = (tables.fp32(checkout, split) for split in ("train", "test"))
    assert {*train.table.kind} == {*test.table.kind} == {"linear", "bmm", "elementwise", "softmax", "layernorm"}
    assert {*test.gpu} == {"NVIDIA L4", "AMD Instinct MI100"}
    assert sources.holds(checkout, FP32)
    assert not sources.holds(checkout, GEMM)


def test_every_part_of_a_checkout_can_be_named(checkout, systems):
    for below in ("", "scripts/asplos/data"):
        assert sources.named_data([checkout / below])
    for below in ("", "src/aiconfigurator/systems", "src/aiconfigurator/systems/data"):
        assert sources.holds(systems / below, ATTENTION)


def test_aiconfigurators_checkout_gives_medians_over_versions(systems):
    root = aiconfigurator.root(systems)
    frame = aiconfigurator.table(root, GEMM)
    assert frame["gpu"].to_list() == ["b200_sxm", "h100_sxm"]
    row = frame.row(1, named=True)
    assert [row[key] for key in ("latency_s", "low_s", "high_s", "samples")] == pytest.approx([8e-4, 7e-4, 9e-4, 3])
    assert tables.gemm(systems).table.dtype.tolist() == ["fp8", "bf16"]
    [attention] = aiconfigurator.table(root, ATTENTION).iter_rows(named=True)
    assert (attention["seq"], attention["heads"], attention["kv_heads"]) == (1024, 8, 4)
    assert len(tables.attention(systems)) == 1
    assert aiconfigurator.table(root, GROUPED)["latency_s"].to_list() == [5e-4]


def test_what_git_lfs_left_out_is_said(systems):
    path = systems / "src/aiconfigurator/systems/data/h100_sxm/trtllm/1.0.0/gemm_perf.txt"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1db7\nsize 79676\n")
    with pytest.raises(DataError, match="is a Git LFS pointer; run `git lfs pull` in the checkout"):
        tables.gemm(systems)
    path.write_text(GEMM_PERF.replace("latency", "time") + "a,b,c,d,e,bfloat16,1,1,1,1\n")
    with pytest.raises(DataError, match=r"gemm_perf.txt: has no column latency"):
        tables.gemm(systems)
    path.write_text(GEMM_PERF + "a,b,c,d,e,bfloat16,1,1,1,1\na,b,c,d,e,bfloat16,one,1,1,1\n")
    with pytest.raises(DataError, match=r"gemm_perf.txt: row 2: m is 'one'; it should be a number"):
        tables.gemm(systems)


def test_places_that_hold_nothing_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no measurements; it should have .* or a checkout of ai-dynamo"):
        sources.named_data([tmp_path])
    with pytest.raises(DataError, match="no such file or folder"):
        sources.named_data([tmp_path / "none"])
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="neither a folder nor a CSV or parquet file"):
        sources.named_data([tmp_path / "notes.txt"])


def test_places_add_up(data, checkout, systems):
    both = sources.Data((checkout, systems))
    assert len(tables.gemm(sources.Data((data, systems)))) == len(tables.gemm(data)) + 2
    assert {*samples_to_judge(both)} == {*SIMT, "half/linear", "narrow/linear", "half/flash_attention"}
    assert {*sources.digests(both)} == {"checkout of sitar-lab/NeuSight", "checkout of ai-dynamo/aiconfigurator"}


OWN = """gpu,kind,op,dtype,m,n,k,latency_s
h200,linear,forward,bf16,4096,8192,8192,8.1e-4
h100,linear,dgrad,bf16,4096,4096,4096,2e-4
"""


def test_own_measurements_join_training_and_are_judged(data, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text(OWN)
    without, joined = (dataset.splits(d, 0)["half/linear"].train for d in (data, sources.Data((data, own))))
    assert len(joined) == len(without) + 2
    judged = samples_to_judge(own)
    assert {*judged} == {"half/linear"}
    done = CliRunner().invoke(app, ["evaluate", "--data", str(own), "-p", "roofline", "--json"])
    assert done.exit_code == 0, done.output
    assert '"h200-sxm"' in done.output


def test_own_measurements_beside_the_tables_are_found(tmp_path):
    (tmp_path / "measurements").mkdir()
    (tmp_path / "measurements/a.csv").write_text(OWN)
    assert len(samples_to_judge(sources.named_data([tmp_path]))["half/linear"]) == 2
    (tmp_path / "measurements/a.csv").write_text(OWN.splitlines()[0] + "\n")
    with pytest.raises(DataError, match="has no kernel measured in a burst"):
        samples_to_judge(tmp_path)


def test_leaving_out_an_unknown_gpu_is_refused(data):
    with pytest.raises(InputError, match=r"--leave-out: unknown GPU 'h1000'; did you mean 'h100'\?"):
        sources.named_data([data], ["h1000"])


def test_leaving_out_all_gpus_leaves_nothing_to_learn(data):
    with pytest.raises(
        DataError, match=r"no measured kernels of fp32/linear, .* without t4, a100-pcie-40gb; the tables must"
    ):
        dataset.splits(sources.named_data([data], ["t4", "a100-pcie-40gb"]), 0)


def test_an_interrupted_training_goes_on(data, tmp_path):
    whole, scratch, learned = linear.train(data), tmp_path / "parts", []

    def stop(name, samples, seed, progress):
        learned.append(name)
        if len(learned) == 4:
            raise KeyboardInterrupt
        return linear.LEARNER.fit(name, samples, seed, progress)

    with pytest.raises(KeyboardInterrupt):
        training.learn(linear.LEARNER._replace(fit=stop), data, 0, lambda *_: None, scratch)
    kept = len(list(scratch.glob("*.npz")))
    assert kept == 3
    next(scratch.glob("*.npz")).write_bytes(b"cut off")
    learned.clear()
    resumed = training.learn(linear.LEARNER._replace(fit=_counting(learned)), data, 0, lambda *_: None, scratch)
    assert len(learned) == len(list(scratch.glob("*.npz"))) - kept + 1
    assert resumed.meta == whole.meta
    for kind, parameters in whole.classes.items():
        for key, value in parameters.items():
            np.testing.assert_array_equal(value, resumed.classes[kind][key])
    training.discard(scratch)
    assert not scratch.exists()


def _counting(learned):
    def fit(name, samples, seed, progress):
        learned.append(name)
        return linear.LEARNER.fit(name, samples, seed, progress)

    return fit


def test_what_is_kept_depends_on_seed_and_samples(data, tmp_path):
    method = training.resumable(linear.LEARNER, tmp_path)
    samples = dataset.splits(data, 0)["fp32/linear"].train
    for seed, some in ((0, samples), (1, samples), (0, samples.select(slice(1, None))), (0, samples)):
        method.fit("fp32/linear", some, seed, lambda *_: None)
    assert len(list(tmp_path.iterdir())) == 3


def test_training_by_command_leaves_no_scratch(data, tmp_path):
    out = tmp_path / "weights.safetensors"
    arguments = ["train", "linear", "--data", str(data), "--leave-out", "a100_sxm", "--out", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    judged = ["evaluate", "--data", str(data), "-p", "linear", "--weights", str(out), "--json"]
    rows = json.loads(CliRunner().invoke(app, judged).output)["errors"]
    assert {row["new"] for row in rows} == {"GPU", "nothing"}
    assert {"predictor", "kind", "gpu", "mean", "median", "p90", "samples"} <= set(rows[0])
    for wrong in (["--install"], ["--leave-out", "h1000"]):
        assert CliRunner().invoke(app, [*arguments[:-2], *wrong]).exit_code != 0


def test_networks_of_single_gpus_are_kept_too(tmp_path):
    learned = []

    def own(parameters, samples, seed, progress):
        learned.append(seed)
        return {"own.x": parameters["a"] + seed}

    (tmp_path / "own.csv").write_text(OWN)
    samples = samples_to_judge(tmp_path / "own.csv")["half/linear"]
    method = training.resumable(linear.LEARNER._replace(own=(("half/linear",), own)), tmp_path / "parts")
    assert method.own[0] == ("half/linear",)
    for value, seed in ((1.0, 0), (1.0, 0), (2.0, 0), (1.0, 3)):
        found = method.own[1]({"a": np.array(value)}, samples, seed, lambda *_: None)
        assert found["own.x"] == value + seed
    assert learned == [0, 0, 3]
    assert training.resumable(linear.LEARNER, tmp_path).own is None
