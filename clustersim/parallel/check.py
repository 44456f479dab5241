"""Checks of a job across fields, before it is placed on a cluster.

Each check takes a job and yields findings. A finding names the dotted key of the wrong value, and says what to use instead. A
check yields nothing for a valid job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from clustersim.config.workload import Block, Fsdp, Model, Parallelism
from clustersim.errors import ConfigError, InputError, UnknownNameError
from clustersim.frameworks.table import Rule, load
from clustersim.hardware.formats import format_of
from clustersim.model.lora import PACKED, TARGETS
from clustersim.model.parameters import adapter_targets, distinct_kinds
from clustersim.model.sharding import width
from clustersim.parallel.job import Job, degrees, divisors, least_dp, listed
from clustersim.parallel.layout import portions

Finding = tuple[str, str]
"""(dotted key of the wrong value, text after the key with the error and its remedy)."""


def check(job: Job) -> Job:
    """Return the job unchanged if it passes all `RULES`. Raises ConfigError for the finding whose key comes first in the file, if
    there is any."""
    findings = [finding for rule in RULES for finding in rule(job)]
    if findings:
        # a new error each time: a stored one would keep this frame, and with it all data of a sweep's illegal points
        raise job.error(*min(findings, key=lambda finding: _line(job.error(*finding))))
    return job


def _line(error: ConfigError) -> tuple[int, int]:
    """Return the (line, column) of the workload file to which an error points."""
    return error.line, error.column


def model_shapes(job: Job) -> Iterator[Finding]:
    """Yield a finding for each contradiction between keys that describe the whole model.

    Heads must divide `hidden` (or `head_dim` is set), key/value heads must divide heads, `topk` must not exceed the experts, and
    keys of experts and of dense layers need a mixture of experts.
    """
    m = job.model
    if m.head_dim is None and m.hidden % m.heads:
        yield "model.heads", f"{m.heads} does not divide hidden {m.hidden}; use a divisor of it or set model.head_dim"
    if m.kv_heads is not None and m.heads % m.kv_heads:
        yield "model.kv_heads", f"{m.kv_heads} does not divide {m.heads} heads; use {listed(divisors(m.heads))}"
    if m.experts is None and m.blocks and any(block.experts for block in m.blocks):
        yield (
            "model.blocks",
            "a block has experts and the model none; set model.experts, and experts: 0 in the blocks without",
        )
    if m.experts is None and m.topk > 1:
        yield "model.topk", f"{m.topk} needs a mixture of experts; set model.experts"
    if m.experts is None and m.shared_experts:
        yield "model.shared_experts", f"{m.shared_experts} needs a mixture of experts; set model.experts"
    if m.experts is not None and m.topk > m.experts:
        yield "model.topk", f"{m.topk} is more than the {m.experts} experts; use at most {m.experts}"
    yield from _router(m)
    if m.experts is None and m.dense_layers:
        yield "model.dense_layers", f"{m.dense_layers} needs a mixture of experts in the others; set model.experts"
    elif m.dense_layers >= m.layers:
        yield "model.dense_layers", f"{m.dense_layers} leaves no layer with experts of {m.layers}; drop model.experts"
    if m.dense_ffn is not None and not m.dense_layers:
        yield "model.dense_ffn", f"{m.dense_ffn} is the width of dense layers; set model.dense_layers or write ffn"


def _router(m: Model) -> Iterator[Finding]:
    """Yield a finding unless `router_groups` divides the experts, and the groups per token have at least `topk` experts."""
    experts, groups, chosen = m.experts or 1, m.router_groups, m.router_group_topk or m.router_groups
    if groups == 1 and chosen == 1:
        return
    if experts % groups:
        yield "model.router_groups", f"{groups} does not divide {experts} experts; use {listed(divisors(experts))}"
    elif chosen > groups:
        yield "model.router_group_topk", f"{chosen} is more than the {groups} groups; use at most {groups}"
    elif m.topk > chosen * (experts // groups):
        reachable = chosen * (experts // groups)
        yield (
            "model.router_group_topk",
            f"{chosen} groups hold {reachable} experts and a token visits {m.topk}; use more",
        )


def block_shapes(job: Job) -> Iterator[Finding]:
    """Yield a finding for each contradiction in `model.blocks`, or between the blocks and keys of the whole model. Also yield a
    finding for a window without causal attention, and for keys that latent attention (`mla`) excludes."""
    m = job.model
    if m.blocks and m.dense_layers:
        yield (
            "model.dense_layers",
            f"{m.dense_layers} and model.blocks both say which layers have experts; keep one of them",
        )
    if m.blocks and m.experts is not None and all(kind.experts is None for kind, _ in distinct_kinds(m)):
        yield "model.blocks", f"leaves no layer with experts of {m.layers}; drop model.experts"
    windows = [
        ("model.window", m.window),
        *((f"model.blocks.{i}.window", block.window) for i, block in enumerate(m.blocks)),
    ]
    for key, window in windows:
        if window and not m.causal:
            yield key, f"{window} needs model.causal: true, a window looks back; leave it out"
    for i, block in enumerate(m.blocks):
        yield from _block_shapes(m, block, f"model.blocks.{i}")
    if m.mla is not None:
        for name, value in (("kv_heads", m.kv_heads), ("head_dim", m.head_dim), ("qk_norm", m.qk_norm or None)):
            if value is not None:
                yield f"model.{name}", f"{str(value).lower()} and model.mla exclude each other; leave it out"


def encoder_decoder(job: Job) -> Iterator[Finding]:
    """Yield a finding for each setting that an encoder excludes, such as cp above 1, latent attention or an explicit layout. Also
    yield a finding if the encoder's sequence is too long or not a multiple of tp, or is set without an encoder."""
    m, t, p = job.model, job.training, job.parallelism
    if not m.encoder_layers:
        if t.encoder_seq is not None:
            yield "training.encoder_seq", f"{t.encoder_seq} needs an encoder; set model.encoder_layers or leave it out"
        return
    excluded = {"mla": m.mla, "mtp_layers": m.mtp_layers, "causal": not m.causal}
    for name, is_set in excluded.items():
        if is_set:
            yield (
                f"model.{name}",
                f"and model.encoder_layers {m.encoder_layers} exclude each other; leave one of them out",
            )
    if p.cp > 1:
        yield "parallelism.cp", f"{p.cp} ranks share one sequence, and an encoder and a decoder have two; write 1"
    for name, is_set in (("layout", p.layout is not None), ("partition", p.partition != "layers")):
        if is_set:
            yield f"parallelism.{name}", "an encoder and a decoder are divided as evenly as they can be; leave it out"
    seq = t.encoder_seq or t.seq
    if p.sequence_parallel and seq % p.tp:
        yield "training.encoder_seq", f"{seq} is not a multiple of tp {p.tp}, as sequence parallelism needs; pad it"
    if m.max_positions is not None and seq > m.max_positions:
        yield (
            "training.encoder_seq",
            f"{seq} is longer than model.max_positions {m.max_positions}; shorten it or raise that",
        )
    if t.recompute == "full" and t.recompute_method == "block":
        yield "training.recompute_method", "block needs a model without an encoder; write uniform"


