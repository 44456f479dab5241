"""Fused attention where each rank of a context-parallel group holds a part of the sequence.

`all_gather`: keys and values are gathered, then each rank runs its queries against them (Llama 3). `p2p`: keys and values go
around a ring, under attention to those that came before (ring attention), or what the framework calls a ring. `a2a`: heads for
tokens, so that each rank has all tokens of a cp-th of the heads (Ulysses). `a2a+p2p`: heads for tokens among `cp_inner`
neighbours, and a ring of those. Source: TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py.

A causal mask would leave the first rank little to do. So each holds two of 2·cp chunks, one from the head and one from the tail
of the sequence. Then all have equal work, and so has each step around the ring: with q tokens a chunk, 2·q² pairs.
"""

from __future__ import annotations

from typing import NamedTuple

from clustersim.model.elementwise import copy
from clustersim.model.kernel import Kernel, attention
from clustersim.model.operator import Awaited, Collective, Started, Steps
from clustersim.model.sharding import ShardedModel


class Core(NamedTuple):
    """Attention of one rank: its heads, those of keys and values, the width of queries and keys, and that of values."""

    heads: int
    kv_heads: int
    dim: int
    value_dim: int

    def of(self, ranks: int) -> Core:
        """Return one rank's share of the heads when `ranks` ranks divide them: at least one head of keys and values."""
        return self._replace(heads=self.heads // ranks, kv_heads=max(self.kv_heads // ranks, 1))

    def repeated(self, ranks: int) -> Core:
        """Return the same with the heads of keys and values repeated until each of `ranks` ranks has one."""
        return self._replace(kv_heads=max(self.kv_heads, ranks))


Passes = tuple[Steps, Steps]  # of a forward and a backward pass


def context_attention(shard: ShardedModel, core: Core) -> Passes:
    """Return the kernels and exchanges of the fused core over cp ranks, forward and backward."""
    kinds = {"all_gather": _gathered, "a2a": _exchanged, "a2a+p2p": _both}
    found = kinds.get(shard.parallelism.cp_type, _by_head if shard.ring == "by_head" else None)
    return found(shard, core) if found else _around(shard, core, "cp", shard.cp, shard.context)


def _gathered(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes with all keys and values at hand; the gradients of these are scattered."""
    size = _kv_bytes(shard, core, shard.training.seq)
    whole, back = Collective("cp", "all_gather", size), Collective("cp", "reduce_scatter", size)
    return (whole, *_against_all(shard, core, "forward")), (whole, *_against_all(shard, core, "backward"), back)


def _against_all(shard: ShardedModel, core: Core, op: str) -> tuple[Kernel, ...]:
    """Return the kernels of a rank's queries against all keys that they see: one for each of its two chunks."""
    tokens, seq = shard.context, shard.training.seq
    if shard.model.window or not shard.model.causal:
        return (_kernel(shard, core, op, tokens, seq, causal=shard.model.causal),)
    # the i-th of 2·cp chunks and the i-th from the end see half of the sequence in the mean
    return (_kernel(shard, core, op, tokens // 2, seq // 2),) * 2


def _around(shard: ShardedModel, core: Core, group: str, ranks: int, tokens: int) -> Passes:
    """Return both passes of ring attention over `ranks` ranks, each with `tokens` tokens of every sequence.

    A step works on what came during the one before, and the next comes meanwhile. Steps are equally long, and so are exchanges:
    all of these together run beside all steps but the last. An eager ring starts each behind the one before. Each step's output
    is weighed and added to that of those before. Backward the gradients of keys and values go round, eagerly in fp32.
    """
    causal, kv, eager = shard.model.causal, _kv_bytes(shard, core, tokens), "eager" in shard.ring
    passes: list[Steps] = []
    for op, times in (("forward", 1), ("backward", 3 if eager else 2)):
        exchange = Collective(group, "ring_exchange", (1 if eager else ranks - 1) * times * kv)
        hop: Steps = (Awaited(group), Started(exchange)) if eager else ()
        merge = _merge(shard, core, tokens) if op == "forward" else _merge_backward(shard, core, tokens)
        # with a causal mask, later steps are all queries against half of the keys, or half of them against all
        later = (_ring_kernel(shard, core, op, tokens, tokens // 2 if causal else tokens), *merge)
        own = _ring_kernel(shard, core, op, tokens, tokens, causal=causal)
        passes.append((Started(exchange), own, *(*hop, *later) * (ranks - 2), Awaited(group), *later))
    return passes[0], passes[1]


def _by_head(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes where ranks hold neighbouring tokens and gather keys and values head by head, the next under attention.

    With a causal mask all wait for the last rank, whose queries see all tokens before its own and, in the mean, half of its own
    (zhuzilin/ring-flash-attention, llama3_flash_attn_varlen.py).
    """
    head, tokens, seq = core.of(core.kv_heads), shard.context, shard.training.seq
    size = _kv_bytes(shard, head, seq)
    gather, reduce = Collective("cp", "all_gather", size), Collective("cp", "reduce_scatter", size)
    passes: list[Steps] = []
    for op, behind in (("forward", ()), ("backward", (reduce,))):
        work = _kernel(shard, head, op, tokens, seq - tokens // 2 if shard.model.causal else seq)
        under = (Started(gather), work, Awaited("cp"), *behind)
        passes.append((gather, *under * (core.kv_heads - 1), work, *behind))
    return passes[0], passes[1]


EAGER_MERGE = 6 + 3 * 12 + 8
"""Bytes a value of an eager merge: the step's output to fp32, two differences and a product in fp32, and the copy of the sum into
its place (zhuzilin/ring-flash-attention, utils.py, _update_out_and_lse)."""


def _merge(shard: ShardedModel, core: Core, tokens: int) -> tuple[Kernel, ...]:
    """Return the sum of a step's output, weighed by its statistics, with that of the steps before.

    Transformer Engine reads both and writes the sum, in the outputs' type (flash_attn_fwd_out_correction).
    """
    rows = shard.training.micro_batch * tokens
    traffic = EAGER_MERGE if "eager" in shard.ring else 3 * shard.size
    return (copy(shard, "correct_output", rows, core.heads * core.value_dim, traffic),)


def _merge_backward(shard: ShardedModel, core: Core, tokens: int) -> tuple[Kernel, ...]:
    """Return the sums in fp32 of a step's gradients with those before; Transformer Engine's go into the kernel's own sums."""
    if "eager" not in shard.ring:
        return ()
    rows, keys = shard.training.micro_batch * tokens, core.kv_heads * (core.dim + core.value_dim)
    return (copy(shard, "correct_gradients", rows, core.heads * core.dim + keys, 8 + shard.size),)


def _ring_kernel(shard: ShardedModel, core: Core, op: str, queries: int, keys: int, causal: bool = False) -> Kernel:
    """Return one kernel of a ring: some call FlashAttention-2, whatever libraries run on whole sequences."""
    found = _kernel(shard, core, op, queries, keys, causal)
    eager = shard.ring == "eager_flash2" and shard.training.attention == "flash"
    return found._replace(generation="flash2") if eager else found


def _exchanged(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes on all tokens of a cp-th of the heads."""
    into, out = _heads_for_tokens(shard, core.repeated(shard.cp), "cp")
    shape = (shard.training.seq, shard.training.seq, shard.model.causal)
    forward, backward = (_kernel(shard, core.of(shard.cp), op, *shape) for op in ("forward", "backward"))
    return (into, forward, out), (out, backward, into)


def _both(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes of a ring of groups, in each of which heads are exchanged for tokens."""
    inner = shard.parallelism.cp_inner or 1
    into, out = _heads_for_tokens(shard, core.repeated(inner), "cp_a2a")
    forward, backward = _around(shard, core.of(inner), "cp_ring", shard.cp // inner, shard.context * inner)
    return (into, *forward, out), (out, *backward, into)


def context_buffers(shard: ShardedModel, core: Core) -> float:
    """Return the bytes that a backward pass holds besides a rank's own tokens.

    Keys and values with their gradients: all of them gathered, or one part that is worked on and one on its way; with heads for
    tokens the queries and the output too, in their other form.
    """
    kind = shard.parallelism.cp_type
    kv = _kv_bytes(shard, core, shard.training.seq if kind == "all_gather" else shard.context)
    rest = 2 * shard.size * shard.tokens * core.heads * core.dim if "a2a" in kind else 0.0
    return 2 * (kv * (2 if "p2p" in kind else 1) + rest)


def context_kept(shard: ShardedModel, core: Core) -> float:
    """Return the bytes of the core's own output, kept beside the projection's input where that has other heads and tokens.

    Transformer Engine since 2.8: the output before heads return for tokens (context_parallel.py, out_part).
    """
    return shard.size * shard.tokens * core.heads * core.value_dim if "a2a" in shard.parallelism.cp_type else 0.0


def _heads_for_tokens(shard: ShardedModel, core: Core, group: str) -> tuple[Collective, Collective]:
    """Return the exchange of queries, keys and values, and that of the output; gradients go the other way in as many bytes."""
    values = shard.size * shard.tokens * core.heads
    own = values * core.dim + _kv_bytes(shard, core, shard.context)
    return Collective(group, "all_to_all", own), Collective(group, "all_to_all", values * core.value_dim)


def _kv_bytes(shard: ShardedModel, core: Core, tokens: int) -> float:
    """Return the bytes of the keys and values of `tokens` tokens of each sequence."""
    return shard.size * shard.training.micro_batch * tokens * core.kv_heads * (core.dim + core.value_dim)


def _kernel(shard: ShardedModel, core: Core, op: str, queries: int, keys: int, causal: bool = False) -> Kernel:
    """Return one attention kernel of `queries` queries of each sequence against `keys` keys."""
    named = "" if shard.training.attention == "flash" else shard.training.attention
    shape = (shard.product, shard.training.micro_batch, core.heads, core.kv_heads, queries, keys, core.dim)
    window = shard.model.window if causal else 0
    return attention(op, *shape, causal, core.value_dim, window)._replace(generation=named)
