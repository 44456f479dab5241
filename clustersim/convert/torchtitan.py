"""torchtitan's job configs in TOML (pytorch/torchtitan v0.2.2, torchtitan/config/job_config.py): read as a workload, and written.

`tables/torchtitan.csv` has the settings for single keys; here are those for several keys. A model is a flavor of
`tables/torchtitan_models.yaml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator

from clustersim.config.workload import Model, Workload
from clustersim.convert.conversions import rows
from clustersim.convert.megatron_script import Imported
from clustersim.convert.settings import Keys, ToolRefusal, ToolSettings, flat, nested, refuse, unsayable
from clustersim.convert.table import records_of
from clustersim.errors import InputError, suggest

ROWS = rows("torchtitan")
CONVERTERS = {"fp8": ("quantize.linear.float8", "quantize.grouped_mm.float8", "float8")}
CONVERTERS["mxfp8"] = ("quantize.linear.mx", "quantize.grouped_mm.mx", "mx")
"""Model converters by precision: for linears, experts' grouped GEMMs, and the older name for linears."""
RECIPE, OPTION = "quantize.linear.float8.recipe_name", "activation_checkpoint.selective_ac_option"
NEUTRAL: tuple[str, ...] = ("job", "profiling", "metrics", "lr_scheduler", "checkpoint")
NEUTRAL += ("comm", "memory_estimation", "validation", "debug")
"""Sections without effect on the time of a step."""
USUAL: Keys = {"norm_kernels": "torch", "fused_projections": False, "framework": "torchtitan"}
"""Training keys of every torchtitan model (clustersim/frameworks/torchtitan.yaml)."""
SPLIT, STAGES = "parallelism.", "parallelism.pipeline_parallel_"


def models() -> dict[str, Keys]:
    """Return {`name/flavor`: shapes} of all flavors."""
    families = records_of("torchtitan_models").items()
    own = {f"{name}/{flavor}": one for name, found in families if name != "base" for flavor, one in found.items()}
    return {name: one for name, one in own.items() if isinstance(one, dict)}


