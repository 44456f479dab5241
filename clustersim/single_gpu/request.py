"""What is asked of a model."""

from __future__ import annotations

from dataclasses import dataclass

SEQUENCE = 2048
"""Tokens of a sequence where none is asked for and the model takes as many."""
EAGER = ("fp32", "tf32", "fp16", "bf16")
"""Data types that PyTorch runs eagerly; TF32 is FP32 in memory, its products run on tensor cores."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a model: None leaves it to the model. `batch` and `seq` count sequences and tokens of each."""

    training: bool = False
    batch: int | None = None
    seq: int | None = None
    dtype: str | None = None
    fusion: bool = False