def _block_shapes(m: Model, block: Block, key: str) -> Iterator[Finding]:
    """Yield a finding for each contradiction in one entry of `model.blocks`: heads, key/value heads, and experts.

    key: dotted key of the entry, such as `model.blocks.0`. Values that the entry lacks are the model's.
    """
    heads, kv = block.heads or m.heads, block.kv_heads or m.kv_heads
    experts = m.experts if block.experts is None else block.experts
    if block.heads and (block.head_dim or m.head_dim) is None and m.hidden % heads:
        yield f"{key}.heads", f"{heads} does not divide hidden {m.hidden}; use a divisor of it or set head_dim"
    if kv and heads % kv:
        yield key, f"{kv} key/value heads do not divide {heads} heads; use {listed(divisors(heads))}"
    if not experts and (block.topk or block.shared_experts):
        yield key, "has topk or shared_experts and no experts; leave them out"
    elif experts and (block.topk or m.topk) > experts:
        yield key, f"topk {block.topk or m.topk} is more than its {experts} experts; use at most {experts}"


def mixers(job: Job) -> Iterator[Finding]:
    """Yield a finding for each setting that the mixers of the blocks do not support.

    A mixer other than attention needs its shapes, a causal model without an encoder, tp that divides its heads or channels, and
    cp 1. An indexer needs latent attention, a window, and cp 1. Only the first kind of block with such a mixer is checked, and
    then no indexer.
    """
    m, tp = job.model, job.parallelism.tp
    for kind, _ in distinct_kinds(m):
        needs = {"mamba2": "mamba", "attention+mamba2": "mamba", "delta": "delta", "conv": "conv"}.get(kind.mixer)
        if needs is None:
            continue
        if getattr(m, needs) is None:
            yield "model.mixer", f"{kind.mixer} needs its shapes; set model.{needs}"
            return
        if m.encoder_layers or not m.causal:
            yield (
                "model.mixer",
                f"{kind.mixer} needs a causal model without an encoder; set model.causal: true and encoder_layers: 0",
            )
        counts = [m.mamba.heads] if needs == "mamba" and m.mamba else [m.hidden]
        if needs == "delta" and m.delta:
            counts = [m.delta.heads, m.delta.key_heads or m.delta.heads]
        if wrong := next((count for count in counts if count % tp), None):
            yield (
                "parallelism.tp",
                f"{tp} does not divide the {wrong} heads or channels of mixer {kind.mixer}; lower it",
            )
        if job.parallelism.cp > 1:
            yield (
                "parallelism.cp",
                f"{job.parallelism.cp} cuts the sequence of mixer {kind.mixer}, not supported; write 1",
            )
        return
    if m.indexer and (not m.mla or not m.window or job.parallelism.cp > 1):
        yield "model.indexer", "needs model.mla, model.window as the number of keys it chooses, and cp 1; set them"