def imported(path: str, text: str, gpus: int | None) -> Imported:
    """Return the workload of a job config on a number of GPUs. Raises InputError with the setting that cannot be expressed."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML ({error}); give a job config of torchtitan") from error
    said = ToolSettings(path, "torchtitan v0.2.2", ROWS, flat(data, ROWS.__contains__), NEUTRAL)
    flavor, known = f"{said['model.name']}/{said['model.flavor']}", models()
    if flavor not in known:
        raise InputError(f"{path}: model.flavor: {flavor} is not known; {suggest(flavor, known)}")
    spec = said.spec(flavor.replace("/", "-"), known[flavor])
    spec |= {**_batch(said, gpus), **_training(said), "parallelism.vpp": _chunks(said, int(str(spec["model.layers"])))}
    if spec["parallelism.pp"] == 1:
        del spec["parallelism.schedule"]
    return Imported(nested(spec), tuple(said.ignored), tuple(said.not_modelled), (), ())


def _batch(said: ToolSettings, gpus: int | None) -> Keys:
    """Return the keys of replicas, of sharding over them, and of batches."""
    names = ("tensor", "pipeline", "context", "expert")
    tp, pp, cp, ep = (said.number(f"{SPLIT}{name}_parallel_degree") for name in names)
    copies = said.number(f"{SPLIT}data_parallel_replicate_degree")
    shard = said.number(f"{SPLIT}data_parallel_shard_degree", -1)
    if shard < 1 and gpus is None:
        raise said.error(f"{SPLIT}data_parallel_shard_degree", "is what the other degrees leave; give --gpus N")
    shard = shard if shard > 0 else max((gpus or 1) // (copies * cp * tp * pp), 1)
    local, whole = said.number("training.local_batch_size"), said.number("training.global_batch_size", -1)
    if pp > 1 and 0 < whole != local * copies * shard:
        why = "runs the pipeline several times a step, which a workload cannot express"
        raise said.error("training.global_batch_size", why)
    found: Keys = {"training.global_batch": whole if whole > 0 else local * copies * shard}
    found["training.micro_batch"] = said.number(f"{STAGES}microbatch_size") if pp > 1 else local
    found |= {"parallelism.dp": copies * shard, "parallelism.zero": 3 if shard * cp > 1 or copies == 1 else 0}
    found |= {"parallelism.fsdp.shard": shard * cp} if shard * cp > 1 and copies > 1 else {}
    found |= {"parallelism.sequence_parallel": tp > 1, "parallelism.keep_gathered": tp > 1}
    return found | ({"parallelism.expert_tp": said[f"{SPLIT}expert_tensor_parallel_degree"]} if ep > 1 else {})


def _chunks(said: ToolSettings, layers: int) -> int:
    """Return the number of stages per pipeline rank."""
    pp, name = said.number(f"{STAGES}degree"), f"{STAGES}layers_per_stage"
    ends = sum(said.number(f"{STAGES}{end}_stage_less_layers", 0) for end in ("first", "last"))
    single = said[f"{STAGES}schedule"] in ("1F1B", "GPipe") or pp == 1
    stages = math.ceil((layers + ends) / said.number(name)) if said[name] and pp > 1 else pp * (1 if single else 2)
    if stages % pp:
        raise said.error(name, f"makes {stages} stages, no multiple of pp {pp}")
    return stages // pp


def _training(said: ToolSettings) -> Keys:
    """Return the keys of precision, kernels, recomputation and offloading."""
    found: Keys = {f"training.{key}": value for key, value in USUAL.items()}
    names = said.several("model.converters")
    meant = [precision for precision, own in CONVERTERS.items() if set(own) & set(names)]
    if len(meant) > 1 or any(name not in CONVERTERS["fp8"] + CONVERTERS["mxfp8"] for name in names):
        raise said.error("model.converters", "cannot be expressed; write those of one precision, float8 or mx")
    found |= {"training.precision": meant[0]} if meant else {}
    found |= {"training.fp8_scaling": ROWS[RECIPE].read(said[RECIPE])} if meant == ["fp8"] else {}
    compiled = said.several("compile.components") if said["compile.enable"] is True else []
    found["training.kernels"] = "fused" if "model" in compiled else "eager"
    found["training.cross_entropy"] = "fused" if "loss" in compiled else "eager"
    mode, option = said["activation_checkpoint.mode"], str(said[OPTION])
    found["training.recompute"] = "none" if mode == "none" else "full"
    if mode == "selective" and option.isdecimal():
        found["training.recompute_every"] = int(option)
    elif mode == "selective" and option != "op":
        raise said.error(OPTION, "cannot be expressed; write op or a number")
    elif mode == "selective":
        found["training.recompute_saves"] = ["op"]
    elif mode == "full" and ("model" in compiled or said["activation_checkpoint.early_stop"] is True):
        found["training.recompute_saves"] = ["mlpwo"]  # what no backward pass reads
    return found | ({"training.offload.optimizer_states": 1.0} if said["training.enable_cpu_offload"] is True else {})


def written(spec: Workload) -> Keys:
    """Return the settings of a placed workload by section, for `toml`. Raises InputError for a key without one."""
    refuse(_refused(spec))
    flavor = next((name for name, shapes in models().items() if _shapes(Model(**shapes)) == _shapes(spec.model)), None)  # type: ignore[arg-type]
    if flavor is None:
        raise unsayable("model", "no flavor of torchtitan has these shapes")
    one, train, dp = spec.parallelism, spec.training, int(spec.parallelism.dp)
    shard = (one.fsdp.shard or dp * one.cp) // one.cp if one.zero else 1
    own = CONVERTERS.get(train.precision, ())[: 2 if spec.model.experts else 1]
    parts = ["model"] * (train.kernels == "fused") + ["loss"] * (train.cross_entropy == "fused")
    selective = train.recompute != "none" and (train.recompute_saves == ("op",) or train.recompute_every)
    found: Keys = dict(zip(("model.name", "model.flavor"), flavor.split("/"), strict=True))
    found |= {"model.converters": list(own), "training.max_norm": float(train.clip_gradients)}
    found["training.local_batch_size"] = train.global_batch // dp if one.pp > 1 else train.micro_batch
    found |= ToolSettings("", "", ROWS, {}).plain(spec)
    found |= {f"{SPLIT}data_parallel_{kind}_degree": n for kind, n in (("replicate", dp // shard), ("shard", shard))}
    found |= {f"{SPLIT}expert_tensor_parallel_degree": one.etp if one.ep > 1 else 1, "compile.enable": bool(parts)}
    found["activation_checkpoint.mode"] = "selective" if selective else train.recompute
    found["activation_checkpoint.early_stop"] = train.recompute_saves == ("mlpwo",)
    if one.pp > 1:
        found |= {f"{STAGES}layers_per_stage": _per_stage(spec), f"{STAGES}microbatch_size": train.micro_batch}
    found |= {"compile.components": parts} if parts else {}
    found |= {OPTION: str(train.recompute_every or "op")} if selective else {}
    found |= {f"{name}.fqns": ["experts"] for name in own[1:]}
    return nested(found | ({RECIPE: ROWS[RECIPE].write(train.fp8_scaling)} if train.precision == "fp8" else {}))


def _per_stage(spec: Workload) -> int:
    """Return the largest number of layers per stage, counting the ends as layers if they count."""
    one = spec.parallelism
    return math.ceil((spec.model.layers + one.account_for_embedding + one.account_for_loss) / (one.pp * one.vpp))


def _refused(spec: Workload) -> Iterator[ToolRefusal]:
    """Yield (key, whether torchtitan lacks a setting for its value, what it supports)."""
    one, train, offload = spec.parallelism, spec.training, spec.training.offload
    yield "training.main_params", train.main_params not in (None, train.moments), "weights have the type of the moments"
    shards = "torchtitan shards parameters too, 3, or replicates them, 0 without cp"
    yield "parallelism.zero", one.zero not in (0, 3) or (one.zero == 0 and one.cp > 1) or one.zero3, shards
    heads = spec.model.kv_heads or spec.model.heads
    yield "parallelism.tp", not spec.model.mla and heads % one.tp, f"tp divides the {heads} key/value heads"
    yield "parallelism.expert_tp", one.ep > 1 and one.etp not in (1, one.tp), "an expert is cut by tp or not at all"
    scaled = train.precision != "fp8" or ROWS[RECIPE].write(train.fp8_scaling)
    yield "training.fp8_scaling", not scaled, "it has current and row"
    blocks = "it recomputes whole blocks, each or every n-th, or saves op"
    yield "training.recompute", train.recompute == "selective" or train.recompute_method == "block", blocks
    yield "training.recompute_saves", train.recompute_saves not in ((), ("op",), ("mlpwo",)), "it saves op, or nothing"
    together = offload.optimizer_states == float(offload.parameters) and not offload.activations
    yield "training.offload", not together, "parameters and optimizer are offloaded together, or neither"
    uneven = one.layout or one.first_layers or one.last_layers or one.partition != "layers"
    yield "parallelism.layout", uneven and one.pp > 1, "stages share the layers evenly"
    paired = one.overlap.ep == "microbatch" and one.pp == 1
    yield "parallelism.overlap.ep", paired, "passes of two microbatches overlap in pipelines alone"
    stages = math.ceil((spec.model.layers + one.account_for_embedding + one.account_for_loss) / _per_stage(spec))
    yield "parallelism.vpp", stages != one.pp * one.vpp, f"{_per_stage(spec)} layers a stage make {stages} stages"


def _shapes(model: Model) -> Keys:
    """Return the shapes of a model with defaults filled in, without keys that change no weight."""
    usual: Keys = {"kv_heads": model.heads, "head_dim": model.hidden // model.heads, "ffn": 4 * model.hidden}
    usual |= {"qkv_bias": model.bias, **dict.fromkeys(("shared_ffn", "dense_ffn"), model.ffn)}
    usual["router_group_topk"] = model.router_groups
    unused = {"max_positions", "vocab_multiple"} | ({"kv_heads", "head_dim"} if model.mla else set())
    return {key: usual.get(key) if value is None else value for key, value in model.model_dump(exclude=unused).items()}
