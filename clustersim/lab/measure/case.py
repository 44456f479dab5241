"""What is measured: a kernel with the way it is run (`Case`), or a whole layer or training step (`Trial`)."""

from __future__ import annotations

from typing import NamedTuple

from clustersim.model.kernel import Kernel


class Unavailable(Exception):  # noqa: N818  - no error of the user's: the case is skipped and says why
    """This torch, or this GPU, has no such kernel."""


class Case(NamedTuple):
    """One kernel to measure.

    `runner` is the module of clustersim.lab.measure.runners that runs it; `layout` how a product's operands lie (cuBLAS's
    letters); `note` which implementation it is. `tier` 0 is measured first, 2 last. `sustained` also times ten seconds on end.
    """

    runner: str
    kernel: Kernel
    layout: str = ""
    note: str = ""
    tier: int = 0
    sustained: bool = False


class DecoderShape(NamedTuple):
    """The shape of a decoder: sizes of a whole layer, before it is split over tensor-parallel ranks."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    gated: bool

    @property
    def dim(self) -> int:
        """Return the size of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Return the number of weights, with separate tables for embedding and logits."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_heads * self.dim)
        mlp = (3 if self.gated else 2) * self.hidden * self.ffn
        return self.layers * (attention + mlp + 2 * self.hidden) + (2 * self.vocab + 1) * self.hidden


class Trial(NamedTuple):
    """A measurement that is no single kernel.

    `what` is the module of clustersim.lab.measure.trials that runs it; `mode` eager, compiled or graph (CUDA graph); `variant`
    what else distinguishes it: the recompute setting of a step, a direction of a copy.
    """

    what: str
    model: DecoderShape | None = None
    seq: int = 0
    micro_batch: int = 0
    mode: str = "eager"
    variant: str = ""
    amount: int = 0
    tier: int = 0