def tensor_parallel(job: Job) -> Iterator[Finding]:
    """Yield a finding unless tp divides the heads and MLP widths of all blocks, and can share their key/value heads.

    The width of experts need not divide by tp if `expert_tp` is set. With sequence parallelism, tp·cp must also divide the
    sequence.
    """
    tp = job.parallelism.tp
    layers = [kind for kind, _ in distinct_kinds(job.model)]
    repeats = framework_rule(job, "repeats_kv_heads") is not False

    def remedy() -> str:
        degrees = divisors(layers[0].heads)
        return f"use {listed([degree for degree in degrees if all(_fits_degree(kind, degree, repeats) for kind in layers)])}"

    for kind in layers:
        kv = kind.kv_heads or kind.heads
        if kind.heads % tp:
            yield "parallelism.tp", f"{tp} does not divide {kind.heads} attention heads; {remedy()}"
        elif not _can_share_kv_heads(kind, tp, repeats):
            framework = job.training.framework or "Megatron-Core"
            relation = "is neither a divisor nor a multiple of" if repeats else "does not divide"
            yield "parallelism.tp", f"{tp} {relation} {kv} key/value heads, as {framework} needs; {remedy()}"
        elif width(kind) % tp and not (kind.experts and job.parallelism.expert_tp and not kind.shared_experts):
            what = (
                f"the width {width(kind)} of dense layers"
                if _is_dense_in_mixture(job.model, kind)
                else f"the MLP's width {width(kind)}"
            )
            yield "parallelism.tp", f"{tp} does not divide {what}; {remedy()}"
    if job.parallelism.sequence_parallel and job.training.seq % (tp * job.parallelism.cp):
        cp = f" × cp {job.parallelism.cp}" if job.parallelism.cp > 1 else ""
        yield (
            "training.seq",
            f"{job.training.seq} is not a multiple of tp {tp}{cp}, as sequence parallelism needs; pad it",
        )


def _fits_degree(kind: Model, tp: int, repeats: bool) -> bool:
    """Return whether tp divides the heads and MLP width of a kind of block, and can share its key/value heads.

    repeats: whether several ranks may hold the same key/value head.
    """
    return kind.heads % tp == 0 and _can_share_kv_heads(kind, tp, repeats) and width(kind) % tp == 0


def _can_share_kv_heads(kind: Model, ranks: int, repeats: bool) -> bool:
    """Return whether `ranks` is a divisor of a block's key/value heads or, if `repeats`, a multiple of them.

    repeats: whether several ranks may hold the same head. Latent attention counts its query heads. Source: Megatron-Core d98e8a6,
    transformer/transformer_config.py: num_query_groups is a multiple or a divisor of the ranks.
    """
    kv = kind.heads if kind.mla else kind.kv_heads or kind.heads
    return kv % ranks == 0 or (repeats and ranks % kv == 0)


def framework_rule(job: Job, name: Rule) -> object:
    """Return the value of rule `name` in the table of the job's framework. Return None if the framework has no such rule or is
    unknown, or the job names no framework."""
    with suppress(UnknownNameError):  # an unknown framework is reported where it is used
        entry = load(job.training.framework).rules.get(name) if job.training.framework else None
        return None if entry is None else entry.value
    return None


def _is_dense_in_mixture(model: Model, kind: Model) -> bool:
    """Return whether a kind of block has a dense MLP although the model has experts."""
    return model.experts is not None and not kind.experts


