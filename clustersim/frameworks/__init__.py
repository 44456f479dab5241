"""Defaults of training frameworks: one YAML file per framework, every default with its source.

`table.find("NeMo 24.07 (Megatron-Core + TE)", 2024)` returns the framework of a published run.
"""
