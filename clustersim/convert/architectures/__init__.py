"""Hugging Face models by `model_type`: one file each, whose `model` returns the shapes that a config.json says, and nothing else.

A file may have `LEFT_OUT`, what of the model a workload cannot say, in words.
"""

ALIASES = {"grok-1": "grok_1"}
