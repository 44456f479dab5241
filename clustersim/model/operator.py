"""An operator: what one part of a layer runs forward and backward on one rank, keeps, and sends to its tp peers."""

from __future__ import annotations

from typing import Literal, NamedTuple

from clustersim.model.kernel import Kernel

CollectiveOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "broadcast", "reduce"
]


class Exchange(NamedTuple):
    """A collective that the operator waits for: `op` over the ranks of `group` on `size` bytes.

    Groups: tp; etp, ep: the slices of an expert, and the ranks that share all experts; tp_ep: both; model: a replica.

    `size` counts as nccl-tests does: the whole array for all-reduce, all-gather and reduce-scatter, the bytes of one rank
    for all-to-all, and the rows that one rank sends out and gets back for dispatch and combine.
    """

    group: Literal["tp", "cp", "etp", "ep", "tp_ep", "model"]
    op: CollectiveOp
    size: float


class Operator(NamedTuple):
    """One part of a layer, as one rank runs it for one microbatch.

    `forward`, `backward_input` (gradients of the input) and `backward_weight` (gradients of the weights) run in the order
    given; an Exchange among them is waited for at that point. `parameters` are the rank's own, of which `replicated` are
    the same on every tp rank; `expert`: they lie as experts do, so that the ranks that hold the same experts reduce their
    gradients. `saved` is the bytes of activations kept for the backward pass.
    """

    name: str
    forward: tuple[Kernel | Exchange, ...]
    backward_input: tuple[Kernel | Exchange, ...] = ()
    backward_weight: tuple[Kernel, ...] = ()
    parameters: int = 0
    replicated: int = 0
    saved: float = 0.0
    expert: bool = False


class Layer(NamedTuple):
    """A run of operators that is placed on one pipeline stage as a whole: the embedding, one block, or the head."""

    name: str
    operators: tuple[Operator, ...]
    input_bytes: float
    """Bytes of the layer's input on one rank: all that full recomputation keeps."""
