"""Fused attention where each rank of a context-parallel group holds a part of the sequence.

`all_gather`: keys and values are gathered, then each rank runs its queries against them (Llama 3). `p2p`: keys and values go
around a ring, overlapped with attention to the previous ones (ring attention), or by the framework's `ring`. `a2a`: an all-to-all
exchanges tokens for heads, so that each rank has all tokens of 1/cp of the heads (Ulysses). `a2a+p2p`: `a2a` among `cp_inner`
neighbours, and a ring of such groups. Source: TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py.

A causal mask would give the first rank little work. So each rank holds two of 2·cp chunks, one from the head and one from the
tail of the sequence. Then all ranks have equal work, and so has each step of the ring: with q tokens per chunk, 2·q² pairs.
"""

from __future__ import annotations

from typing import NamedTuple

from clustersim.model.elementwise import copy
from clustersim.model.kernel import Kernel, attention
from clustersim.model.operator import Awaited, Collective, Started, Steps
from clustersim.model.sharding import ShardedModel


class Core(NamedTuple):
    """Attention heads of one rank."""

    heads: int
    """Number of query heads."""
    kv_heads: int
    """Number of key/value heads."""
    dim: int
    """Width of a query or key head."""
    value_dim: int
    """Width of a value head."""

    def rank_share(self, ranks: int) -> Core:
        """Return one rank's share if `ranks` ranks divide the heads: at least one key/value head."""
        return self._replace(heads=self.heads // ranks, kv_heads=max(self.kv_heads // ranks, 1))

    def repeated(self, ranks: int) -> Core:
        """Return the heads with key/value heads repeated until each of `ranks` ranks has at least one."""
        return self._replace(kv_heads=max(self.kv_heads, ranks))


Passes = tuple[Steps, Steps]
"""(steps of the forward pass, steps of the backward pass)"""


def context_attention(shard: ShardedModel, core: Core) -> Passes:
    """Return (forward, backward) kernels and collectives of the fused core over cp ranks. core: heads of one rank, as divided by
    tp but not by cp."""
    if shard.parallelism.cp_type == "a2a":  # each rank gets all tokens of 1/cp of the heads
        to_heads, to_tokens = _heads_for_tokens(shard, core.repeated(shard.cp), "cp")
        documents_shard = shard.by_document
        shape = (documents_shard.training.seq, documents_shard.training.seq, shard.model.causal)
        forward, backward = (
            _kernel(documents_shard, core.rank_share(shard.cp), op, *shape) for op in ("forward", "backward")
        )
        return (to_heads, forward, to_tokens), (to_tokens, backward, to_heads)
    kinds = {"all_gather": _gathered, "a2a+p2p": _ring_of_groups}
    build = kinds.get(shard.parallelism.cp_type, _by_head if shard.ring == "by_head" else None)
    cut = shard.by_document
    return build(cut, core) if build else _ring(cut, core, "cp", cut.cp, cut.context)


def _gathered(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes after an all-gather of keys and values, whose gradients are reduce-scattered."""
    size = _kv_bytes(shard, core, shard.training.seq)
    gather, scatter = Collective("cp", "all_gather", size), Collective("cp", "reduce_scatter", size)
    return (gather, *_against_all(shard, core, "forward")), (gather, *_against_all(shard, core, "backward"), scatter)


def _against_all(shard: ShardedModel, core: Core, op: str) -> tuple[Kernel, ...]:
    """Return the kernels of a rank's queries against all visible keys: with a causal mask and no window two equal ones, else one.

    op: `forward` or `backward`.
    """
    tokens, seq = shard.context, shard.training.seq
    if shard.model.window or not shard.model.causal:
        return (_kernel(shard, core, op, tokens, seq, causal=shard.model.causal),)
    # the i-th of 2·cp chunks and the i-th from the end together see half of the sequence on average
    return (_kernel(shard, core, op, tokens // 2, seq // 2),) * 2


def _ring(shard: ShardedModel, core: Core, group: str, ranks: int, tokens: int) -> Passes:
    """Return both passes of ring attention over `ranks` ranks of the family `group`, each with `tokens` tokens per sequence.

    Each step computes on the keys and values received during the previous step, while the next ones arrive. All steps take equal
    time, as do all exchanges, so the exchanges together overlap all steps but the last. An eager ring starts each exchange after
    the previous one. Each step's output is weighted and added to the sum so far. Backward, gradients of keys and values go around
    too, in fp32 if eager.
    """
    causal, kv, eager = shard.model.causal, _kv_bytes(shard, core, tokens), "eager" in shard.ring
    passes: list[Steps] = []
    for op, multiple in (("forward", 1), ("backward", 3 if eager else 2)):
        exchange = Collective(group, "ring_exchange", (1 if eager else ranks - 1) * multiple * kv)
        hop: Steps = (Awaited(group), Started(exchange)) if eager else ()
        merge = _merge(shard, core, tokens) if op == "forward" else _merge_backward(shard, core, tokens)
        # with a causal mask, later steps are all queries against half of the keys, or half of the queries against all keys
        later = (_ring_kernel(shard, core, op, tokens, tokens // 2 if causal else tokens), *merge)
        first = _ring_kernel(shard, core, op, tokens, tokens, causal=causal)
        passes.append((Started(exchange), first, *(*hop, *later) * (ranks - 2), Awaited(group), *later))
    return passes[0], passes[1]


def _by_head(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes where ranks hold adjacent tokens and gather keys and values head by head, overlapped with attention.

    With a causal mask all ranks wait for the last one, whose queries see all earlier tokens and on average half of its own
    (zhuzilin/ring-flash-attention, llama3_flash_attn_varlen.py). Several packed documents per rank give all ranks equal work.
    """
    head, tokens, seq = core.rank_share(core.kv_heads), shard.context, shard.training.seq
    size = _kv_bytes(shard, head, seq)
    gather, reduce = Collective("cp", "all_gather", size), Collective("cp", "reduce_scatter", size)
    passes: list[Steps] = []
    equal = shard.training.packed and shard.training.micro_batch >= shard.cp
    visible = seq // 2 if equal else seq - tokens // 2
    for op, after in (("forward", ()), ("backward", (reduce,))):
        work = _kernel(shard, head, op, tokens, visible if shard.model.causal else seq)
        overlapped = (Started(gather), work, Awaited("cp"), *after)
        passes.append((gather, *overlapped * (core.kv_heads - 1), work, *after))
    return passes[0], passes[1]


EAGER_MERGE = 6 + 3 * 12 + 8
"""Bytes per value of an eager merge: the step's output to fp32, two differences and a product in fp32, and the copy of the sum
into place (zhuzilin/ring-flash-attention, utils.py, _update_out_and_lse)."""


def _merge(shard: ShardedModel, core: Core, tokens: int) -> tuple[Kernel, ...]:
    """Return the kernel that adds a ring step's output, weighted by its statistics, to the outputs of earlier steps.

    Transformer Engine reads both and writes the sum, in the outputs' data type (flash_attn_fwd_out_correction).
    """
    rows = shard.training.micro_batch * tokens
    traffic = EAGER_MERGE if "eager" in shard.ring else 3 * shard.size
    return (copy(shard, "correct_output", rows, core.heads * core.value_dim, traffic),)


def _merge_backward(shard: ShardedModel, core: Core, tokens: int) -> tuple[Kernel, ...]:
    """Return the kernel that adds a ring step's gradients to the sum in fp32; () for Transformer Engine, whose attention adds."""
    if "eager" not in shard.ring:
        return ()
    rows, keys = shard.training.micro_batch * tokens, core.kv_heads * (core.dim + core.value_dim)
    return (copy(shard, "correct_gradients", rows, core.heads * core.dim + keys, 8 + shard.size),)


def _ring_kernel(shard: ShardedModel, core: Core, op: str, queries: int, keys: int, causal: bool = False) -> Kernel:
    """Return one attention kernel of a ring. Some rings always call FlashAttention-2, whatever library the framework uses.

    The arguments are those of `_kernel`.
    """
    kernel = _kernel(shard, core, op, queries, keys, causal)
    eager = "flash2" in shard.ring and shard.training.attention == "flash"
    return kernel._replace(generation="flash2") if eager else kernel


def _ring_of_groups(shard: ShardedModel, core: Core) -> Passes:
    """Return both passes of a ring of groups, within each of which an all-to-all exchanges tokens for heads."""
    inner = shard.parallelism.cp_inner or 1
    to_heads, to_tokens = _heads_for_tokens(shard, core.repeated(inner), "cp_a2a")
    forward, backward = _ring(shard, core.rank_share(inner), "cp_ring", shard.cp // inner, shard.context * inner)
    return (to_heads, *forward, to_tokens), (to_tokens, *backward, to_heads)


def context_buffer_bytes(shard: ShardedModel, core: Core) -> float:
    """Return the bytes that a backward pass allocates over cp ranks, in addition to those for the rank's own tokens.

    Keys and values with their gradients: all of them if gathered, or one part in use and one in transit; after an all-to-all also
    queries and output in the other layout.
    """
    kind = shard.parallelism.cp_type
    kv = _kv_bytes(shard, core, shard.training.seq if kind == "all_gather" else shard.context)
    rest = 2 * shard.size * shard.tokens * core.heads * core.dim if "a2a" in kind else 0.0
    return 2 * (kv * (2 if "p2p" in kind else 1) + rest)


def context_saved_bytes(shard: ShardedModel, core: Core) -> float:
    """Return the bytes of the core's output that are saved in addition to the next linear's input; 0 without an all-to-all. With
    one, it is the output before the all-to-all back (Transformer Engine since 2.8, context_parallel.py, out_part)."""
    return shard.size * shard.tokens * core.heads * core.value_dim if "a2a" in shard.parallelism.cp_type else 0.0


def _heads_for_tokens(shard: ShardedModel, core: Core, group: str) -> tuple[Collective, Collective]:
    """Return (all-to-all of queries, keys and values, all-to-all of the output) over `group`. Gradients go back with equal
    bytes."""
    values = shard.size * shard.tokens * core.heads
    inputs = values * core.dim + _kv_bytes(shard, core, shard.context)
    return Collective(group, "all_to_all", inputs), Collective(group, "all_to_all", values * core.value_dim)


def _kv_bytes(shard: ShardedModel, core: Core, tokens: int) -> float:
    """Return the bytes of the keys and values of `tokens` tokens of each sequence."""
    return shard.size * shard.training.micro_batch * tokens * core.kv_heads * (core.dim + core.value_dim)


def _kernel(shard: ShardedModel, core: Core, op: str, queries: int, keys: int, causal: bool = False) -> Kernel:
    """Return one attention kernel, `forward` or `backward`, of `queries` queries of each sequence against `keys` keys."""
    generation = "" if shard.training.attention == "flash" else shard.training.attention
    shape = (shard.core_dtype, shard.training.micro_batch, core.heads, core.kv_heads, queries, keys, core.dim)
    window = shard.model.window if causal else 0
    return attention(op, *shape, causal, core.value_dim, window)._replace(generation=generation)
