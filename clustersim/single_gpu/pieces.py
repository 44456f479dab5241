"""What several architectures share: token ids, activations, the loss of the next token."""

from __future__ import annotations

from clustersim.single_gpu import eager as f
from clustersim.single_gpu.tape import Tape, Value


def tokens(t: Tape, batch: int, seq: int) -> Value:
    """Return the indices of tokens or positions."""
    return t.data((batch, seq))


def activation(t: Tape, x: Value, name: str) -> Value:
    """Return an activation: gelu and relu are one kernel, the tanh form of GPT-2 (`gelu_new`) is eight."""
    if name == "gelu_new":
        return gelu_new(t, x)
    return f.unary(t, name, x, "threshold_backward" if name == "relu" else f"{name}_backward")


def gelu_new(t: Tape, x: Value) -> Value:
    """Return 0.5 · x · (1 + tanh(c · (x + 0.044715 · x³))), as transformers.activations.NewGELUActivation writes it."""
    inner = f.scale(t, "mul", f.add(t, x, f.scale(t, "mul", f.power(t, x))))
    return f.mul(t, f.scale(t, "mul", x), f.shift(t, f.unary(t, "tanh", inner, "tanh_backward")))


def rms_norm(t: Tape, x: Value) -> Value:
    """Return T5's norm, which is no kernel of its own: weight · (x · rsqrt(mean(x²) + eps)), five calls."""
    square = f.power(t, x)
    mean = f.mean(t, square)
    factor = f.unary(t, "rsqrt", f.shift(t, mean), "mul")
    return f.mul(t, f.mul(t, x, factor), t.weight(x.shape[-1]))


def next_token_loss(t: Tape, logits: Value) -> None:
    """Record the loss of each token's successor, and the backward pass; nothing in inference."""
    if not t.training:
        return
    t.place = "loss"
    batch, seq, vocab = logits.shape
    kept = f.contiguous(t, f.leading(t, logits, 1, seq - 1)) if seq > 1 else logits
    t.backward(f.cross_entropy(t, f.view(t, kept, (batch * max(seq - 1, 1), vocab))))
