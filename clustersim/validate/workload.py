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
"""Pattern of words for full recomputation, if no other word specifies the kind."""
NEEDED = ("model.layers", "model.hidden", "training.seq", "training.global_batch", "training.precision")
HABITS: Mapping[str, str] = {
    "training.recompute_modules": "",
    "training.moments": "",
    "training.cuda_graphs": "",
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
"""{further key with possible framework defaults: key whose value must be above 1, or ""}"""
SPLIT_WORDS = {
    "parallelism.algorithms.ep": "parallelism.ep",
    "training.dispatch": "parallelism.ep",
    "parallelism.cp_type": "parallelism.cp",
}
"""{key that the source's words may set: key whose value must be above 1}"""
HYBRID = re.compile(r"\bhsdp\b|hybrid[- _]?shard")
"""Pattern of words for parameters that are sharded over a node and replicated between nodes."""
OLD = ("pascal", "volta", "turing")
"""Architectures without bf16."""
ALIBI = 2024
"""Year from which FlashAttention adds biases of positions: release 2.4 (its issue 342 of 2023: "not supported right now").
Triton's alone did before (MPT's code: "alibi only implemented with torch and triton attention")."""
USUAL = 8_192
"""Tokens of a microbatch where a source says neither its size nor a pipeline: the median over 41 publishers who say it. With a
pipeline it is one sequence, as many microbatches fill it."""
TOPK = 2
"""Default number of experts per token."""
HEAD = 128
"""Default width of a head, if the source gives neither number nor width."""


class InputDraft(NamedTuple):
    """A workload or topology file as plain data, its assumptions with their sources, and the sources that it depends on."""

    spec: dict[str, Any]
    assumed: list[str]
    sources: set[str]


def workload(run: Run, domain: int, split: Degrees | None = None, view: Knowledge = EVERYTHING) -> InputDraft:
    """Return the workload of a run. Raises Refusal if the row contradicts itself or needs what is not supported.

    domain: GPUs per NVLink domain. split: the degrees, if the source leaves tp and pp open.
    """
    draft = _Draft(run, view)
    draft.model()
    own = None if split else degrees(run, draft.launch.get("parallelism", {}), domain)
    draft.training(own)
    draft.parallelism(domain, split or own, searched=split is not None)
    draft.habits()
    draft.words()
    draft.overrides()
    return InputDraft(draft.spec, draft.assumed, draft.sources)


def framework_of(run: Run, view: Knowledge = EVERYTHING) -> Framework:
    """Return the framework of a run; if it is hidden, the nearest release that is not, or else a generic one."""
    found = find(run.framework, run.year)
    for release in [] if found is None else [found, *releases(found, run.year)]:
        if _source(release) not in view.hidden:
            return release
    return find(_usual(run), run.year) or find(_usual(run))  # type: ignore[return-value]


def _source(framework: Framework) -> str:
    """Return the framework's name in sets of sources (`strangers`)."""
    return f"{FRAMEWORK}{framework.name}"


def known(run: Run, view: Knowledge = EVERYTHING) -> bool:
    """Return whether a run's framework is in the table and not hidden."""
    found = find(run.framework, run.year)
    return found is not None and framework_of(run, view) in releases(found)


def _usual(run: Run) -> str:
    """Return the name of the generic trainer that splits models as a run does."""
    alone = max(run.tp or 1, run.pp or 1, run.ep or 1) == 1
    return "fully_shard" if run.zero_stage == 3 and alone else "generic trainer"


def launched(run: Run) -> dict[str, Any]:
    """Return the workload of the file in a run's column `launch`, {} without one. Raises Refusal if it cannot be read."""
    if run.launch is None:
        return {}
    try:
        if run.launch.suffix in (".yaml", ".yml", ".json"):
            return dict(unbuilt(read(run.launch)).document.data)
        script = read_text(run.launch, "a launch script")
        return imported(str(run.launch), script, ImportRequest({}, {})).workload
    except InputError as error:
        raise Refusal("launch", str(error)) from error


class _Draft:
    """A workload under construction: `spec` grows, `assumed` lists values that the row leaves open."""

    def __init__(self, run: Run, view: Knowledge) -> None:
        framework, without = framework_of(run, view), view.without
        self.run, self.view = run, view
        self.framework = framework.without(without) if without else framework
        self.name = framework.name if self.framework == framework else f"{framework.name}{WITHOUT}{without}"
        self.sources = {_source(framework)}
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
        """Return whether a source is known, and record that the workload depends on it."""
        if source in self.view.hidden:
            return False
        self.sources.add(source)
        return True

    def has(self, key: str) -> Any:
        """Return the value of a dotted key so far, None if it is not set."""
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

    def default(self, key: str, given: Any = None, name: str = "") -> Any:
        """Set the row's value, else the job's recipe's, else the framework's default, and record an assumption.

        name: name of the default, if other than the key.
        """
        if given not in (None, ""):
            self.put(key, given)
            return given
        if (value := self.has(key)) is not None:
            return value  # the launch file's
        value, where = self._elsewhere(key, name or key)
        if value is not None:  # else the workload's own default
            self.assume(key, value, where)
        return value

    def _elsewhere(self, key: str, name: str) -> tuple[Any, str]:
        """Return the value of a key in the job's recipe, else the framework's default of `name`, and its source in words."""
        if self.recipe and key in self.recipe.values:
            return self.recipe.values[key], f"{self.framework.name}, {self.recipe.source}"
        dtype = str(self.has("training.precision") or "")
        return self.framework.value(name, dtype, self.architecture), self.framework.name

    def assume(self, key: str, value: Any, why: str) -> None:
        """Set a missing value, and record the reason."""
        self.put(key, value)
        self.assumed.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value} ({why})")

    def model(self) -> None:
        """Set the shapes, from the row, else its launch file, and from the family of its model's name."""
        run, shapes = self.run, self.spec["model"]
        columns = {name: getattr(run, name) for name in ("layers", "hidden", "heads", "vocab", "experts", "topk")}
        columns |= {"ffn": run.ffn_hidden, "shared_experts": run.shared_experts}
        columns |= {"kv_heads": None if isinstance(run.kv_heads, str) else run.kv_heads}
        if not self.launch.get("model"):
            self.family(family(run, self.framework))
            if (known_one := known_model(run)) is not None and known_one.keys:
                shapes.update(known_one.keys)
                said = ", ".join(f"{key} {value}" for key, value in known_one.keys.items())
                self.assumed.append(f"model: {said} ({known_one.name})")
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

    def family(self, found: ModelFamily) -> None:
        """Set the family's blocks, embeddings and dropout."""
        run, self.alibi = self.run, found.alibi
        if found.layers and found.name != "decoder" and None in (run.experts, run.topk, run.ffn_hidden):
            raise Refusal("incomplete source", f"the source does not say experts, topk and ffn_hidden of {run.model}")
        self.spec["model"].update(found.shapes)
        said = ", ".join(str(value) for key, value in found.shapes.items() if key != "blocks")
        why = found.source if found.name == "decoder" else f"model family {found.name}"
        self.assumed.append(f"model: {said} ({why})")
        if found.layers:
            own = found.layers(run)
            self.spec["model"].update(own)
            self.assumed.append(f"model: {', '.join(f'{key} {value}' for key, value in own.items())} ({found.source})")
        if run.vocab is None:
            self.assume("model.vocab", found.vocab, f"model family {found.name}")
        share, why = tied(run, found)
        self.assume("model.tied_embeddings", share, why)
        if found.dropout:
            self.default("model.dropout")

    def training(self, split: Degrees | None) -> None:
        """Set batch, precision, attention, recomputation, gradients, optimizer."""
        run = self.run
        for key, value in (("global_batch", run.global_batch), ("seq", run.seq), ("precision", precision(run))):
            if value:
                self.put(f"training.{key}", value)
        if self.has("training.precision") is None:
            narrow = "fp16" if self.architecture in OLD else "bf16"
            self.assume("training.precision", narrow, "16-bit mixed precision, as everybody trains")
        if self.has("training.global_batch") is None and run.micro_batch and run.dp and (run.pp or 1) == 1:
            self.assume("training.global_batch", run.micro_batch * run.dp, "one microbatch a replica")
        if missing := [key.partition(".")[2] for key in NEEDED if self.has(key) is None]:
            raise Refusal("incomplete source", f"the source does not say {' and '.join(missing)}")
        if self.has("training.precision") not in PRECISIONS:
            raise Refusal("precision", f"precision {run.precision}: only {', '.join(PRECISIONS)} are modelled")
        self.micro_batch(split)
        self.attention()
        self.default("training.cross_entropy")
        self.recompute()
        self.default("training.gradients", self.wire())
        if self.has("training.precision") == "fp8":
            self.default("training.fp8_scaling")
        for key in ("kernels", "optimizer", "clip_gradients"):
            self.default(f"training.{key}")
        if self.framework.host is not None or self.framework.memory is not None:
            self.put("training.framework", self.name)

    def micro_batch(self, split: Degrees | None) -> None:
        """Set the sequences of a microbatch: the row's, else as the framework cuts a batch, else the usual tokens."""
        run, by_stage = self.run, self.framework.microbatch_a_stage
        if run.micro_batch is None and by_stage is not None and by_stage.value and split:
            cut = max(self.has("training.global_batch") // (split.dp * split.pp), 1)
            self.assume("training.micro_batch", cut, f"{self.framework.name}: a microbatch a stage")
        elif self.default("training.micro_batch", run.micro_batch) is None:
            most = USUAL // self.has("training.seq") if split and split.pp == 1 else 1
            share = self.has("training.global_batch") // (split.dp if split else 1)
            usual = max(size for size in range(1, max(most, 1) + 1) if share % size == 0)
            self.assume("training.micro_batch", usual, "the usual number of tokens" if usual > 1 else "the smallest")

    def recompute(self) -> None:
        """Set the recomputation, from the row, the names in its source's words, and the framework."""
        run, said = self.run, f"{self.run.recompute} {self.run.original_recompute}".lower()
        own = [name for name in typing.get_args(Saved) if re.search(rf"\b{name}\b", said)]
        modules = [name for name in typing.get_args(RecomputeModule) if re.search(rf"(?<!for )\b{name}\b", said)]
        modules = [] if set(modules) & set(own) else modules  # MaxText's saves are named alike
        attention = re.match(r"\s*(?:core |self[- ])?att(?:n|ention)(?: only)?\s*$", run.recompute.lower())
        named = re.split(r"[^a-z]+", SPELLED_RECOMPUTE.sub("full", said))
        named += ["selective"] * bool(own or modules or attention)
        plain = "none" if run.recompute.lower() in NONE else run.recompute.lower()
        given = plain if plain in (*RECOMPUTE, "") else next((one for one in RECOMPUTE if one in named), "")
        if run.recompute and not given:
            raise Refusal("recompute", f"recompute {run.recompute}: only {', '.join(RECOMPUTE)} are modelled")
        if not given and self.has("training.recompute"):
            return  # the launch file's
        job = {} if given or self.recipe is None else self.recipe.values
        given = given or job.get("training.recompute", "")
        how, saves = self.framework.recomputation(given, self.has("training.precision"))
        saves = job.get("training.recompute_saves_full", saves)
        if how == "full" and given == "selective":
            every = re.search(r"^(?!.*per-op).*every (\d+)(?:nd|rd|th) layer", said)
            saves = own or saves
            if every and not own:
                saves = []
                self.assume("training.recompute_every", int(every[1]), "as the source says")
        if how == given:
            self.put("training.recompute", how)
        else:
            self.assume("training.recompute", how, self.framework.name)
        if saves:
            self.assume("training.recompute_saves", saves, f"{given or how} by {self.framework.name}")
        if modules and self.has("training.recompute") == "selective":
            self.assume("training.recompute_modules", modules, "as the source says")

    def attention(self) -> None:
        """Set the attention of the row; if it is fused, the framework's own kernel if the GPU supports it."""
        run, said = self.run, self.run.flash_attention
        own = self.framework.value("training.attention", self.architecture) or "flash"
        if said is False:
            self.put("training.attention", "unfused")
        elif self.alibi and (run.year or ALIBI) < ALIBI and "triton" in SPEEDS.get(self.architecture, {}):
            self.assume("training.attention", "triton", f"biases of positions, which FlashAttention adds from {ALIBI}")
        elif own not in ("flash", "unfused", *SPEEDS.get(self.architecture, {})):
            why = f"{own} of {self.framework.name} does not run on {self.architecture or run.gpu}"
            self.assume("training.attention", "flash", why)
        else:
            self.default("training.attention", said and ("flash" if own == "unfused" else own))

    def wire(self) -> str | None:
        """Return the type in which gradients are reduced, if a row names FSDP's mixed precision as Composer does."""
        _, named, said = self.run.original_precision.rpartition("mixed_precision ")
        wire = "fp32" if "DEFAULT" in said else "bf16" if "PURE" in said else None
        return wire if named and wire and self.read("words mixed_precision") else None

    def parallelism(self, domain: int, found: Degrees | None, searched: bool) -> None:
        """Set degrees, stages, schedule, sharding, overlap. searched: the source leaves tp and pp open."""
        run, split = self.run, self.spec["parallelism"]
        if found is None:
            raise Refusal("incomplete source", "the source says neither tp nor pp")
        self.assumed += found.assumed
        split.update(tp=found.tp, cp=found.cp, pp=found.pp, dp=found.dp, tp_across_nodes=True)
        self.experts(found, domain)
        if found.cp > 1:
            self.default("parallelism.cp_type")
            blocks = self.has("model.blocks") or ()
            windowed = bool(self.has("model.window")) or any(block.get("window") for block in blocks)
            if windowed and "p2p" in (self.has("parallelism.cp_type") or "p2p"):
                self.assume("parallelism.cp_type", "all_gather", "rings have no sliding windows")
        vpp = self.default("parallelism.vpp", run.vpp) or 1
        for key in ("partition", "layout", "bucket"):
            self.default(f"parallelism.{key}")
        self.stages(found.pp * vpp)
        own = self.framework.value("parallelism.schedule") if found.pp > 1 and vpp == 1 else None
        if own and "schedule" not in split:
            self.assume("parallelism.schedule", own, self.framework.name)
        split.setdefault("schedule", "interleaved" if vpp > 1 else "1f1b")
        self.sharding(found, domain)
        sequence = run.sequence_parallel if found.tp > 1 else False  # without tp there is nothing to split
        if sequence is None and (searched or (self.has("parallelism.ep") or 1) > 1):
            sequence = True
            why = "experts spread over ranks need it" if not searched else "with a tp that the source does not say"
            self.assumed.append(f"parallelism.sequence_parallel: true ({why})")
        self.default("parallelism.sequence_parallel", sequence)
        self.overlap(found, vpp)

    def experts(self, found: Degrees, domain: int) -> None:
        """Set the layout of experts: the row's; else whole experts if ep spans ranks of tp, spread over a node by default."""
        run, experts = self.run, self.has("model.experts")
        if run.ep:
            self.put("parallelism.ep", run.ep)
        if not experts or self.has("parallelism.zero") == 3 or run.zero_stage == 3:
            return
        replicas, shards = found.cp * found.dp, found.tp * found.cp * found.dp
        if self.has("parallelism.ep") is None:
            fits = [ep for ep in range(1, min(experts, domain) + 1) if experts % ep == 0 and shards % ep == 0]
            self.assume("parallelism.ep", max(fits), "experts over an NVLink domain, as the source does not say")
        ep = self.has("parallelism.ep")
        if replicas % ep and shards % ep == 0 and self.has("parallelism.expert_tp") is None:
            self.assume("parallelism.expert_tp", 1, f"ep {ep} spans ranks of tp {found.tp}")

    def stages(self, chunks: int) -> None:
        """Set the layout of layers that do not divide over chunks, if the framework needs equal division."""
        split, layers = self.spec["parallelism"], self.has("model.layers")
        fixed = ("layout", "first_layers", "last_layers", "account_for_embedding", "account_for_loss")
        if self.framework.stages == "any" or any(split.get(key) for key in fixed):
            return
        accounted = ("loss",) if (layers + 1) % chunks == 0 else ("embedding", "loss")
        for part in accounted if layers % chunks else ():  # each counts as a layer (nemo/collections/llm)
            why = f"{layers} layers over {chunks} chunks, as NeMo's recipe of Llama 3.1 405B"
            self.assume(f"parallelism.account_for_{part}", True, why)

    def sharding(self, found: Degrees, domain: int) -> None:
        """Set the sharding over replicas. domain: GPUs per NVLink domain."""
        run, split = self.run, self.spec["parallelism"]
        zero = self.default("parallelism.zero", run.zero_stage)
        if zero == 2:
            overlap, sequences = run.overlap_grad_reduce, self.has("training.micro_batch") * (run.dp or 1)
            under = self.framework.value("parallelism.overlap.grad_reduce") if overlap is None else overlap
            often = run.global_batch != sequences or not under  # elsewhere than under the one backward pass
            if found.pp > 1 and often:
                what = f"zero_stage 2 with pp {found.pp}: gradients reduced between passes are not modelled"
                raise Refusal("ZeRO-2", what)
            split["reduce_every_microbatch"] = often
        if zero == 3:
            self.sharded()
            hybrid = HYBRID.search(words(run)) and found.dp > domain and found.dp % domain == 0
            if hybrid and self.read("words hybrid sharding"):
                self.assume("parallelism.fsdp.shard", domain, "hybrid sharding: inside of a node")

    def overlap(self, found: Degrees, vpp: int) -> None:
        """Set the overlap of communication with computation."""
        run, zero = self.run, self.has("parallelism.zero")
        sharded = "parallelism.overlap.grad_reduce_sharded"
        name = sharded if zero in (1, 2) and sharded in self.framework.defaults else ""
        self.default("parallelism.overlap.grad_reduce", run.overlap_grad_reduce, name)
        gather = run.overlap_param_gather if zero in (1, 2) else False
        self.default("parallelism.overlap.param_gather", gather)
        interleaved = "parallelism.overlap.p2p_interleaved" if vpp > 1 else ""
        self.default("parallelism.overlap.p2p", run.overlap_p2p, interleaved)
        if found.tp > 1 and found.pp > 1 and not self.has("parallelism.sequence_parallel"):
            self.default("parallelism.scatter_gather")
        self.default("parallelism.overlap.tp", self.overlapped_tp(found))
        for key in ("sms", "memory"):
            self.default(f"parallelism.overlap.{key}")

    def overlapped_tp(self, found: Degrees) -> str | None:
        """Return the tensor-parallel communication that overlaps GEMMs; None: the framework's default.

        A 1 in the row is the most that its users can choose, which needs the sequence split; a 0 leaves what it always does.
        """
        if found.tp == 1:
            return "none"
        if isinstance(self.run.overlap_tp, str):
            return self.run.overlap_tp
        if not self.run.overlap_tp:
            return None if "parallelism.overlap.tp" in self.framework.defaults else "none"
        most = self.framework.overlapped_tp
        return "bulk" if most in ("ring", "async") and not self.has("parallelism.sequence_parallel") else most

    def habits(self) -> None:
        """Set the framework's other defaults (HABITS), where they apply to this model and split."""
        if not known(self.run, self.view):
            self.assumed.append(f"framework: as {self.framework.title} ({self.run.framework!r} is not in the table)")
        if self.framework.assumes:
            self.assumed.append(self.framework.assumes)
        unfit = {
            "training.recompute_modules": not self.reruns_modules(),
            "parallelism.overlap.ep": not self.alternates(),
        }
        for key in self.framework.defaults:
            if key in HABITS and self.has(key) is None and not unfit.get(key) and self.divided(HABITS[key]):
                self.default(key)

    def divided(self, key: str) -> bool:
        """Return whether the value of a key, such as the degree `parallelism.ep`, is above 1; True for ""."""
        return not key or (self.has(key) or 1) > 1

    def alternates(self) -> bool:
        """Return whether passes can alternate, if the framework has them do so: with one stage, or several chunks per stage."""
        split = self.spec["parallelism"]
        microbatches = self._elsewhere("parallelism.overlap.ep", "parallelism.overlap.ep")[0] == "microbatch"
        return not microbatches or split["pp"] == 1 or split["schedule"] == "interleaved"

    def reruns_modules(self) -> bool:
        """Return whether the model has the modules that frameworks recompute by default: latent attention and experts."""
        shapes = self.spec["model"]
        modules = bool(shapes.get("mla")) or bool(self.recipe and "training.recompute_modules" in self.recipe.values)
        return bool(self.has("training.recompute") == "selective" and modules and shapes.get("experts"))

    def words(self) -> None:
        """Set what the source says in words, as far as it concerns this split."""
        unfit = {
            "parallelism.overlap.tp": not self.has("parallelism.sequence_parallel"),
            "training.fp8_scaling": self.has("training.precision") != "fp8",
        }
        for phrase, said in phrases(self.run, self.architecture, self.view.hidden):
            captured = phrase.value == "layer" and self.has(phrase.key) == "full"  # more than the words say
            if self.divided(SPLIT_WORDS.get(phrase.key, "")) and not unfit.get(phrase.key) and not captured:
                self.sources.add(phrase.source)
                self.assume(phrase.key, phrase.value, f"the source says {said!r}")

    def overrides(self) -> None:
        """Set the values of the row's column `set`."""
        for key, text in self.run.set:
            if of_topology(key):
                raise Refusal("set", f"set: {key} is a key of the cluster; write it in the column cluster_set")
            try:
                replace(self.spec, tuple(key.split(".")), scalar(key, text), key)
            except InputError as error:
                raise Refusal("set", f"set: {error}") from error

    def sharded(self) -> None:
        """Set how sharded parameters are gathered: as in the framework if it shards them, else as in FSDP2."""
        own = [key for key in self.framework.defaults if key.startswith(("parallelism.fsdp.", "parallelism.zero3."))]
        for key in own:
            self.default(key)
        if not own:
            self.put("parallelism.fsdp", {})
            why = "the framework says nothing of sharded parameters"
            self.assumed.append(f"parallelism.fsdp: FSDP2's, block by block ({why})")