def expert_overlap(job: Job) -> Iterator[Finding]:
    """Yield a finding unless the work that `overlap.ep` hides exchanges behind exists.

    `shared` needs shared experts that are not recomputed, and ep above 1. `microbatch` has the conditions of
    `microbatch_overlap`.
    """
    p, t, key = job.parallelism, job.training, "parallelism.overlap.ep"
    if p.overlap.ep == "none":
        return
    if p.overlap.ep == "microbatch":
        yield from microbatch_overlap(job)
    elif not any(kind.shared_experts for kind, _ in distinct_kinds(job.model)):
        yield (
            key,
            "shared overlaps the exchanges with experts that every token visits; set model.shared_experts or write none",
        )
    elif p.ep == 1:
        yield key, "shared overlaps exchanges between ranks, and ep is 1; raise parallelism.ep or write none"
    elif "shared_experts" in t.recompute_modules:
        yield key, "shared and training.recompute_modules: shared_experts exclude each other; leave one of them out"


def microbatch_overlap(job: Job) -> Iterator[Finding]:
    """Yield a finding for each setting that excludes `overlap.ep: microbatch`, whatever `overlap.ep` is in the job. Source of the
    conditions: Megatron-Core, transformer/transformer_config.py."""
    p, t, key = job.parallelism, job.training, "parallelism.overlap.ep"
    if p.ep == 1:
        yield key, "microbatch overlaps exchanges between ranks, and ep is 1; raise parallelism.ep or write none"
    if not job.pipeline.paired and not p.schedule.startswith("interleaved") and (p.schedule != "1f1b" or p.pp > 1):
        yield (
            key,
            f"microbatch needs schedule interleaved with vpp of 2 or more, dualpipe, dualpipev, or 1f1b with pp 1, "
            f"not {p.schedule} with pp {p.pp}",
        )
    if t.recompute == "full" or "moe" in t.recompute_modules:
        what = "full" if t.recompute == "full" else "moe"
        yield (
            key,
            f"microbatch cannot overlap exchanges that are recomputed ({what}); recompute other modules or write none",
        )
    if (p.zero == 3 and (p.reshard_after_forward or not p.no_sync)) or p.reduce_every_microbatch:
        what = "parallelism.zero: 3" if p.zero == 3 else "parallelism.reduce_every_microbatch"
        yield key, f"microbatch and {what} exclude each other; leave one of them out"


def expert_parallel(job: Job) -> Iterator[Finding]:
    """Yield a finding for each invalid setting of experts: imbalance, capacity, dispatch, ep and expert_tp.

    ep must divide the experts, ep·expert_tp the ranks tp·cp·dp, and expert_tp the width of an expert. Experts on several ranks
    with tp above 1 need sequence parallelism. Without experts, each key for experts is a finding.
    """
    p, experts, busiest = job.parallelism, job.model.experts, job.training.expert_imbalance
    if busiest > p.ep:
        remedy = f"use 1 to {p.ep}" if p.ep > 1 else "use 1, or set parallelism.ep above 1"
        yield "training.expert_imbalance", f"{busiest:g} times the mean is more than all, with ep {p.ep}; {remedy}"
    t = job.training
    if t.capacity_factor is not None and experts is None:
        yield (
            "training.capacity_factor",
            f"{t.capacity_factor:g} needs a mixture of experts; set model.experts or leave it out",
        )
    if t.pad_to_capacity and t.capacity_factor is None:
        yield "training.pad_to_capacity", "true needs training.capacity_factor; set it or write false"
    if t.dispatch is not None and experts is None:
        yield "training.dispatch", f"{t.dispatch} needs a mixture of experts; set model.experts or leave it out"
    if experts is None:
        for key, value in (("ep", p.ep if p.ep > 1 else None), ("expert_tp", p.expert_tp)):
            if value is not None:
                yield f"parallelism.{key}", f"{value} needs a mixture of experts; set model.experts or leave it out"
        return
    slices = "" if p.etp == p.tp else f" × expert_tp {p.etp}"
    dp = p.dp if isinstance(p.dp, int) else 0
    legal = listed(degrees(job, dp)) or "another dp"
    if experts % p.ep:
        yield "parallelism.ep", f"{p.ep} does not divide {experts} experts; use {legal}"
    elif dp % least_dp(p, p.ep):
        ranks = f"tp {p.tp} × dp {dp}" if slices else f"dp {dp}"
        key, degree = ("ep", f"{p.ep}{slices}") if p.ep > 1 else ("expert_tp", p.etp)
        whole_experts_fit = p.etp > 1 and dp % least_dp(p.model_copy(update={"expert_tp": 1}), p.ep) == 0
        remedy = (legal + ", or expert_tp: 1" * whole_experts_fit) if p.ep > 1 else listed(divisors(p.tp * dp))
        yield f"parallelism.{key}", f"{degree} does not divide {ranks}; use {remedy}"
    if width(job.model) % p.etp:
        yield (
            "parallelism.expert_tp",
            f"{p.etp} does not divide the width {width(job.model)} of an expert; use a divisor of it",
        )
    if p.spread and p.tp > 1 and not p.sequence_parallel:
        yield (
            "parallelism.sequence_parallel",
            f"ep {p.ep}{slices} with tp {p.tp} needs it, or tp ranks would send the same tokens; write true",
        )


