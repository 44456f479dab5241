"""The workload of a measured run, like a workload file: from its columns, its source's words and its framework's defaults."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from clustersim.config.overrides import of_topology, replace, scalar
from clustersim.config.workload import RecomputeModule, Saved
from clustersim.config.yaml import read
from clustersim.convert.megatron_script import ImportRequest, imported
from clustersim.errors import InputError
from clustersim.files import read_text
from clustersim.frameworks.table import WITHOUT, Framework, find, releases
from clustersim.hardware import gpus
from clustersim.parallel.load import unbuilt
from clustersim.predictors.attention_generations import SPEEDS
from clustersim.validate.degrees import Degrees, degrees
from clustersim.validate.known_models import known_model
from clustersim.validate.models import ModelFamily, family, tied
from clustersim.validate.runs import NONE, Refusal, Run
from clustersim.validate.strangers import EVERYTHING, FRAMEWORK, Knowledge
from clustersim.validate.words import phrases, precision, words

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4")
RECOMPUTE = ("none", "selective", "full")
SPELLED_RECOMPUTE = re.compile(
    r"(?:activation|gradient)[- _]?(?:re)?(?:checkpointing|computation|compute)"
    r"|^\s*(?:1|yes|true|on|enabled)\b|every layer|per[- ]block"
)
"""Pattern of words that mean full recomputation, if no other word names a kind of it."""
NEEDED = ("model.layers", "model.hidden", "training.seq", "training.global_batch", "training.precision")
"""Keys without which a run cannot be simulated."""
FURTHER: Mapping[str, str] = {
    "training.recompute_modules": "",
    "training.moments": "",
    "training.cuda_graphs": "",
    "training.offload.activations": "",
    "training.norm_kernels": "",
    "training.rope_kernels": "",
    "training.fused_experts": "",
    "training.fused_projections": "",
    "training.fused_accumulation": "",
    "training.optimizer_kernels": "",
    "training.permute_kernels": "model.experts",
    "training.dispatch": "parallelism.ep",
    "parallelism.overlap.ep": "parallelism.ep",
    "parallelism.algorithms.ep": "parallelism.ep",
    "parallelism.keep_gathered": "parallelism.tp",
}
"""{key that a framework may have a default for: key whose value must be above 1 for it to apply; "" for none}"""
SPLIT_WORDS = {
    "parallelism.algorithms.ep": "parallelism.ep",
    "training.dispatch": "parallelism.ep",
    "parallelism.cp_type": "parallelism.cp",
}
"""{key that the source's words may set: key whose value must be above 1 for it to apply}; other keys always apply."""
HYBRID = re.compile(r"(?:\bhsdp\b|hybrid[- _]?shard\w*)(?:\W*sharded over (\d+))?")
"""Pattern of words for parameters that are sharded over some GPUs, by default a node, and replicated between these groups."""
OLD = ("pascal", "volta", "turing")
"""Architectures without bf16."""
ALIBI = 2024
"""Year from which FlashAttention supports ALiBi biases: release 2.4 (its issue 342 of 2023: "not supported right now"). Before,
only Triton's kernel did (MPT's code: "alibi only implemented with torch and triton attention")."""
USUAL = 8_192
"""Default number of tokens of a microbatch without a pipeline: the median over 41 publishers who state it. With a pipeline the
default is one sequence, because many microbatches fill the pipeline."""
TOPK = 2
"""Default number of experts per token."""
HEAD = 128
"""Default width of a head, if the source gives neither the number of heads nor their width."""


class InputDraft(NamedTuple):
    """A workload or topology file as plain data, its assumptions in words, and the names of the sources that it depends on."""

    spec: dict[str, Any]
    assumed: list[str]
    sources: set[str]


def workload(run: Run, domain: int, split: Degrees | None = None, view: Knowledge = EVERYTHING) -> InputDraft:
    """Return the workload of a run. Raises Refusal if the row contradicts itself or needs what is not supported.

    domain: GPUs per NVLink domain. split: degrees to use if the source leaves tp and pp open. view: knowledge of the forecast.
    """
    draft = _Draft(run, view)
    draft.model()
    row_degrees = None if split else degrees(run, draft.launch.get("parallelism", {}), domain)
    draft.training(row_degrees)
    draft.parallelism(domain, split or row_degrees, searched=split is not None)
    draft.framework_defaults()
    draft.words()
    draft.overrides()
    return InputDraft(draft.spec, draft.assumed, draft.sources)


def framework_of(run: Run, view: Knowledge = EVERYTHING) -> Framework:
    """Return the framework of a run; if it is unknown or hidden, its nearest release that is not, else another framework that its
    name contains, as the name of a fork of Megatron-LM does, else a generic trainer."""
    listed = find(run.framework, run.year)
    for release in [] if listed is None else [listed, *releases(listed, run.year)]:
        if _source_name(release) not in view.hidden:
            return release
    named = find(run.framework, run.year, unknown={source.removeprefix(FRAMEWORK) for source in view.hidden})
    if named is not None and not named.assumes:
        return named
    return find(_generic_trainer(run), run.year) or find(_generic_trainer(run))  # type: ignore[return-value]


def _source_name(framework: Framework) -> str:
    """Return the name of the framework among the sources that a run's files depend on."""
    return f"{FRAMEWORK}{framework.name}"


def known(run: Run, view: Knowledge = EVERYTHING) -> bool:
    """Return whether a run's framework is in the table, and it or another release of it is not hidden."""
    listed = find(run.framework, run.year)
    return listed is not None and framework_of(run, view) in releases(listed)


def _generic_trainer(run: Run) -> str:
    """Return `fully_shard` for ZeRO-3 without tp, pp and ep, else `generic trainer`."""
    undivided = max(run.tp or 1, run.pp or 1, run.ep or 1) == 1
    return "fully_shard" if run.zero_stage == 3 and undivided else "generic trainer"


def launched(run: Run) -> dict[str, Any]:
    """Return the workload of the file in a run's column `launch`, {} without one. Raises Refusal if it cannot be read."""
    if run.launch is None:
        return {}
    try:
        if run.launch.suffix in (".yaml", ".yml", ".json"):
            return dict(unbuilt(read(run.launch)).document.data)
        script = read_text(run.launch, "a launch script")
        return imported(str(run.launch), script, ImportRequest()).workload
    except InputError as error:
        raise Refusal("launch", str(error)) from error


class _Draft:
    """A workload under construction: `spec` grows, `assumed` lists the values that the row leaves open, in words."""

    def __init__(self, run: Run, view: Knowledge) -> None:
        framework, without = framework_of(run, view), view.without
        self.run, self.view = run, view
        self.framework = framework.without(without) if without else framework
        self.name = framework.name if self.framework == framework else f"{framework.name}{WITHOUT}{without}"
        self.sources = {_source_name(framework)}
        gpu = gpus.spelled(run.gpu)
        self.architecture = gpu.architecture if gpu else ""  # its cluster refuses one that is not shipped
        self.recipe = self.framework.recipe(run)
        if self.recipe and not self.read(f"recipe {self.recipe.source} {sorted(self.recipe.of.items())}"):
            self.recipe = None
        self.launch = launched(run)
        self.spec: dict[str, Any] = {"name": run.id, "model": {}, "training": {}, "parallelism": {"overlap": {}}}
        for section in ("model", "training", "parallelism"):
            self.spec[section] |= self.launch.get(section, {})
        self.spec["parallelism"]["overlap"] = dict(self.spec["parallelism"]["overlap"])
        self.assumed: list[str] = []
        self.alibi = False
        self.overrides()  # what the row decides is not assumed

    def read(self, source: str) -> bool:
        """Return whether a source is not hidden; if so, record that the workload depends on it."""
        if source in self.view.hidden:
            return False
        self.sources.add(source)
        return True

    def get(self, key: str) -> Any:
        """Return the current value of a dotted key; None if it is not set."""
        here: Any = self.spec
        for part in key.split("."):
            here = here.get(part) if isinstance(here, Mapping) else None
        return here

    def put(self, key: str, value: Any) -> None:
        """Set the value of a dotted key such as `training.micro_batch`."""
        here = self.spec
        *parents, last = key.split(".")
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = value

    def default(self, key: str, from_row: Any = None, name: str = "") -> Any:
        """Set and return the value from the row, else the launch file, else the recipe, else the framework's default.

        from_row: None or "" if the row leaves it open. name: key of the framework's default, if not `key`. A value of the recipe
        or the framework is recorded as assumed. Returns None, and sets nothing, if no source has a value.
        """
        if from_row not in (None, ""):
            self.put(key, from_row)
            return from_row
        if (value := self.get(key)) is not None:
            return value  # the launch file's
        value, where = self._elsewhere(key, name or key)
        if value is not None:  # else the workload's own default
            self.assume(key, value, where)
        return value

    def _elsewhere(self, key: str, name: str) -> tuple[Any, str]:
        """Return (value, source): of `key` in the job's recipe, else of `name` in the framework's defaults, None without one."""
        if self.recipe and key in self.recipe.values:
            return self.recipe.values[key], f"{self.framework.name}, {self.recipe.source}"
        dtype = str(self.get("training.precision") or "")
        return self.framework.value(name, dtype, self.architecture), self.framework.name

    def assume(self, key: str, value: Any, why: str) -> None:
        """Set a value that the row leaves open, and record it with the reason `why`."""
        self.put(key, value)
        self.assumed.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value} ({why})")

    def model(self) -> None:
        """Set shapes from the row, its launch file, or the known model or family. Raises Refusal without layers or hidden."""
        run, shapes = self.run, self.spec["model"]
        columns = {name: getattr(run, name) for name in ("layers", "hidden", "heads", "vocab", "experts", "topk")}
        columns |= {"ffn": run.ffn_hidden, "shared_experts": run.shared_experts}
        columns |= {"kv_heads": None if isinstance(run.kv_heads, str) else run.kv_heads}
        if not self.launch.get("model"):
            self.family(family(run, self.framework))
            if (listed := known_model(run)) is not None and listed.keys:
                keys = {key: value for key, value in listed.keys.items() if f"model.{key}" not in self.framework.always}
                shapes.update(keys)
                words = ", ".join(f"{key} {value}" for key, value in keys.items())
                self.assumed.append(f"model: {words} ({listed.name})")
        shapes.update({key: value for key, value in columns.items() if value is not None})
        if isinstance(run.kv_heads, str) or shapes.get("mla"):
            shapes.pop("kv_heads", None)
        if not shapes.get("experts"):
            for key in ("experts", "topk", "shared_experts"):
                shapes.pop(key, None)
        if shapes.get("experts") and "topk" not in shapes:
            self.assume("model.topk", min(TOPK, shapes["experts"]), "as Mixtral")
        if missing := [name for name in ("layers", "hidden") if not shapes.get(name)]:
            what = f"the source does not say {' and '.join(missing)}, and no model {run.model} of these shapes is known"
            raise Refusal("incomplete source", what)
        hidden = shapes["hidden"]
        if "heads" not in shapes:
            self.assume("model.heads", max(hidden // HEAD, 1), f"heads of {HEAD}")
        if hidden % shapes["heads"] and not shapes.get("head_dim") and not shapes.get("mla"):
            self.assume("model.head_dim", hidden // shapes["heads"], f"{shapes['heads']} heads do not divide {hidden}")
        if "ffn" not in shapes and shapes.get("activation") in ("swiglu", "geglu"):
            width = -(-8 * hidden // 3 // 256) * 256
            self.assume("model.ffn", width, "as many weights as an MLP of 4 × hidden without a gate")
        self.default("model.vocab_multiple")

    def family(self, known: ModelFamily) -> None:
        """Set blocks, embeddings and dropout of a model family. Raises Refusal if its layers need shapes that are missing."""
        run, self.alibi = self.run, known.alibi
        if known.layers and known.name != "decoder" and None in (run.experts, run.topk, run.ffn_hidden):
            raise Refusal("incomplete source", f"the source does not say experts, topk and ffn_hidden of {run.model}")
        self.spec["model"].update(known.shapes)
        words = ", ".join(str(value) for key, value in known.shapes.items() if key != "blocks")
        why = known.source if known.name == "decoder" else f"model family {known.name}"
        self.assumed.append(f"model: {words} ({why})")
        if known.layers:
            layer_keys = known.layers(run)
            self.spec["model"].update(layer_keys)
            words = ", ".join(f"{key} {value}" for key, value in layer_keys.items())
            self.assumed.append(f"model: {words} ({known.source})")
        if run.vocab is None:
            self.assume("model.vocab", known.vocab, f"model family {known.name}")
        share, why = tied(run, known)
        self.assume("model.tied_embeddings", share, why)
        if known.dropout:
            self.default("model.dropout")

    def training(self, split: Degrees | None) -> None:
        """Set batch, precision, attention, recomputation, gradients and optimizer. Raises Refusal if NEEDED keys are missing."""
        run = self.run
        for key, value in (("global_batch", run.global_batch), ("seq", run.seq), ("precision", precision(run))):
            if value:
                self.put(f"training.{key}", value)
        if self.get("training.precision") is None:
            half_type = "fp16" if self.architecture in OLD else "bf16"
            self.assume("training.precision", half_type, "16-bit mixed precision, as everybody trains")
        if self.get("training.global_batch") is None and run.micro_batch and run.dp and (run.pp or 1) == 1:
            self.assume("training.global_batch", run.micro_batch * run.dp, "one microbatch a replica")
        if missing := [key.partition(".")[2] for key in NEEDED if self.get(key) is None]:
            raise Refusal("incomplete source", f"the source does not say {' and '.join(missing)}")
        if self.get("training.precision") not in PRECISIONS:
            raise Refusal("precision", f"precision {run.precision}: only {', '.join(PRECISIONS)} are modelled")
        self.micro_batch(split)
        self.attention()
        self.recompute()
        if self.get("training.precision") == "fp8":
            self.default("training.fp8_scaling")
        for key in ("cross_entropy", "gradients", "kernels", "optimizer", "clip_gradients"):
            self.default(f"training.{key}")
        if self.framework.host is not None or self.framework.memory is not None:
            self.put("training.framework", self.name)

    def micro_batch(self, split: Degrees | None) -> None:
        """Set the sequences of a microbatch: the row's, else as the framework divides a batch, else of about USUAL tokens."""
        run, by_stage = self.run, self.framework.microbatch_a_stage
        if run.micro_batch is None and by_stage is not None and by_stage.value and split:
            cut = max(self.get("training.global_batch") // (split.dp * split.pp), 1)
            self.assume("training.micro_batch", cut, f"{self.framework.name}: a microbatch a stage")
        elif self.default("training.micro_batch", run.micro_batch) is None:
            most = USUAL // self.get("training.seq") if split and split.pp == 1 else 1
            share = self.get("training.global_batch") // (split.dp if split else 1)
            usual = max(size for size in range(1, max(most, 1) + 1) if share % size == 0)
            self.assume("training.micro_batch", usual, "the usual number of tokens" if usual > 1 else "the smallest")

    def recompute(self) -> None:
        """Set the recomputation from the row, the names in its words, and the framework. Raises Refusal for an unknown value."""
        run, text = self.run, f"{self.run.recompute} {self.run.original_recompute}".lower()
        saved_names = [name for name in typing.get_args(Saved) if re.search(rf"\b{name}\b", text)]
        modules = [name for name in typing.get_args(RecomputeModule) if re.search(rf"(?<!for )\b{name}\b", text)]
        modules = [] if set(modules) & set(saved_names) else modules  # MaxText's saves have the same names
        attention = re.match(r"\s*(?:core |self[- ])?att(?:n|ention)(?: only)?\s*$", run.recompute.lower())
        named = re.split(r"[^a-z]+", SPELLED_RECOMPUTE.sub("full", text))
        named += ["selective"] * bool(saved_names or modules or attention)
        plain = "none" if run.recompute.lower() in NONE else run.recompute.lower()
        chosen = plain if plain in (*RECOMPUTE, "") else next((word for word in RECOMPUTE if word in named), "")
        if run.recompute and not chosen:
            raise Refusal("recompute", f"recompute {run.recompute}: only {', '.join(RECOMPUTE)} are modelled")
        if not chosen and self.get("training.recompute"):
            return  # the launch file's
        job = {} if chosen or self.recipe is None else self.recipe.values
        chosen = chosen or job.get("training.recompute", "")
        method, saves = self.framework.recomputation(chosen, self.get("training.precision"))
        saves = job.get("training.recompute_saves_full", saves)
        if method == "full" and chosen == "selective":
            every = re.search(r"^(?!.*per-op).*every (\d+)(?:nd|rd|th) layer", text)
            saves = saved_names or saves
            if every and not saved_names:
                saves = []
                self.assume("training.recompute_every", int(every[1]), "as the source says")
        if method == chosen:
            self.put("training.recompute", method)
        else:
            self.assume("training.recompute", method, self.framework.name)
        if saves:
            self.assume("training.recompute_saves", saves, f"{chosen or method} by {self.framework.name}")
        if modules and self.get("training.recompute") == "selective":
            self.assume("training.recompute_modules", modules, "as the source says")

    def attention(self) -> None:
        """Set the attention of the row. If it is fused: the framework's kernel if the GPU supports it, else FlashAttention."""
        run, fused = self.run, self.run.flash_attention
        kernel = self.framework.value("training.attention", self.architecture) or "flash"
        if fused is False:
            self.put("training.attention", "unfused")
        elif self.alibi and (run.year or ALIBI) < ALIBI and "triton" in SPEEDS.get(self.architecture, {}):
            self.assume("training.attention", "triton", f"biases of positions, which FlashAttention adds from {ALIBI}")
        elif kernel not in ("flash", "unfused", *SPEEDS.get(self.architecture, {})):
            why = f"{kernel} of {self.framework.name} does not run on {self.architecture or run.gpu}"
            self.assume("training.attention", "flash", why)
        else:
            self.default("training.attention", fused and ("flash" if kernel == "unfused" else kernel))

    def parallelism(self, domain: int, degrees: Degrees | None, searched: bool) -> None:
        """Set degrees, stages, schedule, sharding and overlap. searched: whether the source leaves tp and pp open.

        domain: GPUs per NVLink domain. Raises Refusal without degrees.
        """
        run, split = self.run, self.spec["parallelism"]
        if degrees is None:
            raise Refusal("incomplete source", "the source says neither tp nor pp")
        self.assumed += degrees.assumed
        split.update(tp=degrees.tp, cp=degrees.cp, pp=degrees.pp, dp=degrees.dp, tp_across_nodes=True)
        self.experts(degrees, domain)
        if degrees.cp > 1:
            self.default("parallelism.cp_type")
            blocks = self.get("model.blocks") or ()
            windowed = bool(self.get("model.window")) or any(block.get("window") for block in blocks)
            if windowed and "p2p" in (self.get("parallelism.cp_type") or "p2p"):
                self.assume("parallelism.cp_type", "all_gather", "rings have no sliding windows")
        vpp = self.default("parallelism.vpp", run.vpp) or 1
        for key in ("partition", "layout", "bucket"):
            self.default(f"parallelism.{key}")
        self.stages(degrees.pp * vpp)
        schedule = self.framework.value("parallelism.schedule") if degrees.pp > 1 and vpp == 1 else None
        if schedule and "schedule" not in split:
            self.assume("parallelism.schedule", schedule, self.framework.name)
        split.setdefault("schedule", "interleaved" if vpp > 1 else "1f1b")
        self.sharding(degrees, domain)
        sequence = run.sequence_parallel if degrees.tp > 1 else False  # without tp there is nothing to split
        if sequence is None and (searched or (self.get("parallelism.ep") or 1) > 1):
            sequence = True
            why = "experts spread over ranks need it" if not searched else "with a tp that the source does not say"
            self.assumed.append(f"parallelism.sequence_parallel: true ({why})")
        self.default("parallelism.sequence_parallel", sequence)
        self.overlap(degrees, vpp)

    def experts(self, degrees: Degrees, domain: int) -> None:
        """Set ep, by default the largest within an NVLink domain of `domain` GPUs, and expert_tp 1 if ep spans ranks of tp."""
        run, experts = self.run, self.get("model.experts")
        if run.ep:
            self.put("parallelism.ep", run.ep)
        if not experts or self.get("parallelism.zero") == 3 or run.zero_stage == 3:
            return
        replicas, shards = degrees.cp * degrees.dp, degrees.tp * degrees.cp * degrees.dp
        if self.get("parallelism.ep") is None:
            fits = [ep for ep in range(1, min(experts, domain) + 1) if experts % ep == 0 and shards % ep == 0]
            self.assume("parallelism.ep", max(fits), "experts over an NVLink domain, as the source does not say")
        ep = self.get("parallelism.ep")
        if replicas % ep and shards % ep == 0 and self.get("parallelism.expert_tp") is None:
            self.assume("parallelism.expert_tp", 1, f"ep {ep} spans ranks of tp {degrees.tp}")

    def stages(self, chunks: int) -> None:
        """Count embedding or loss as layers if layers do not divide over all `chunks`, and the framework needs equal ones."""
        split, layers = self.spec["parallelism"], self.get("model.layers")
        fixed = ("layout", "first_layers", "last_layers", "account_for_embedding", "account_for_loss")
        if self.framework.stages == "any" or any(split.get(key) for key in fixed):
            return
        accounted = ("loss",) if (layers + 1) % chunks == 0 else ("embedding", "loss")
        for part in accounted if layers % chunks else ():  # each counts as a layer (nemo/collections/llm)
            why = f"{layers} layers over {chunks} chunks, as NeMo's recipe of Llama 3.1 405B"
            self.assume(f"parallelism.account_for_{part}", True, why)

    def sharding(self, degrees: Degrees, domain: int) -> None:
        """Set the sharding over replicas. domain: GPUs per NVLink domain. Raises Refusal for an unsupported ZeRO-2 pipeline."""
        run, split = self.run, self.spec["parallelism"]
        zero = self.default("parallelism.zero", run.zero_stage)
        if zero == 2:
            overlap, sequences = run.overlap_grad_reduce, self.get("training.micro_batch") * (run.dp or 1)
            under = self.framework.value("parallelism.overlap.grad_reduce") if overlap is None else overlap
            often = run.global_batch != sequences or not under  # not only under a single backward pass
            if degrees.pp > 1 and often:
                problem = f"zero_stage 2 with pp {degrees.pp}: gradients reduced between passes are not modelled"
                raise Refusal("ZeRO-2", problem)
            split["reduce_every_microbatch"] = often
        if zero == 3:
            self.parameter_gathering()
            hybrid = HYBRID.search(words(run))
            shard = int(hybrid[1] or domain) if hybrid else degrees.dp
            if shard < degrees.dp and degrees.dp % shard == 0 and self.read("words hybrid sharding"):
                self.assume(
                    "parallelism.fsdp.shard", shard, "hybrid sharding: inside of a node, unless the source says more"
                )

    def overlap(self, degrees: Degrees, vpp: int) -> None:
        """Set the overlap of communication with computation. vpp: chunks per stage."""
        run, zero = self.run, self.get("parallelism.zero")
        sharded = "parallelism.overlap.grad_reduce_sharded"
        name = sharded if zero in (1, 2) and sharded in self.framework.defaults else ""
        self.default("parallelism.overlap.grad_reduce", run.overlap_grad_reduce, name)
        gather = run.overlap_param_gather if zero in (1, 2) else False
        self.default("parallelism.overlap.param_gather", gather)
        interleaved = "parallelism.overlap.p2p_interleaved" if vpp > 1 else ""
        self.default("parallelism.overlap.p2p", run.overlap_p2p, interleaved)
        if degrees.tp > 1 and degrees.pp > 1 and not self.get("parallelism.sequence_parallel"):
            self.default("parallelism.scatter_gather")
        self.default("parallelism.overlap.tp", self.tp_overlap(degrees))
        for key in ("sms", "memory"):
            self.default(f"parallelism.overlap.{key}")

    def tp_overlap(self, degrees: Degrees) -> str | None:
        """Return the value of `overlap.tp`; None: the framework's default.

        1 in the row means the most that the framework offers, `bulk` instead of `ring` or `async` without sequence parallelism.
        0 or a blank means the framework's default if it has one, else `none`.
        """
        if degrees.tp == 1:
            return "none"
        if isinstance(self.run.overlap_tp, str):
            return self.run.overlap_tp
        if not self.run.overlap_tp:
            return None if "parallelism.overlap.tp" in self.framework.defaults else "none"
        most = self.framework.overlapped_tp
        return "bulk" if most in ("ring", "async") and not self.get("parallelism.sequence_parallel") else most

    def framework_defaults(self) -> None:
        """Set the framework's other defaults (FURTHER) that apply to this model and split."""
        if not known(self.run, self.view):
            self.assumed.append(f"framework: as {self.framework.title} ({self.run.framework!r} is not in the table)")
        if self.framework.assumes:
            self.assumed.append(self.framework.assumes)
        unfit = {
            "training.recompute_modules": not self.recomputes_modules(),
            "parallelism.overlap.ep": not self.passes_alternate(),
        }
        for key in {**self.framework.defaults, **(self.recipe.values if self.recipe else {})}:
            if key in FURTHER and self.get(key) is None and not unfit.get(key) and self.is_split(FURTHER[key]):
                self.default(key)

    def is_split(self, key: str) -> bool:
        """Return whether the value of a key, such as the degree `parallelism.ep`, is above 1. True for the key ""."""
        return not key or (self.get(key) or 1) > 1

    def passes_alternate(self) -> bool:
        """Return whether the default of `overlap.ep` suits the schedule: `microbatch` needs one stage or interleaving."""
        split = self.spec["parallelism"]
        microbatches = self._elsewhere("parallelism.overlap.ep", "parallelism.overlap.ep")[0] == "microbatch"
        return not microbatches or split["pp"] == 1 or split["schedule"] == "interleaved"

    def recomputes_modules(self) -> bool:
        """Return whether the default list of recomputed modules applies.

        It needs selective recomputation, experts, and latent attention or a recipe that names modules.
        """
        shapes = self.spec["model"]
        named = bool(shapes.get("mla")) or bool(self.recipe and "training.recompute_modules" in self.recipe.values)
        return bool(self.get("training.recompute") == "selective" and named and shapes.get("experts"))

    def words(self) -> None:
        """Set the values that the source states in words, if they apply to this split."""
        unfit = {
            "parallelism.overlap.tp": not self.get("parallelism.sequence_parallel"),
            "training.fp8_scaling": self.get("training.precision") != "fp8",
            "training.attention": "cudnn_fp8" not in SPEEDS.get(self.architecture, {}),
        }
        for phrase, matched in phrases(self.run, self.architecture, self.view.hidden):
            captured = phrase.value == "layer" and self.get(phrase.key) == "full"  # full graphs include layers
            if self.is_split(SPLIT_WORDS.get(phrase.key, "")) and not unfit.get(phrase.key) and not captured:
                self.sources.add(phrase.source)
                self.assume(phrase.key, phrase.value, f"the source says {matched!r}")

    def overrides(self) -> None:
        """Set the values of the row's column `set`. Raises Refusal for a key of the cluster or an invalid value."""
        for key, text in self.run.set:
            if of_topology(key):
                raise Refusal("set", f"set: {key} is a key of the cluster; write it in the column cluster_set")
            try:
                replace(self.spec, tuple(key.split(".")), scalar(key, text), key)
            except InputError as error:
                raise Refusal("set", f"set: {error}") from error

    def parameter_gathering(self) -> None:
        """Set how sharded parameters are gathered: by the framework's defaults if it has any, else as in FSDP2."""
        keys = [key for key in self.framework.defaults if key.startswith(("parallelism.fsdp.", "parallelism.zero3."))]
        for key in keys:
            self.default(key)
        if not keys:
            self.put("parallelism.fsdp", {})
            why = "the framework says nothing of sharded parameters"
            self.assumed.append(f"parallelism.fsdp: FSDP2's, block by block ({why})")
