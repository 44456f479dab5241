"""PyTorch on shapes alone: calls are recorded with their kernels, and run backwards as its autograd engine would.

A tensor that several calls read gets the sum of their gradients, one `add` for each beyond the first; every weight gets
one `add` into the gradient that is there already (`torch::autograd::AccumulateGrad`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from clustersim.single_gpu.aten import price
from clustersim.single_gpu.memory import of_nodes
from clustersim.single_gpu.model import OUTSIDE, Graph, OperatorCall, PassPhase
from clustersim.single_gpu.tensor import Tensor, TensorShape, tensor


class Value(NamedTuple):
    """A tensor on the tape: the node that made it, and whether a gradient flows back to it."""

    tensor: Tensor
    node: int
    gradient: bool
    number: int
    """Its own number: two outputs of one call (a split) differ in it."""

    @property
    def shape(self) -> TensorShape:
        """Its shape."""
        return self.tensor.shape


Gradients = Sequence[tuple[Value, Value]]
Rule = Callable[[Value], Gradients]
"""From the gradient of an output to (input, gradient of it) pairs, recording the calls that it takes."""


@dataclass(slots=True)
class Tape:
    """Records the calls of one model; `dtype` is that of its activations, `training` turns dropout and gradients on."""

    dtype: str
    training: bool
    place: str = ""
    phase: PassPhase = "forward"
    nodes: list[OperatorCall] = field(default_factory=list)
    rules: list[tuple[Value, Rule]] = field(default_factory=list)
    weights: dict[int, Value] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    count: int = 0

    def value(self, one: Tensor, node: int, gradient: bool) -> Value:
        """Return a new value."""
        self.count += 1
        return Value(one, node, gradient and self.training, self.count)

    def data(self, shape: TensorShape, dtype: str = "int64") -> Value:
        """Return an input of the model: indices or a mask."""
        return self.value(tensor(shape, dtype), OUTSIDE, False)

    def weight(self, *shape: int) -> Value:
        """Return a parameter."""
        made = self.value(tensor(shape, self.dtype), OUTSIDE, True)
        self.weights[made.number] = made
        self.places[made.number] = self.place
        return made

    def call(self, op: str, inputs: Sequence[Value], out: Tensor, rule: Rule | None = None) -> Value:
        """Record a call that makes `out`, and return that; `rule` gives the gradients of its inputs."""
        kernels = price(op, [one.tensor for one in inputs], [out])
        reads = tuple((one.node, one.tensor.bytes) for one in inputs)
        self.nodes.append(OperatorCall(self.place, op, self.phase, kernels, reads, out.bytes))
        flows = self.phase == "forward" and rule is not None and any(one.gradient for one in inputs)
        made = self.value(out, len(self.nodes) - 1, flows)
        if flows and self.training and rule is not None:
            self.rules.append((made, _placed(self, self.place, rule)))
        return made

    def backward(self, loss: Value) -> None:
        """Record the backward pass from `loss`, each rule in reverse order once its gradient is complete."""
        self.phase = "backward"
        pending = {loss.number: self.value(loss.tensor, OUTSIDE, False)}
        for made, rule in reversed(self.rules):
            gradient = pending.pop(made.number, None)
            for one, part in rule(gradient) if gradient else ():
                if one.gradient:
                    pending[one.number] = self._sum(pending.get(one.number), part)
        self._accumulate(pending)

    def _sum(self, old: Value | None, new: Value) -> Value:
        return new if old is None else self.call("add", (old, new), tensor(new.shape, self.dtype))

    def _accumulate(self, pending: dict[int, Value]) -> None:
        self.phase = "accumulate"
        for number, one in self.weights.items():
            if number in pending:
                self.place = self.places[number]
                self.call("add", (one, pending[number]), one.tensor)

    def graph(self, name: str) -> Graph:
        """Return what was recorded."""
        weights = [one.tensor for one in self.weights.values()]
        memory = of_nodes(self.nodes, math.fsum(one.bytes for one in weights), self.training)
        return Graph(name, tuple(self.nodes), sum(one.elements for one in weights), memory=memory)


def _placed(tape: Tape, place: str, rule: Rule) -> Rule:
    """Return the rule as one whose calls are recorded at the place of the forward call."""

    def run(gradient: Value) -> Gradients:
        tape.place = place
        return rule(gradient)

    return run