def context_parallel(job: Job) -> Iterator[Finding]:
    """Yield a finding unless cp divides the sequence into equal chunks, and `cp_type` supports the model's attention.

    Types that exchange heads need a number of ranks that fits the heads. If cp is 1, only `cp_inner` without `a2a+p2p` is a
    finding.
    """
    m, t, p = job.model, job.training, job.parallelism
    if p.cp_inner is not None and p.cp_type != "a2a+p2p":
        yield "parallelism.cp_inner", f"{p.cp_inner} is for cp_type a2a+p2p, not {p.cp_type}; leave it out"
    if p.cp == 1:
        return
    chunks = 2 * p.cp if m.causal and p.cp_type != "a2a" else p.cp
    if p.cp > t.seq:
        yield "parallelism.cp", f"{p.cp} ranks cannot share {t.seq} tokens; use at most {t.seq}"
    elif t.seq % chunks:
        yield "training.seq", f"{t.seq} does not divide into the {chunks} chunks of cp {p.cp}; pad it"
    if t.attention == "unfused":
        yield "training.attention", f"unfused runs on whole sequences, not with cp {p.cp}; use flash"
    if "p2p" in p.cp_type and any(kind.window for kind, _ in distinct_kinds(m)):
        yield "parallelism.cp_type", f"{p.cp_type} has no sliding windows; use all_gather or a2a"
    if p.cp_type == "a2a+p2p" and (p.cp_inner is None or p.cp % p.cp_inner or p.cp_inner in (1, p.cp)):
        legal = listed(divisors(p.cp)[1:-1])
        remedy = f"set parallelism.cp_inner to one of {legal}" if legal else "use p2p or a2a"
        yield "parallelism.cp_type", f"a2a+p2p cuts cp {p.cp} into groups that exchange heads; {remedy}"
    elif p.cp_type.startswith("a2a"):
        yield from _exchanged_heads(job, p.cp_inner or p.cp)


