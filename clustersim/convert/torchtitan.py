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
from clustersim.convert.megatron_script import Imported, ImportRequest
from clustersim.convert.settings import Keys, ToolRefusal, ToolSettings, flat, nested, refuse, unsayable
from clustersim.convert.table import records, records_of
from clustersim.errors import InputError, suggest

ROWS = rows("torchtitan")
"""Rows of the table by setting."""
RENAMED = {row["earlier"]: row["setting"] for row in records("torchtitan_renamed")}
"""{setting of an earlier release: its name today}"""
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
    """Return {`name/flavor`: keys of a workload's `model`} of all flavors in the table."""
    families = records_of("torchtitan_models").items()
    flavors = {
        f"{name}/{flavor}": shapes for name, family in families if name != "base" for flavor, shapes in family.items()
    }
    return {name: shapes for name, shapes in flavors.items() if isinstance(shapes, dict)}


def imported(path: str, text: str, request: ImportRequest) -> Imported:
    """Return the workload of a torchtitan job config with the content `text`. Its degrees set the GPUs if `request` has none.

    Raises InputError with the setting that is unknown or cannot be expressed.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML ({error}); give a job config of torchtitan") from error
    present = flat(data, ROWS.__contains__)
    names = {RENAMED.get(name, name): name for name in present}
    for name in sorted(present.keys() - names.values()):
        raise InputError(f"{path}: {name} and {names[RENAMED.get(name, name)]} are one setting; keep one of them")
    values = {setting: present[name] for setting, name in names.items()}
    settings = ToolSettings(path, "torchtitan v0.2.2", ROWS, values, NEUTRAL, names=names)
    flavor, known = f"{settings['model.name']}/{settings['model.flavor']}", models()
    if flavor not in known:
        raise InputError(f"{path}: model.flavor: {flavor} is not known; {suggest(flavor, known)}")
    spec = settings.spec(flavor.replace("/", "-"), known[flavor])
    spec |= {
        **_batch(settings, request.gpus),
        **_training(settings),
        "parallelism.vpp": _chunks(settings, int(str(spec["model.layers"]))),
    }
    if spec["parallelism.pp"] == 1:
        del spec["parallelism.schedule"]
    return Imported(nested({**spec, **request.settings}), tuple(settings.ignored), tuple(settings.not_modelled), (), ())


def _batch(settings: ToolSettings, gpus: int | None) -> Keys:
    """Return the workload keys of replicas, sharding and batches. Raises InputError for unknown or contradictory sizes."""
    names = ("tensor", "pipeline", "context", "expert")
    tp, pp, cp, ep = (settings.number(f"{SPLIT}{name}_parallel_degree") for name in names)
    copies = settings.number(f"{SPLIT}data_parallel_replicate_degree")
    shard = settings.number(f"{SPLIT}data_parallel_shard_degree", -1)
    if shard < 1 and gpus is None:
        raise settings.error(f"{SPLIT}data_parallel_shard_degree", "is what the other degrees leave; give --gpus N")
    shard = shard if shard > 0 else max((gpus or 1) // (copies * cp * tp * pp), 1)
    local_batch = settings.number("training.local_batch_size")
    global_batch = settings.number("training.global_batch_size", -1)
    if pp > 1 and 0 < global_batch != local_batch * copies * shard:
        why = "runs the pipeline several times a step, which a workload cannot express"
        raise settings.error("training.global_batch_size", why)
    keys: Keys = {"training.global_batch": global_batch if global_batch > 0 else local_batch * copies * shard}
    keys["training.micro_batch"] = settings.number(f"{STAGES}microbatch_size") if pp > 1 else local_batch
    keys |= {"parallelism.dp": copies * shard, "parallelism.zero": 3 if shard * cp > 1 or copies == 1 else 0}
    keys |= {"parallelism.fsdp.shard": shard * cp} if shard * cp > 1 and copies > 1 else {}
    keys |= {"parallelism.sequence_parallel": tp > 1, "parallelism.keep_gathered": tp > 1}
    return keys | ({"parallelism.expert_tp": settings[f"{SPLIT}expert_tensor_parallel_degree"]} if ep > 1 else {})


def _chunks(settings: ToolSettings, layers: int) -> int:
    """Return the number of stages per pipeline rank. Raises InputError if the stages do not divide over the ranks."""
    pp, name = settings.number(f"{STAGES}degree"), f"{STAGES}layers_per_stage"
    ends = sum(settings.number(f"{STAGES}{end}_stage_less_layers", 0) for end in ("first", "last"))
    single = settings[f"{STAGES}schedule"] in ("1F1B", "GPipe") or pp == 1
    stages = (
        math.ceil((layers + ends) / settings.number(name)) if settings[name] and pp > 1 else pp * (1 if single else 2)
    )
    if stages % pp:
        raise settings.error(name, f"makes {stages} stages, no multiple of pp {pp}")
    return stages // pp


def _training(settings: ToolSettings) -> Keys:
    """Return the workload keys of precision, kernels, recomputation and offloading. Raises InputError for unsupported ones."""
    keys: Keys = {f"training.{key}": value for key, value in USUAL.items()}
    names = settings.several("model.converters")
    precisions = [precision for precision, converters in CONVERTERS.items() if set(converters) & set(names)]
    if len(precisions) > 1 or any(name not in CONVERTERS["fp8"] + CONVERTERS["mxfp8"] for name in names):
        raise settings.error("model.converters", "cannot be expressed; write those of one precision, float8 or mx")
    keys |= {"training.precision": precisions[0]} if precisions else {}
    keys |= {"training.fp8_scaling": ROWS[RECIPE].read(settings[RECIPE])} if precisions == ["fp8"] else {}
    compiled = settings.several("compile.components") if settings["compile.enable"] is True else []
    keys["training.kernels"] = "fused" if "model" in compiled else "eager"
    keys["training.cross_entropy"] = "fused" if "loss" in compiled else "eager"
    mode, option = settings["activation_checkpoint.mode"], str(settings[OPTION])
    keys["training.recompute"] = "none" if mode == "none" else "full"
    if mode == "selective" and option.isdecimal():
        keys["training.recompute_every"] = int(option)
    elif mode == "selective" and option != "op":
        raise settings.error(OPTION, "cannot be expressed; write op or a number")
    elif mode == "selective":
        keys["training.recompute_saves"] = ["op"]
    elif mode == "full" and ("model" in compiled or settings["activation_checkpoint.early_stop"] is True):
        keys["training.recompute_saves"] = ["mlpwo"]  # what no backward pass reads
    return keys | (
        {"training.offload.optimizer_states": 1.0} if settings["training.enable_cpu_offload"] is True else {}
    )


def written(spec: Workload) -> Keys:
    """Return the nested settings of a workload with numeric degrees. Raises InputError for a key without a setting."""
    refuse(_refused(spec))
    flavor = next((name for name, shapes in models().items() if _shapes(Model(**shapes)) == _shapes(spec.model)), None)  # type: ignore[arg-type]
    if flavor is None:
        raise unsayable("model", "no flavor of torchtitan has these shapes")
    split, train, dp = spec.parallelism, spec.training, int(spec.parallelism.dp)
    shard = (split.fsdp.shard or dp * split.cp) // split.cp if split.zero else 1
    converters = CONVERTERS.get(train.precision, ())[: 2 if spec.model.experts else 1]
    parts = ["model"] * (train.kernels == "fused") + ["loss"] * (train.cross_entropy == "fused")
    selective = train.recompute != "none" and (train.recompute_saves == ("op",) or train.recompute_every)
    settings: Keys = dict(zip(("model.name", "model.flavor"), flavor.split("/"), strict=True))
    settings |= {"model.converters": list(converters), "training.max_norm": float(train.clip_gradients)}
    settings["training.local_batch_size"] = train.global_batch // dp if split.pp > 1 else train.micro_batch
    settings |= ToolSettings("", "", ROWS, {}).plain(spec)
    settings |= {f"{SPLIT}data_parallel_{kind}_degree": n for kind, n in (("replicate", dp // shard), ("shard", shard))}
    settings |= {f"{SPLIT}expert_tensor_parallel_degree": split.etp if split.ep > 1 else 1}
    settings["compile.enable"] = bool(parts)
    settings["activation_checkpoint.mode"] = "selective" if selective else train.recompute
    settings["activation_checkpoint.early_stop"] = train.recompute_saves == ("mlpwo",)
    if split.pp > 1:
        settings |= {f"{STAGES}layers_per_stage": _per_stage(spec), f"{STAGES}microbatch_size": train.micro_batch}
    settings |= {"compile.components": parts} if parts else {}
    settings |= {OPTION: str(train.recompute_every or "op")} if selective else {}
    settings |= {f"{name}.fqns": ["experts"] for name in converters[1:]}
    return nested(settings | ({RECIPE: ROWS[RECIPE].write(train.fp8_scaling)} if train.precision == "fp8" else {}))


def _per_stage(spec: Workload) -> int:
    """Return the largest number of layers per stage; embedding and loss are layers if the workload counts them so."""
    split = spec.parallelism
    layers = spec.model.layers + split.account_for_embedding + split.account_for_loss
    return math.ceil(layers / (split.pp * split.vpp))


def _refused(spec: Workload) -> Iterator[ToolRefusal]:
    """Yield (workload key, whether torchtitan cannot express its value, what torchtitan supports)."""
    split, train, offload = spec.parallelism, spec.training, spec.training.offload
    yield "training.main_params", train.main_params not in (None, train.moments), "weights have the type of the moments"
    shards = "torchtitan shards parameters too, 3, or replicates them, 0 without cp"
    yield "parallelism.zero", split.zero not in (0, 3) or (split.zero == 0 and split.cp > 1) or split.zero3, shards
    heads = spec.model.kv_heads or spec.model.heads
    yield "parallelism.tp", not spec.model.mla and heads % split.tp, f"tp divides the {heads} key/value heads"
    partly = split.ep > 1 and split.etp not in (1, split.tp)
    yield "parallelism.expert_tp", partly, "an expert is cut by tp or not at all"
    scaled = train.precision != "fp8" or ROWS[RECIPE].write(train.fp8_scaling)
    yield "training.fp8_scaling", not scaled, "it has current and row"
    blocks = "it recomputes whole blocks, each or every n-th, or saves op"
    yield "training.recompute", train.recompute == "selective" or train.recompute_method == "block", blocks
    yield "training.recompute_saves", train.recompute_saves not in ((), ("op",), ("mlpwo",)), "it saves op, or nothing"
    together = offload.optimizer_states == float(offload.parameters) and not offload.activations
    yield "training.offload", not together, "parameters and optimizer are offloaded together, or neither"
    uneven = split.layout or split.first_layers or split.last_layers or split.partition != "layers"
    yield "parallelism.layout", uneven and split.pp > 1, "stages share the layers evenly"
    paired = split.overlap.ep == "microbatch" and split.pp == 1
    yield "parallelism.overlap.ep", paired, "passes of two microbatches overlap in pipelines alone"
    stages = math.ceil((spec.model.layers + split.account_for_embedding + split.account_for_loss) / _per_stage(spec))
    yield "parallelism.vpp", stages != split.pp * split.vpp, f"{_per_stage(spec)} layers a stage make {stages} stages"


def _shapes(model: Model) -> Keys:
    """Return {key: value} of a model's shapes with defaults filled in, without keys that change no weight."""
    defaults: Keys = {"kv_heads": model.heads, "head_dim": model.hidden // model.heads, "ffn": 4 * model.hidden}
    defaults |= {"qkv_bias": model.bias, **dict.fromkeys(("shared_ffn", "dense_ffn"), model.ffn)}
    defaults["router_group_topk"] = model.router_groups
    unused = {"max_positions", "vocab_multiple"} | ({"kv_heads", "head_dim"} if model.mla else set())
    return {
        key: defaults.get(key) if value is None else value for key, value in model.model_dump(exclude=unused).items()
    }
