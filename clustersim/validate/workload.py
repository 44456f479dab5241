"""The workload of a measured run, as a workload file would say it: its own columns first, then its framework's defaults."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from clustersim.errors import UnknownNameError
from clustersim.frameworks import Framework, find
from clustersim.hardware import gpus
from clustersim.validate.models import ModelFamily, family, tied
from clustersim.validate.refusal import Refusal
from clustersim.validate.runs import Run

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
RECOMPUTE = ("none", "selective", "full")
NEEDED = ("layers", "hidden", "heads", "seq", "vocab", "global_batch", "tp", "pp", "dp")


def workload(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return a workload file as plain data, and what was assumed, with where it is from. Raises Refusal."""
    found, framework = _refuse(run)
    draft = _Draft(run, framework)
    draft.model(found)
    draft.training()
    draft.parallelism()
    return draft.spec, draft.assumed


def framework_of(run: Run) -> Framework:
    """Return the framework of a run. Raises Refusal for one that is not in the table."""
    found = find(run.framework, run.year)
    if found is None:
        raise Refusal("unknown framework", f"framework {run.framework!r} is not in the table of defaults")
    return found


def _refuse(run: Run) -> tuple[ModelFamily, Framework]:
    """Raise Refusal for what no workload can say; the first reason in this order counts."""
    found = family(run.model)
    if found is None:
        raise Refusal("unknown model", f"{run.model!r} is of no known family of models")
    if isinstance(run.kv_heads, str) and found.name != "deepseek":
        what = f"kv_heads {run.kv_heads}: the widths of latents are those of DeepSeek and Kimi alone"
        raise Refusal("multi-latent attention", what)
    for name in (*NEEDED, *(("experts", "topk", "ffn_hidden") if found.layers else ())):
        if getattr(run, name) is None:
            raise Refusal("incomplete source", f"the source does not say {name}")
    framework = framework_of(run)
    _refuse_sharding(run, framework)
    if run.precision not in PRECISIONS:
        raise Refusal("precision", f"precision {run.precision or 'blank'}: only {', '.join(PRECISIONS)} are modelled")
    if run.recompute and run.recompute not in RECOMPUTE:
        raise Refusal("recompute", f"recompute {run.recompute}: only {', '.join(RECOMPUTE)} are modelled")
    _refuse_layout(run, framework)
    return found, framework


def _refuse_sharding(run: Run, framework: Framework) -> None:
    """Raise Refusal for ZeRO-2 in a pipeline but where one reduction a step, under the backward pass, is all there is."""
    zero = framework.value("parallelism.zero") if run.zero_stage is None else run.zero_stage
    if zero == 2 and (run.pp or 1) > 1 and _reduces_often(run, framework):
        raise Refusal("ZeRO-2", f"zero_stage 2 with pp {run.pp}: gradients reduced between passes are not modelled")


def _reduces_often(run: Run, framework: Framework) -> bool:
    """Return whether gradients that are sharded as they come are reduced elsewhere than under the one backward pass."""
    micro = run.micro_batch or framework.value("training.micro_batch") or 1
    overlap = run.overlap_grad_reduce
    under = framework.value("parallelism.overlap.grad_reduce") if overlap is None else overlap
    return run.global_batch != micro * (run.dp or 1) or not under


def _refuse_layout(run: Run, framework: Framework) -> None:
    layers, tp, pp, dp = (int(getattr(run, name)) for name in ("layers", "tp", "pp", "dp"))
    cp = run.cp or 1
    if run.num_gpus is not None and tp * cp * pp * dp != run.num_gpus:
        said = f"tp {tp}{f' × cp {cp}' if cp > 1 else ''} × pp {pp} × dp {dp}"
        raise Refusal("layout", f"{said} is {tp * cp * pp * dp}, not the {run.num_gpus} GPUs of the run")
    chunks = pp * (run.vpp or 1)
    if framework.stages == "even" and layers % chunks:
        raise Refusal("layout", f"{layers} layers do not divide over {chunks} chunks, and the source does not say how")