def _exchanged_heads(job: Job, ranks: int) -> Iterator[Finding]:
    """Yield at most one finding unless `ranks`, which exchange heads, divides the heads that each tp rank has. Key/value heads
    may also be repeated on several ranks, unless the framework or latent attention excludes that."""
    m, p = job.model, job.parallelism
    repeats_kv_heads = framework_rule(job, "exchanges_few_kv_heads") is not False
    for name, heads, repeats in (
        ("attention", m.heads, False),
        ("key/value", m.kv_heads or m.heads, repeats_kv_heads and not m.mla),
    ):
        local_heads = max(heads // p.tp, 1)  # heads of one tensor-parallel rank
        if local_heads % ranks and not (repeats and ranks % local_heads == 0):
            key = "cp_inner" if p.cp_inner else "cp"
            needed_by = f", as {job.training.framework} needs" if job.training.framework else ""
            yield (
                f"parallelism.{key}",
                f"{ranks} ranks exchange heads, and tp {p.tp} × {ranks} does not divide {heads} {name} heads{needed_by}; "
                f"use {listed(divisors(local_heads))} or cp_type p2p",
            )
            return


def pipeline_parallel(job: Job) -> Iterator[Finding]:
    """Yield a finding unless every stage can have a layer, and the schedule supports vpp and sharded parameters. An explicit
    layout is checked against the model, and nothing else is then checked."""
    p = job.parallelism
    yield from _explicit_layout(job)
    if p.layout is not None:
        return
    ends = p.account_for_embedding + p.account_for_loss + (p.partition == "compute")
    layers = job.model.encoder_layers + job.model.layers + ends
    if p.pp > layers:
        yield "parallelism.pp", f"pp > layers: {p.pp} stages cannot share {layers} layers; use at most {layers}"
    elif p.pp * p.vpp > layers:
        yield "parallelism.vpp", f"{p.pp} stages × {p.vpp} chunks > {layers} layers; use at most {layers // p.pp}"
    if p.vpp > 1 and p.schedule in ("gpipe", "1f1b"):
        yield "parallelism.vpp", f"{p.vpp} chunks need an interleaved schedule, not {p.schedule}; use vpp 1"
    if job.pipeline.paired and p.zero == 3 and (p.reshard_after_forward or not p.no_sync):
        per_pass = f"for each pass, which {p.schedule} runs two by two"
        if p.reshard_after_forward:
            yield "parallelism.fsdp.reshard_after_forward", f"true gathers parameters {per_pass}; write false"
        else:
            yield "parallelism.fsdp.no_sync", f"false reduces gradients {per_pass}; write true"
    if p.vpp > 1 and p.pp == 1 and not job.pipeline.paired:
        yield "parallelism.vpp", f"{p.vpp} chunks need a pipeline; set parallelism.pp above 1 or vpp 1"


def _explicit_layout(job: Job) -> Iterator[Finding]:
    """Yield a finding if keys that assign layers to stages exclude each other, or do not match the model. The keys are `layout`,
    `first_layers`, `last_layers`, `account_for_embedding`, `account_for_loss` and `partition`."""
    p = job.parallelism
    explicit = [name for name in ("layout", "first_layers", "last_layers") if getattr(p, name) is not None]
    counted = [name for name in ("account_for_embedding", "account_for_loss") if getattr(p, name)]
    if p.partition == "compute" and (explicit or counted):
        yield (
            "parallelism.partition",
            f"and parallelism.{[*explicit, *counted][0]} exclude each other; keep one of them",
        )
        return
    if not explicit:
        return
    for excluded in ("account_for_embedding", "account_for_loss", *(explicit[1:] if explicit[0] == "layout" else ())):
        if getattr(p, excluded):
            yield f"parallelism.{excluded}", f"and parallelism.{explicit[0]} exclude each other; keep one of them"
            return
    if p.pp == 1 and explicit[0] != "layout":
        yield (
            f"parallelism.{explicit[0]}",
            f"{getattr(p, explicit[0])} needs a pipeline; set parallelism.pp above 1 or leave it out",
        )
        return
    try:
        portions(p, job.model)
    except InputError as error:
        yield f"parallelism.{explicit[0]}", str(error)


def packed_fits(job: Job) -> Iterator[Finding]:
    """Yield a finding if packed or padded documents are longer than a sequence, or another setting excludes them."""
    m, t = job.model, job.training
    lengths, name = t.packed or t.padded, "packed" if t.packed else "padded"
    if lengths is None:
        return
    longest = max(lengths.mean, lengths.max or 0)
    if longest > t.seq or lengths.mean > (lengths.max or t.seq):
        fits = f"write mean ≤ max ≤ seq {t.seq}"
        yield f"training.{name}", f"documents of {lengths.mean} to {longest} tokens do not fit; {fits}"
    for key, is_set, legal in (
        ("training.attention", t.attention == "unfused", "flash"),
        ("parallelism.cp", t.padded and job.parallelism.cp > 1, "1"),
        ("model.encoder_layers", m.encoder_layers, "0"),
        ("training.padded", t.packed and t.padded, "null"),
    ):
        if is_set:
            yield key, f"and training.{name} exclude each other; write {legal}, or leave {name} out"


def training_fits(job: Job) -> Iterator[Finding]:
    """Yield a finding for each contradiction between batch, sequence, data types, and the reduction of gradients. Among others,
    `micro_batch` must divide `global_batch`, and ZeRO-2 needs gradients that are reduced during passes."""
    m, t, p = job.model, job.training, job.parallelism
    if m.max_positions is not None and t.seq > m.max_positions:
        yield "training.seq", f"{t.seq} is longer than model.max_positions {m.max_positions}; shorten it or raise that"
    if t.global_batch % t.micro_batch:
        yield (
            "training.micro_batch",
            f"{t.micro_batch} does not divide global_batch {t.global_batch}; use {listed(divisors(t.global_batch))}",
        )
    for key, count in (("bf16_first_layers", t.bf16_first_layers), ("bf16_last_layers", t.bf16_last_layers)):
        if count > m.layers:
            yield f"training.{key}", f"{count} is more than the {m.layers} of model.layers; write at most {m.layers}"
    if t.attention == "cudnn_fp8" and not format_of(t.precision, t.fp8_scaling):  # Transformer Engine's fp8_dpa
        yield "training.attention", f"cudnn_fp8 needs precision fp8 or narrower, not {t.precision}; write it, or cudnn"
    if t.precision in ("fp32", "tf32") and t.gradients != "fp32":
        yield "training.gradients", f"{t.gradients} is narrower than {t.precision} weights; write fp32"
    if t.precision in ("fp16", "bf16") and t.gradients not in ("fp32", t.precision):
        yield "training.gradients", f"{t.gradients} does not match {t.precision} weights; write fp32 or {t.precision}"
    if p.reduce_every_microbatch and (p.pp > 1 or p.zero == 3):
        remedy = "write fsdp.no_sync: false" if p.zero == 3 else f"leave it out, or set parallelism.pp {p.pp} to 1"
        yield (
            "parallelism.reduce_every_microbatch",
            f"true needs replicas that neither pp nor zero: 3 divides; {remedy}",
        )
    if p.zero == 2 and not p.overlap.grad_reduce and not p.reduce_every_microbatch:
        yield (
            "parallelism.zero",
            "2 frees gradients as they are reduced; set parallelism.overlap.grad_reduce: true or write 1",
        )
    if p.overlap.param_gather and not p.zero:
        yield (
            "parallelism.overlap.param_gather",
            "true gathers what zero: 1 shards; set parallelism.zero: 1 or write false",
        )


def adapted(job: Job) -> Iterator[Finding]:
    """Yield a finding for each setting of low-rank adapters that the model, tp or the precision does not support. Without
    `training.lora` there are no findings."""
    lora, p, t, model = job.training.lora, job.parallelism, job.training, job.model
    if lora is None:
        return
    legal = {target: None for kind, _ in distinct_kinds(model) for target in adapter_targets(kind)}
    for target in lora.targets:
        if target not in legal and "targets" in lora.model_fields_set:
            yield "training.lora.targets", f"no block has a {target} with adapters; use {', '.join(legal)}"
    for fused, parts in TARGETS.values():
        if fused in lora.targets and (listed_parts := [part for part in parts if part in lora.targets]):
            yield "training.lora.targets", f"{fused} includes {listed_parts[0]}, which is listed too; keep one of them"
    if lora.rank % p.tp:
        yield "training.lora.rank", f"{lora.rank} is not a multiple of tp {p.tp}, which cuts it; use one, or a lower tp"
    if lora.base in PACKED and format_of(t.precision, t.fp8_scaling):
        yield "training.lora.base", f"{lora.base} is unpacked to 16 bits, and precision is {t.precision}; write bf16"
    elif lora.base not in (None, *PACKED, t.precision):
        yield (
            "training.lora.base",
            f"{lora.base} weights need GEMMs in {lora.base}; write training.precision: {lora.base}",
        )
    if model.encoder_layers:
        yield "model.encoder_layers", "training.lora is not modelled with an encoder; leave it out"
    if t.optimizer == "muon":
        yield "training.optimizer", "training.lora is not modelled with muon; write adam"


def offloaded(job: Job) -> Iterator[Finding]:
    """Yield a finding for each setting of `training.offload` that the optimizer, ZeRO stage or schedule does not support."""
    t, p, offload = job.training, job.parallelism, job.training.offload
    if offload.optimizer_states and t.optimizer not in ("adam", "lion", "sgd"):
        yield "training.offload.optimizer_states", f"is for adam, lion and sgd on the CPU, not {t.optimizer}; write 0"
    if offload.parameters and (p.zero < 3 or offload.optimizer_states < 1):
        needs = "parallelism.zero: 3" if p.zero < 3 else "training.offload.optimizer_states: 1"
        yield "training.offload.parameters", f"true needs {needs}; write that, or false"
    if not offload.optimizer_states and (offload.overlap or offload.threads or offload.update != "fused"):
        yield (
            "training.offload",
            "overlap, threads and update are of the optimizer; set training.offload.optimizer_states or drop them",
        )
    if offload.activations:
        halves = p.schedule.split("/")[0] not in ("gpipe", "1f1b", "interleaved")
        for key, wrong, remedy in (
            ("parallelism.schedule", halves, "with gpipe, 1f1b or interleaved, whose backward passes are whole"),
            ("parallelism.overlap.ep", p.overlap.ep == "microbatch", "with none or shared"),
            ("parallelism.zero3", p.zero3 is not None, "with parallelism.fsdp"),
        ):
            if wrong:
                yield key, f"and training.offload.activations exclude each other; use it {remedy}"


def sharded_parameters(job: Job) -> Iterator[Finding]:
    """Yield a finding for settings of FSDP, ZeRO-3 and optimizer instances that need another `zero` or exclude each other."""
    p = job.parallelism
    if p.fsdp != Fsdp() and p.zero < 3:
        yield (
            "parallelism.fsdp",
            f"needs sharded parameters, and zero is {p.zero}; set parallelism.zero: 3 or leave it out",
        )
    if p.zero3 is not None:
        yield from _deepspeed(p)
    if p.zero > 1 and p.pp > 1 and job.training.framework:
        yield from _with_pipeline(job, p)
    if p.optimizer_instances > 1 and not p.zero:
        yield (
            "parallelism.optimizer_instances",
            f"{p.optimizer_instances} are copies of what zero shards, and zero is 0; set parallelism.zero: 1 or leave it out",
        )
    if p.optimizer_instances > 1 and p.fsdp.shard:
        yield "parallelism.fsdp.shard", "and parallelism.optimizer_instances say the same; keep one of them"


def _with_pipeline(job: Job, p: Parallelism) -> Iterator[Finding]:
    """Yield a finding if `zero` exceeds what the framework supports with pipeline stages."""
    highest = framework_rule(job, "zero_with_pipeline")
    if isinstance(highest, int) and p.zero > highest:
        sentence = f"{job.training.framework} has no pipeline with zero {p.zero}, and pp is {p.pp}"
        yield "parallelism.zero", f"{sentence}; write zero {highest} or pp 1"


def _deepspeed(p: Parallelism) -> Iterator[Finding]:
    """Yield a finding for each setting that excludes `parallelism.zero3`."""
    excluded = (
        (p.zero < 3, f"shards parameters, and zero is {p.zero}; set parallelism.zero: 3 or leave it out"),
        (p.pp > 1, f"has no pipeline with ZeRO-3, and pp is {p.pp}; write pp 1 or leave it out"),
        (p.fsdp != Fsdp(), "and parallelism.fsdp exclude each other; keep one of them"),
        (p.optimizer_instances > 1, "has one copy of the parameters; write optimizer_instances: 1"),
        (p.spread, "keeps experts whole with ZeRO-3; write ep 1 and expert_tp as tp"),
    )
    yield from (("parallelism.zero3", sentence) for wrong, sentence in excluded if wrong)


def recomputed(job: Job) -> Iterator[Finding]:
    """Yield a finding for each recomputation key that `training.recompute` does not use, or that another key or the model
    excludes."""
    t, m = job.training, job.model
    if t.recompute_modules and t.recompute != "selective":
        yield (
            "training.recompute_modules",
            f"need training.recompute: selective, not {t.recompute}; write it or leave them out",
        )
    for key, value in (
        ("recompute_layers", t.recompute_layers),
        ("recompute_method", t.recompute_method == "block" or None),
        ("recompute_saves", t.recompute_saves or None),
        ("recompute_every", t.recompute_every),
    ):
        if value is not None and t.recompute != "full":
            yield f"training.{key}", f"needs training.recompute: full, not {t.recompute}; write it or leave it out"
    if t.recompute_method == "block" and t.recompute == "full" and t.recompute_layers is None:
        yield "training.recompute_method", "block needs training.recompute_layers, of how many layers a stage; add it"
    for key, value in (("recompute_saves", t.recompute_saves), ("recompute_every", t.recompute_every)):
        if value and (t.recompute_layers is not None or t.recompute_method == "block"):
            yield f"training.{key}", "and recompute_layers or recompute_method exclude each other; keep one of them"
        if value and m.encoder_layers:
            yield f"training.{key}", "needs a model without an encoder; leave it out"
    for i, name in enumerate(t.recompute_modules):
        if name == "mla_up_proj" and m.mla is None:
            yield f"training.recompute_modules.{i}", "mla_up_proj is not part of this model; leave it out"
        if name == "layernorm" and m.norm_position != "pre":
            yield f"training.recompute_modules.{i}", "layernorm needs model.norm_position: pre; leave it out"


RULES: tuple[Callable[[Job], Iterator[Finding]], ...] = (
    model_shapes,
    block_shapes,
    encoder_decoder,
    mixers,
    tensor_parallel,
    expert_parallel,
    expert_overlap,
    context_parallel,
    pipeline_parallel,
    training_fits,
    packed_fits,
    adapted,
    offloaded,
    sharded_parameters,
    recomputed,
)
"""All checks of a job. Of findings at the same position in the file, `check` raises that of the earlier rule."""
