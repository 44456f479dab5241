"""Shapes of the model on one tensor-parallel rank: its share of heads, widths, vocabulary and tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np

from clustersim.arrays import mean_largest
from clustersim.config.workload import Lora, Model, Parallelism, Training
from clustersim.errors import InputError
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import FP8, Format, activation_type, format_of, product_type
from clustersim.model.operator import Collective, CollectiveOp
from clustersim.model.router import ExpertRouter, visited

TOKENS = ("deepep", "hybridep")
"""Algorithms that send a token once to a rank that holds several of its experts."""


def padded_vocab(model: Model, tp: int) -> int:
    """Return the vocabulary padded to a multiple of `vocab_multiple`·tp, as Megatron does (tokenizer.py)."""
    multiple = model.vocab_multiple * tp
    return -(-model.vocab // multiple) * multiple


@dataclass(frozen=True)
class ShardedModel:
    """Shapes of the model on one rank for one microbatch; counts are per rank, after the split by tp."""

    model: Model
    """Model section of the workload."""
    training: Training
    """Training section of the workload."""
    parallelism: Parallelism
    """Parallelism section of the workload."""
    position: int = 0
    """Position in the expert-parallel group; the experts of position 0 are the most popular."""
    stacked: bool = False
    """Whether queries, keys and values stay in one tensor, from which attention copies keys and values, and the inputs of a gated
    activation too."""
    narrow: bool = True
    """Whether its linear layers use a narrow `training.precision`."""
    separate_rows: bool = False
    """Whether separate kernels weight, pad and restore the rows of experts."""
    grouped_products: bool = False
    """Whether one kernel multiplies the rows of all experts, and autograd adds its weight gradients (PyTorch)."""
    recasts: bool = False
    """Whether weights are cast to a narrow `training.precision` in each pass."""
    wide_gradients: bool = False
    """Whether weight gradients of experts are computed in fp32 and cast, if `training.precision` is narrow."""
    ring: str = "fused"
    """Kind of exchange of keys and values in a ring (`cp_type: p2p`): a value of `frameworks.table.RingKind`."""
    redistributes: bool = False
    """Whether eager gathers and scatters along the sequence need a copy into the order of its tokens."""

    def with_model(self, kind: Model) -> ShardedModel:
        """Return the shapes of another model under the same sharding, such as that of one kind of layer (`parameters.kinds`)."""
        return self if kind is self.model else replace(self, model=kind)

    @cached_property
    def in_activation_type(self) -> ShardedModel:
        """Shapes of GEMMs that stay in the activations' type under every recipe: those of head and router.

        Megatron-LM: models/gpt/gpt_model.py, output_layer, and transformer/moe/router.py are no layers of Transformer Engine;
        torchtitan: docs/float8.md, `filter_fqns: output`, and its auto filter; DeepSeek-V3, section 3.3.1.
        """
        return self if self.format is None else replace(self, narrow=False)

    @property
    def lora(self) -> Lora | None:
        """Settings of adapters on frozen weights; None if all weights are trained."""
        return self.training.lora

    @property
    def tp(self) -> int:
        """Tensor-parallel degree."""
        return self.parallelism.tp

    @property
    def ep(self) -> int:
        """Expert-parallel degree."""
        return self.parallelism.ep

    @cached_property
    def sequence_parallel(self) -> bool:
        """Whether norms, dropout and residuals are split along the sequence."""
        return self.parallelism.sequence_parallel and self.tp > 1

    @property
    def cp(self) -> int:
        """Context-parallel degree."""
        return self.parallelism.cp

    @cached_property
    def by_document(self) -> ShardedModel:
        """Shapes of attention over cp ranks with packed documents as sequences; unchanged without packing.

        Documents that are cut over the ranks are padded to a multiple of 2·cp (Transformer Engine: context_parallel.py,
        pad_thd_sequences_for_cp, and thd_get_partitioned_indices, which gives each rank two of 2·cp chunks). With `cp_type: a2a`
        they are whole, without padding.
        """
        count, length = documents(self.training)
        multiple = 1 if self.parallelism.cp_type == "a2a" else 2 * self.cp
        cut = {"micro_batch": count, "seq": -(-length // multiple) * multiple}
        return replace(self, training=self.training.model_copy(update=cut)) if self.training.packed else self

    @cached_property
    def context(self) -> int:
        """Tokens of each sequence on this rank: 1/cp of it."""
        return self.training.seq // self.cp

    @cached_property
    def tokens(self) -> int:
        """Tokens of one microbatch on this rank: 1/cp of them, not divided by tp."""
        return self.training.micro_batch * self.context

    @cached_property
    def local(self) -> int:
        """Tokens of this rank's norms and residuals: 1/tp of all under sequence parallelism."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @cached_property
    def dim(self) -> int:
        """Width of one attention head."""
        return head_width(self.model)

    @cached_property
    def heads(self) -> int:
        """Number of query heads on this rank."""
        return self.model.heads // self.tp

    @cached_property
    def kv_heads(self) -> int:
        """Number of key/value heads on this rank, at least one: with more ranks than heads, several ranks hold the same head.

        Megatron-Core: transformer/attention.py, num_query_groups_per_partition.
        """
        return max((self.model.kv_heads or self.model.heads) // self.tp, 1)

    @cached_property
    def ffn(self) -> int:
        """Width of this rank's part of the MLP."""
        return width(self.model) // self.tp

    @cached_property
    def shared_ffn(self) -> int:
        """Width of this rank's part of all shared experts, as one MLP; 0 without them."""
        return (self.model.shared_ffn or width(self.model)) // self.tp * self.model.shared_experts

    @cached_property
    def expert_ffn(self) -> int:
        """Width of this rank's slice of an expert."""
        return width(self.model) // self.parallelism.etp

    @cached_property
    def experts(self) -> int:
        """Number of experts with parameters on this rank, whole or sliced."""
        return (self.model.experts or 1) // self.ep

    @cached_property
    def rows(self) -> int:
        """Number of rows that the rank's experts process: `rows_per_token` for each token of the ranks of all slices, times the
        share of its position in the ep group."""
        if not self.parallelism.spread:
            return math.ceil(self.tokens * self.rows_per_token)
        shares, _ = loads(self.ep, self.training)
        sent = math.ceil(self.local * self.rows_per_token * self.parallelism.etp)
        return split(sent * self.ep, shares)[self.position] if shares else sent

    @cached_property
    def received_tokens(self) -> float | None:
        """Mean number of tokens received for `rows`, if a token is sent once to a rank with several of its experts; else None."""
        chosen = router(self.model, self.parallelism)
        return None if chosen is None else self.local * self.rows_per_token / chosen.topk * visited(chosen, self.ep)

    @cached_property
    def rows_per_token(self) -> float:
        """Mean number of expert rows per token: topk, minus dropped and plus padded rows."""
        processed = loads(self.ep, self.training)[1]
        return self.model.topk if processed == 1 else self.model.topk * processed

    @cached_property
    def vocab(self) -> int:
        """Number of rows of the embedding on this rank, padding included."""
        return padded_vocab(self.model, self.tp) // self.tp

    @cached_property
    def format(self) -> Format | None:
        """Narrow format of the linear layers' operands; None if they have the activations' type."""
        return format_of(self.training.precision, self.training.fp8_scaling) if self.narrow else None

    @cached_property
    def linear_dtype(self) -> str:
        """Data type of the GEMMs of linear layers."""
        return product_type(self.training.precision) if self.narrow else self.dtype

    @cached_property
    def dtype(self) -> str:
        """Data type of activations and of everything but linear layers."""
        return activation_type(self.training.precision)

    @cached_property
    def core_dtype(self) -> str:
        """Data type of the GEMMs inside attention, which are never narrow."""
        return self.dtype if self.format else self.linear_dtype

    @cached_property
    def size(self) -> float:
        """Bytes of one value of an activation."""
        return BYTES[self.dtype]

    @cached_property
    def gradient(self) -> float:
        """Bytes of one value of an accumulated gradient."""
        return BYTES[self.training.gradients]

    @property
    def adds_gradients(self) -> bool:
        """Whether weight gradients are added to those of earlier microbatches; otherwise each pass allocates new ones (FSDP)."""
        return self.parallelism.zero < 3 or self.parallelism.no_sync

    @cached_property
    def eager(self) -> bool:
        """Whether every element-wise operation is a separate kernel."""
        return self.training.kernels == "eager"

    @property
    def single_grouped_kernel(self) -> bool:
        """Whether one kernel multiplies the rows of all experts. Narrow formats keep one GEMM per expert:
        torch._scaled_grouped_mm exists, but its rates in training are not measured here."""
        return self.eager or (self.grouped_products and self.format is None)

    @property
    def narrow_activations(self) -> bool:
        """Whether activations save their input in fp8."""
        return self.training.fp8_activation_input and not self.eager and self.size > 1

    @cached_property
    def accumulates_separately(self) -> bool:
        """Whether separate kernels add weight gradients to the main gradients."""
        return self.eager or not self.training.fused_accumulation

    @property
    def separate(self) -> bool:
        """Whether queries, keys and values are separate linears, and likewise the inputs of a gated activation."""
        return not self.training.fused_projections

    @cached_property
    def norm_kernels(self) -> str:
        """Implementation of norms: `fused`, `torch`, `upcast` or `eager` (described in norm.py)."""
        return self.training.norm_kernels or self.training.kernels

    @cached_property
    def eager_rope(self) -> bool:
        """Whether queries and keys are rotated operation by operation."""
        return (self.training.rope_kernels or self.training.kernels) == "eager"

    @cached_property
    def scatters_rows(self) -> bool:
        """Whether PyTorch's atomic additions, not one fused kernel, sum the rows of experts into their tokens."""
        return self.training.permutation != "fused"

    @property
    def weighs_rows(self) -> bool:
        """Whether a separate kernel multiplies the experts' outputs by the router's weights before they are summed."""
        separate = self.eager or self.training.permutation == "weighed"
        return self.scatters_rows and separate and not self.separate_rows

    @property
    def fused_softmax(self) -> bool:
        """Whether the softmax of unfused attention includes scale and mask.

        Megatron's kernel supports 16-bit scores, sequences of 17 to 4,096 tokens in multiples of 4, and a multiple of 4 of heads
        times sequences. Source: megatron/core/fusions/fused_softmax.py, `is_kernel_available` (v2.6: up to 2,048 tokens).
        """
        seq, batch = self.training.seq, self.training.micro_batch * self.heads
        return not self.eager and self.size <= 2 and 16 < seq <= 4096 and seq % 4 == 0 and batch % 4 == 0

    def replicated(self, parameters: int) -> int:
        """Return this rank's number of `parameters` that Megatron replicates over tp: all, or 1/tp if it shards all."""
        return -(-parameters // self.tp) if self.parallelism.shard_all_parameters else parameters

    def exchange(self, op: CollectiveOp, rows: int, columns: int, size: float | None = None) -> tuple[Collective, ...]:
        """Return (tp collective on a rows×columns array,), or () if tp is 1. size: bytes per value (None: as activations)."""
        return (Collective("tp", op, float(rows) * columns * (size or self.size)),) if self.tp > 1 else ()

    @property
    def overlap(self) -> str:
        """Overlap of tp collectives and GEMMs: `none`, `bulk`, `ring`, `async`. Without sequence parallelism ring is bulk, async
        none."""
        chosen = self.parallelism.overlap.tp
        unchunked = {"ring": "bulk", "async": "none"}.get(chosen, chosen)
        return "none" if self.tp == 1 else chosen if self.sequence_parallel else unchunked

    @property
    def keeps_gathered(self) -> bool:
        """Whether the gathered input of a column-parallel linear is saved; otherwise its shard, which is gathered twice."""
        return self.sequence_parallel and (self.parallelism.keep_gathered or self.overlap == "async")

    def expert_exchange(self, op: CollectiveOp) -> tuple[Collective, ...]:
        """Return (exchange of this rank's rows over the ep group,), or () if ep is 1. op: `dispatch` or `combine`."""
        value_bytes = FP8["block"].size if op == "dispatch" and self.training.dispatch == "fp8" else self.size
        size = float(self.local) * self.rows_per_token * self.model.hidden * value_bytes
        return (Collective("ep", op, size),) if self.ep > 1 else ()

    def slice_exchange(self, op: CollectiveOp) -> tuple[Collective, ...]:
        """Return (collective on expert rows over the ranks with slices of the same experts,), or () without slices or rows."""
        size, slices = float(self.rows) * self.model.hidden * self.size, self.parallelism.etp
        return (Collective("tp" if slices == self.tp else "etp", op, size),) if slices > 1 and self.rows else ()


def router(model: Model, parallelism: Parallelism) -> ExpertRouter | None:
    """Return the parameters of the router's choice if the network traffic depends on it; None if each row crosses the network."""
    if not model.experts or parallelism.ep == 1 or parallelism.algorithms.ep not in TOKENS:
        return None
    groups = model.router_groups
    return ExpertRouter(model.experts, model.topk, groups, model.router_group_topk or groups)


def width(model: Model) -> int:
    """Return the width of the MLP before the split: `ffn`, by default 4·hidden."""
    return model.ffn or 4 * model.hidden


def documents(training: Training) -> tuple[int, int]:
    """Return (number, length in tokens) of equal documents with the same attention work as the documents of a microbatch.

    Without packing or padding these are the sequences.
    The length is E[len²] / E[len], which keeps both the number of tokens and the sum of squares: m (1 + c²) for mean m and
    coefficient of variation c, and at most the longest document.
    """
    batch, seq, packed = training.micro_batch, training.seq, training.packed or training.padded
    if packed is None:
        return batch, seq
    length = min(packed.mean * (1 + packed.spread**2), packed.max or seq, seq)
    count = max(round(batch * seq / length), batch)
    return count, max(round(batch * seq / count), 1)


def padded(training: Training) -> Training:
    """Return the training with `seq` set to the mean longest document of a microbatch, to which all others are padded. Return it
    unchanged without `padded`."""
    lengths, seq = training.padded, training.seq
    if lengths is None:
        return training
    longest = mean_largest(lengths.mean, lengths.spread, min(lengths.max or seq, seq), training.micro_batch)
    return training.model_copy(update={"padded": None, "seq": max(round(longest), 1)})


def head_width(model: Model) -> int:
    """Return the width of one head: `head_dim`, by default hidden / heads."""
    return model.head_dim or model.hidden // model.heads


def gated(model: Model) -> bool:
    """Return whether the activation is multiplied by the output of a second linear of the MLP."""
    return model.activation in ("swiglu", "geglu")


# Rows of a mixture of experts on each rank of an expert-parallel group: equal by default; with imbalance, shares follow Zipf's
# law, the first rank being the most popular.


def loads(ep: int, training: Training) -> tuple[tuple[float, ...], float]:
    """Return (share of all processed rows of each ep rank, or () if equal; processed rows per row sent by the router).

    A capacity limits each rank to that factor times the mean; with padding all get exactly the capacity (Megatron's
    core/transformer/moe/moe_utils.py, get_capacity).
    """
    capacity = training.capacity_factor
    shares = zipf_shares(ep, training.expert_imbalance) if training.expert_imbalance > 1 else ()
    if capacity is None:
        return shares, 1.0
    if training.pad_to_capacity:
        return (), capacity
    if not shares:
        return (), min(capacity, 1.0)
    taken = [min(share, capacity / ep) for share in shares]
    processed = math.fsum(taken)
    equal = max(taken) - min(taken) < 1e-12
    return () if equal else tuple(share / processed for share in taken), processed


@lru_cache(maxsize=64)
def zipf_shares(n: int, imbalance: float) -> tuple[float, ...]:
    """Return the share of all rows that goes to each of `n` positions, with sum 1; the first is the most popular.

    Zipf's law: share j is proportional to (j + 1)^-s, with the s at which the largest share is `imbalance` times the mean.
    Raises InputError unless 1 <= imbalance <= n.
    """
    if not 1 <= imbalance <= n:
        raise InputError(
            f"an imbalance of {imbalance:g} is not possible over {n} GPUs; it is the rows of the busiest over the mean, "
            f"from 1 (all equal) to {n} (one gets all)"
        )
    if imbalance == n:
        return (1.0, *(0.0,) * (n - 1))
    weight = np.exp(-_exponent(n, imbalance) * np.log(np.arange(1, n + 1)))
    return tuple((weight / math.fsum(weight)).tolist())


def _exponent(n: int, imbalance: float) -> float:
    """Return s with n / sum(j^-s) = imbalance for j from 1 to n, by Newton's method on the logarithm of the sum.

    The logarithm is convex and falls with s, so steps from s = 0 never pass the root.
    """
    log = np.log(np.arange(1, n + 1))
    s = 0.0
    while True:
        weight = np.exp(-s * log)
        total = math.fsum(weight)
        step = math.log(total * imbalance / n) * total / float(weight @ log)
        if step <= 1e-15 * max(s, 1.0):
            return s
        s += step


def split(rows: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """Return `rows` split by `shares` (sum 1) into whole numbers with sum `rows`, each within one of its exact share."""
    edges = [0, *(math.floor(rows * part + 0.5) for part in accumulate(shares))]
    edges[-1] = rows
    return tuple(b - a for a, b in pairwise(edges))
