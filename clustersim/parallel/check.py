"""Checks across fields, each with the place of the value at fault and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clustersim.model.sharding import dense_width, width
from clustersim.parallel.job import Job, degrees, divisors, least_dp, listed

Finding = tuple[str, str]
"""A dotted key and a sentence."""


def check(job: Job) -> Job:
    """Return the job when nothing contradicts; raises ConfigError for the first finding in the order of the file."""
    found = [job.error(key, message) for rule in RULES for key, message in rule(job)]
    if found:
        raise min(found, key=lambda error: (error.line, error.column))
    return job


def model_shapes(job: Job) -> Iterator[Finding]:
    """Heads divide hidden, kv heads divide heads, experts have a top-k."""
    m = job.model
    if m.head_dim is None and m.hidden % m.heads:
        yield "model.heads", f"{m.heads} does not divide hidden {m.hidden}; use a divisor of it or set model.head_dim"
    if m.kv_heads is not None and m.heads % m.kv_heads:
        yield "model.kv_heads", f"{m.kv_heads} does not divide {m.heads} heads; use {listed(divisors(m.heads))}"
    if m.experts is None and m.topk > 1:
        yield "model.topk", f"{m.topk} needs a mixture of experts; set model.experts"
    if m.experts is None and m.shared_experts:
        yield "model.shared_experts", f"{m.shared_experts} needs a mixture of experts; set model.experts"
    if m.experts is not None and m.topk > m.experts:
        yield "model.topk", f"{m.topk} is more than the {m.experts} experts; use at most {m.experts}"
    if m.experts is None and m.dense_layers:
        yield "model.dense_layers", f"{m.dense_layers} needs a mixture of experts in the others; set model.experts"
    elif m.dense_layers >= m.layers:
        yield "model.dense_layers", f"{m.dense_layers} leaves no layer with experts of {m.layers}; drop model.experts"
    if m.dense_ffn is not None and not m.dense_layers:
        yield "model.dense_ffn", f"{m.dense_ffn} is the width of dense layers; set model.dense_layers or write ffn"


def tensor_parallel(job: Job) -> Iterator[Finding]:
    """Tp divides heads, kv heads, the MLP's width and, with sequence parallelism, the sequence."""
    m, tp = job.model, job.parallelism.tp
    common = [d for d in divisors(m.heads) if (m.kv_heads or m.heads) % d == 0 and width(m) % d == 0]
    common = [d for d in common if dense_width(m) % d == 0] if m.dense_layers else common
    remedy = f"use {listed(common)}"
    if m.heads % tp:
        yield "parallelism.tp", f"{tp} does not divide {m.heads} attention heads; {remedy}"
    elif (m.kv_heads or m.heads) % tp:
        yield "parallelism.tp", f"{tp} does not divide {m.kv_heads} key/value heads; {remedy}"
    elif width(m) % tp and not (m.experts and job.parallelism.expert_tp and not m.shared_experts):
        yield "parallelism.tp", f"{tp} does not divide the MLP's width {width(m)}; {remedy}"
    elif m.dense_layers and dense_width(m) % tp:
        yield "parallelism.tp", f"{tp} does not divide the width {dense_width(m)} of dense layers; {remedy}"
    if not job.parallelism.sequence_parallel:
        return
    if tp == 1:
        yield (
            "parallelism.sequence_parallel",
            "true needs tensor parallelism; set parallelism.tp above 1 or write false",
        )
    elif job.training.seq % tp:
        yield "training.seq", f"{job.training.seq} is not a multiple of tp {tp}, as sequence parallelism needs; pad it"


def expert_parallel(job: Job) -> Iterator[Finding]:
    """Ep and expert_tp divide the experts and the ranks, come with sequence parallelism, and bound the imbalance."""
    p, experts, busiest = job.parallelism, job.model.experts, job.training.expert_imbalance
    if busiest > p.ep:
        remedy = f"use 1 to {p.ep}" if p.ep > 1 else "use 1, or set parallelism.ep above 1"
        yield "training.expert_imbalance", f"{busiest:g} times the mean is more than all, with ep {p.ep}; {remedy}"
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
        yield (
            f"parallelism.{key}",
            f"{degree} does not divide {ranks}; use {legal if p.ep > 1 else listed(divisors(p.tp * dp))}",
        )
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


def pipeline_parallel(job: Job) -> Iterator[Finding]:
    """Every stage gets a layer, and interleaving comes with its schedule."""
    p = job.parallelism
    layers = job.model.layers + p.account_for_embedding + p.account_for_loss
    if p.pp > layers:
        yield "parallelism.pp", f"pp > layers: {p.pp} stages cannot share {layers} layers; use at most {layers}"
    elif p.pp * p.vpp > layers:
        yield "parallelism.vpp", f"{p.pp} stages × {p.vpp} chunks > {layers} layers; use at most {layers // p.pp}"
    if p.vpp > 1 and p.schedule in ("gpipe", "1f1b"):
        yield "parallelism.vpp", f"{p.vpp} chunks need an interleaved schedule, not {p.schedule}; use vpp 1"
    if p.vpp > 1 and p.pp == 1:
        yield "parallelism.vpp", f"{p.vpp} chunks need a pipeline; set parallelism.pp above 1 or vpp 1"


def training_fits(job: Job) -> Iterator[Finding]:
    """Sequences fit the positions, microbatches fill the batch, data types and overlap agree."""
    m, t, p = job.model, job.training, job.parallelism
    if m.max_positions is not None and t.seq > m.max_positions:
        yield "training.seq", f"{t.seq} is longer than model.max_positions {m.max_positions}; shorten it or raise that"
    if t.global_batch % t.micro_batch:
        yield (
            "training.micro_batch",
            f"{t.micro_batch} does not divide global_batch {t.global_batch}; use {listed(divisors(t.global_batch))}",
        )
    if t.precision in ("fp32", "tf32") and t.gradients != "fp32":
        yield "training.gradients", f"{t.gradients} is narrower than {t.precision} weights; write fp32"
    if t.precision in ("fp16", "bf16") and t.gradients not in ("fp32", t.precision):
        yield "training.gradients", f"{t.gradients} does not match {t.precision} weights; write fp32 or {t.precision}"
    if p.zero == 2 and not p.overlap.grad_reduce:
        yield (
            "parallelism.zero",
            "2 frees gradients as they are reduced; set parallelism.overlap.grad_reduce: true or write 1",
        )
    if p.overlap.param_gather and not p.zero:
        yield (
            "parallelism.overlap.param_gather",
            "true gathers what zero: 1 shards; set parallelism.zero: 1 or write false",
        )


RULES: tuple[Callable[[Job], Iterator[Finding]], ...] = (
    model_shapes,
    tensor_parallel,
    expert_parallel,
    pipeline_parallel,
    training_fits,
)
