"""An operator: what one part of a layer runs forward and backward on one rank, saves, and sends over the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

from clustersim.model.kernel import Kernel

CollectiveOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine", "broadcast", "reduce"
]


class Collective(NamedTuple):
    """A communication request: `op` over the group of family `group` that contains the rank, on `size` bytes."""

    group: str
    """Family of groups: tp; dp; etp (slices of an expert); ep (ranks over which experts are divided); tp_ep (ep × slices); edp
    (copies of the same experts); fsdp, efsdp (ranks over which parameters, or those of experts, are sharded); cp (ranks of a
    sequence); cp_a2a, cp_ring (neighbours among them, and rings over these); embedding (stages with the tied embedding); model (a
    replica); amax (all ranks of a stage); p2p-… (two adjacent stages)."""
    op: str
    """A CollectiveOp, `send` for a message from the first rank of a group to the second, or `ring_exchange` for messages of all
    ranks to the next one, repeated until every rank has received from all others."""
    size: float
    """Bytes as counted by nccl-tests: the whole array for all-reduce, all-gather and reduce-scatter; the bytes of one rank for
    all-to-all; the rows that one rank sends in a dispatch and gets back in a combine; all that one rank sends around a ring."""
    over: int = 0
    """Number of kernels after it that run concurrently; the step after these waits for it. 0: the next step waits."""
    sms: int = 0
    """Number of SMs that it takes from the concurrent kernels."""


class Started(NamedTuple):
    """A collective that runs concurrently with the following steps, up to the `Awaited` of its group in the same operator."""

    collective: Collective
    """Collective that starts here."""


class Awaited(NamedTuple):
    """Point at which a rank waits for the collective `Started` in a group."""

    group: str
    """Family of the group, as in `Collective`."""


OperatorStep = Kernel | Collective | Started | Awaited
Steps = tuple[OperatorStep, ...]
"""Steps of one rank, in order. A collective is waited for at its position, unless it is only `Started` there."""


class Output(NamedTuple):
    """Part of an operator's output that recomputation can save."""

    name: str
    """MaxText's name: `query_proj`, `context`, `mlpwi_0`, …"""
    columns: int
    """Values per row: number of columns of the GEMM."""
    bytes: float
    """Bytes to save; 0 if no backward pass reads it."""


class Operator(NamedTuple):
    """One part of a layer on one rank for one microbatch. A Collective among its steps is waited for at its position."""

    name: str
    """Name, such as `fc1`."""
    forward: Steps
    """Steps of the forward pass, in order."""
    backward_input: Steps = ()
    """Steps that compute the input's gradient, in order."""
    backward_weight: tuple[Kernel, ...] = ()
    """Kernels that compute weight gradients, after `backward_input`."""
    parameters: int = 0
    """Number of trained parameters on this rank."""
    replicated: int = 0
    """Number of those `parameters` that are replicated on every tp rank."""
    frozen: int = 0
    """Frozen weights on this rank, as the number of weights of the activations' type with equal bytes."""
    saved: float = 0.0
    """Bytes of activations saved for the backward pass."""
    outputs: tuple[Output, ...] = ()
    """Parts of the output that recomputation can save, in the order of the columns."""
    saved_input: float = 0.0
    """Part of the `saved` bytes that is the operator's input."""
    forward_alive: float = 0.0
    """Bytes allocated during its forward pass, in addition to those saved by it and earlier operators."""
    backward_alive: float = 0.0
    """Bytes allocated during its backward pass, in addition to those saved by it and earlier operators: gradients, gathered
    inputs, temporary buffers."""
    expert: bool = False
    """Whether its parameters are experts divided over ranks: gradients are reduced only over ranks with the same experts."""


class Recomputation(NamedTuple):
    """Operators of a layer whose forward pass is recomputed together, fully or in part, during its backward pass."""

    operators: tuple[tuple[int, Steps], ...]
    """(index in the layer, recomputed steps) of each operator."""
    before: int
    """Index of the operator before whose backward pass the recomputation runs."""
    dropped: float
    """Bytes of activations that recomputation makes unnecessary to save."""
    working: float
    """Bytes allocated during the recomputation, beyond the saved ones."""


@dataclass(frozen=True)
class Layer:
    """A sequence of operators that is placed on one pipeline stage as a whole: the embedding, one block, or the head.

    Stages share layer objects, so that what follows from a layer alone is computed once for all stages and splits.
    """

    name: str
    """embedding, block, head; mtp and mtp_head: a block and a head of multi-token prediction."""
    operators: tuple[Operator, ...]
    """Operators in run order."""
    input_bytes: float
    """Bytes of the layer's input on one rank, the only saved tensor under full recomputation."""
    recomputations: tuple[Recomputation, ...] = ()
    """Parts that are recomputed before their backward pass."""

    @cached_property
    def kernels(self) -> dict[Kernel, None]:
        """Distinct kernels of a forward and a backward pass, as keys in order of appearance."""
        passes = ((*op.forward, *op.backward_input, *op.backward_weight) for op in self.operators)
        return dict.fromkeys([step for steps in passes for step in steps if isinstance(step, Kernel)])

    @cached_property
    def parameters(self) -> tuple[int, int]:
        """Number of trained parameters per rank: (not in spread experts, in spread experts)."""
        counts = [sum([op.parameters for op in self.operators if op.expert == expert]) for expert in (False, True)]
        return counts[0], counts[1]

    @cached_property
    def frozen(self) -> tuple[int, int]:
        """Number of frozen weights per rank, as `parameters`, counted in weights of the activations' type."""
        counts = [sum([op.frozen for op in self.operators if op.expert == expert]) for expert in (False, True)]
        return counts[0], counts[1]

    @cached_property
    def saved(self) -> float:
        """Bytes of activations that the layer saves per microbatch, without those that are recomputed."""
        return math.fsum([op.saved for op in self.operators]) - math.fsum(
            [rerun.dropped for rerun in self.recomputations]
        )

    @cached_property
    def recomputed(self) -> float:
        """Largest number of bytes that a recomputation of the layer allocates; 0 without recomputation."""
        return max((rerun.working for rerun in self.recomputations), default=0.0)

    @cached_property
    def temporary(self) -> tuple[float, float]:
        """Bytes that a forward and a backward pass need at their peaks on top of all the activations that the layer saves.

        While an operator runs, later operators of the layer have saved nothing yet or, in a backward pass, have freed it already.
        0 for a pass that needs no more.
        """
        saved = list(accumulate([op.saved for op in self.operators]))
        forward = max([before + op.forward_alive for before, op in zip(saved, self.operators, strict=True)])
        backward = max([before + op.backward_alive for before, op in zip(saved, self.operators, strict=True)])
        return max(forward - saved[-1], 0.0), max(backward - saved[-1], 0.0)
