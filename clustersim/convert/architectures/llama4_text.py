"""Llama 4's text model by itself (transformers, models/llama4/configuration_llama4.py)."""

from __future__ import annotations

from clustersim.convert.architectures.llama4 import LEFT_OUT, model

__all__ = ["LEFT_OUT", "model"]