class _Draft:
    """A workload under way: `spec` grows, `assumed` lists what the row does not say."""

    def __init__(self, run: Run, framework: Framework) -> None:
        self.run = run
        self.framework = framework
        self.recipe = framework.recipe(run)
        self.spec: dict[str, Any] = {"name": run.id, "model": {}, "training": {}, "parallelism": {"overlap": {}}}
        self.assumed: list[str] = []

    def put(self, key: str, value: Any) -> None:
        here = self.spec
        *parents, last = key.split(".")
        for part in parents:
            here = here[part]
        here[last] = value

    def default(self, key: str, given: Any, name: str = "") -> Any:
        """Put what the row says, else a recipe of that job, else the framework's default, and note what the row leaves open.

        name: of another default of the table.
        """
        value = given
        if value in (None, ""):
            value, where = self._elsewhere(key, name or key)
            if value is None:
                return None  # nobody says it: the workload's own default
            said = str(value).lower() if isinstance(value, bool) else value
            self.assumed.append(f"{key}: {said} ({where})")
        self.put(key, value)
        return value

    def _elsewhere(self, key: str, name: str) -> tuple[Any, str]:
        if self.recipe and key in self.recipe.values:
            return self.recipe.values[key], f"{self.framework.name}, {self.recipe.source}"
        return self.framework.value(name, self.run.precision, self.architecture), self.framework.name

    def model(self, found: ModelFamily) -> None:
        """The shapes: of the row, and of the family of models that its name says."""
        run = self.run
        for key in ("layers", "hidden", "heads", "vocab"):
            self.put(f"model.{key}", getattr(run, key))
        for key, value in (
            ("ffn", run.ffn_hidden),
            ("kv_heads", None if isinstance(run.kv_heads, str) else run.kv_heads),
            ("experts", run.experts),
        ):
            if value is not None:
                self.put(f"model.{key}", value)
        if run.experts:
            self.put("model.topk", run.topk or 1)
            self.put("model.shared_experts", run.shared_experts or 0)
        self.spec["model"].update(found.shapes)
        said = ", ".join(str(value) for key, value in found.shapes.items() if key != "blocks")
        self.assumed.append(f"model: {said} (model family {found.name})")
        if found.layers:
            own = found.layers(run)
            self.spec["model"].update(own)
            self.assumed.append(f"model: {', '.join(f'{key} {value}' for key, value in own.items())} ({found.source})")
        if found.name == "deepseek":
            self.spec["model"].pop("kv_heads", None)
        share, why = tied(run, found)
        self.put("model.tied_embeddings", share)
        self.assumed.append(f"model.tied_embeddings: {str(share).lower()} ({why})")
        if found.dropout:
            self.default("model.dropout", None)
        self.default("model.vocab_multiple", None)

    def training(self) -> None:
        """Batch, precision, attention, recomputation, gradients, optimizer."""
        run = self.run
        for key in ("global_batch", "seq", "precision"):
            self.put(f"training.{key}", getattr(run, key))
        self.default("training.micro_batch", run.micro_batch)
        self.default("training.attention", self.attention())
        self.default("training.cross_entropy", None)
        self.default("training.recompute", run.recompute)
        self.default("training.gradients", self.wire())
        for key in ("kernels", "optimizer", "clip_gradients"):
            self.default(f"training.{key}", None)
        if self.framework.host is not None or self.framework.memory is not None:
            self.put("training.framework", self.framework.name)

    @property
    def architecture(self) -> str:
        """Of the GPU; empty for one that is not shipped, which its cluster refuses."""
        with suppress(UnknownNameError):
            return gpus.load(self.run.gpu).architecture
        return ""

    def attention(self) -> str | None:
        """Return the attention that a row says: of those that are fused, the framework's own."""
        if self.run.flash_attention is None:
            return None
        own = self.framework.value("training.attention", self.architecture) or "flash"
        return "unfused" if not self.run.flash_attention else "flash" if own == "unfused" else own

    def wire(self) -> str | None:
        """Return the type in which gradients are reduced where a row names FSDP's mixed precision as Composer does."""
        words = self.run.original_precision
        found = next((word for word in ("DEFAULT", "PURE") if word in words.split("mixed_precision ")[-1]), None)
        return {"DEFAULT": "fp32", "PURE": "bf16"}.get(found or "") if "mixed_precision " in words else None

    def parallelism(self) -> None:
        """Degrees, schedule, sharding, overlap."""
        run, split = self.run, self.spec["parallelism"]
        split.update(
            tp=run.tp, cp=run.cp or 1, pp=run.pp, dp=run.dp, **({"ep": run.ep} if run.ep else {}), tp_across_nodes=True
        )
        if (run.cp or 1) > 1:
            self.default("parallelism.cp_type", None)
        vpp = self.default("parallelism.vpp", run.vpp)
        self.default("parallelism.partition", None)
        self.default("parallelism.bucket", None)
        split["schedule"] = "interleaved" if (vpp or 1) > 1 else "1f1b"
        zero = self.default("parallelism.zero", run.zero_stage)
        if zero == 2:
            self.assumed.append(
                "zero_stage 2: a stage's gradients stay until all are reduced, memory is an upper bound"
            )
            split["reduce_every_microbatch"] = _reduces_often(run, self.framework)
        if zero == 3:
            self.sharded()
        given = run.sequence_parallel if run.tp and run.tp > 1 else False  # without tp there is nothing to split
        self.default("parallelism.sequence_parallel", given)
        sharded = "parallelism.overlap.grad_reduce_sharded"
        name = sharded if zero in (1, 2) and sharded in self.framework.defaults else ""
        self.default("parallelism.overlap.grad_reduce", run.overlap_grad_reduce, name)
        gather = run.overlap_param_gather if zero in (1, 2) else False
        self.default("parallelism.overlap.param_gather", gather)
        interleaved = "parallelism.overlap.p2p_interleaved" if (vpp or 1) > 1 else ""
        self.default("parallelism.overlap.p2p", run.overlap_p2p, interleaved)
        said = {True: "ring", False: "none", None: None}[run.overlap_tp if (run.tp or 1) > 1 else False]
        self.default("parallelism.overlap.tp", said)
        self.default("parallelism.overlap.sms", None)
        self.default("parallelism.overlap.memory", None)

    def sharded(self) -> None:
        """How sharded parameters are gathered: as the framework does where it shards them, else as FSDP2."""
        self.spec["parallelism"]["fsdp"] = {}
        own = [key for key in self.framework.defaults if key.startswith(("parallelism.fsdp.", "parallelism.zero3."))]
        for key in own:
            self.default(key, None)
        if not own:
            self.assumed.append(
                "parallelism.fsdp: FSDP2's, block by block (the framework says nothing of sharded parameters)"
            )
