"""An operator: what one part of a layer runs forward and backward on one rank, keeps, and asks of the network."""

from __future__ import annotations

from typing import Literal, NamedTuple

from clustersim.model.kernel import Kernel

CollectiveOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "broadcast", "reduce"
]


class Collective(NamedTuple):
    """What a job asks of the network: `op` over the rank's own group of one kind, on `size` bytes."""

    group: str
    """Which ranks: tp; dp; etp, ep: the slices of an expert, and the ranks that share all experts; tp_ep: both; edp: the ranks
    that hold the same experts; fsdp, efsdp: those that share a copy of parameters, or of experts; cp: those that share a
    sequence, cp_a2a and cp_ring: neighbours among them, and rings of those; embedding: the stages that share it; model: a
    replica; amax: all of a stage; p2p-…: two neighbouring stages."""
    op: str
    """A CollectiveOp, `send` for a message from the first rank of a group to the second, or `ring_exchange` for messages of all
    ranks to the next one, round after round until all have met."""
    size: float
    """Bytes, counted as nccl-tests does: the whole array for all-reduce, all-gather and reduce-scatter, the bytes of one rank
    for all-to-all, the rows that one rank sends out and gets back for dispatch and combine, and all that one rank sends
    around a ring."""
    over: int = 0
    """So many of the kernels that follow run beside it; what comes after them waits for it."""
    sms: int = 0
    """SMs that it takes from them."""


class Started(NamedTuple):
    """A collective that runs beside what follows, up to the `Awaited` of its group in the same operator."""

    collective: Collective


class Awaited(NamedTuple):
    """Where what was started in a group is waited for."""

    group: str


OperatorStep = Kernel | Collective | Started | Awaited
Steps = tuple[OperatorStep, ...]
"""What one rank runs, in this order; a collective is waited for at its place, unless it is only started there."""


class Output(NamedTuple):
    """A tensor that an operator hands on and that recomputation can save."""

    name: str
    """MaxText's: `query_proj`, `context`, `mlpwi_0`, …"""
    columns: int
    """Values per row: the number of columns of the product."""
    bytes: float
    """Bytes to keep; 0 where no backward pass reads it."""


class Operator(NamedTuple):
    """One part of a layer, as one rank runs it for one microbatch. A Collective among its steps is waited for at that point."""

    name: str
    """Such as `fc1`."""
    forward: Steps
    """In the order given."""
    backward_input: Steps = ()
    """Gradients of the input, in the order given."""
    backward_weight: tuple[Kernel, ...] = ()
    """Gradients of the weights, after those."""
    parameters: int = 0
    """The rank's own."""
    replicated: int = 0
    """Of these, the same on every tp rank."""
    frozen: int = 0
    """The rank's weights that are not trained, as the number of weights of the activations' type that take as many bytes."""
    saved: float = 0.0
    """Bytes of activations kept for the backward pass."""
    outputs: tuple[Output, ...] = ()
    """What recomputation can save of it, in the order of its columns."""
    kept_input: float = 0.0
    """Of the bytes kept, those of its input."""
    forward_alive: float = 0.0
    """Bytes alive while its forward pass runs, beside what it and those before it keep; 0: no more than what is kept next."""
    backward_alive: float = 0.0
    """Bytes alive while its backward pass runs, beside what it and those before it keep: gradients, gathered
    inputs, temporaries."""
    expert: bool = False
    """They lie as experts do: the ranks that hold the same experts reduce their gradients."""


class Rerun(NamedTuple):
    """Operators of a layer whose forward pass runs once more in its backward pass, whole or in part."""

    operators: tuple[tuple[int, Steps], ...]
    """Their places in the layer, and what of each runs again."""
    before: int
    """The place of the operator before whose backward pass they run again."""
    dropped: float
    """Bytes of activations that need not be kept for that."""
    working: float
    """Bytes alive while it lasts, beyond those that are kept."""


class Layer(NamedTuple):
    """A run of operators that is placed on one pipeline stage as a whole: the embedding, one block, or the head."""

    name: str
    """embedding, block, head; mtp and mtp_head: a block and a head of multi-token prediction."""
    operators: tuple[Operator, ...]
    """In run order."""
    input_bytes: float
    """Bytes of the layer's input on one rank: all that full recomputation keeps."""
    reruns: tuple[Rerun, ...] = ()
    """What of it runs again before its backward pass."""
