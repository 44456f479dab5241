"""Defaults of training frameworks: one YAML file per framework, every default with its source.

`find("NeMo 24.07 (Megatron-Core + TE)", 2024)` returns the framework of a published run.
"""

from clustersim.frameworks.table import (
    WITHOUT,
    Default,
    Framework,
    KeptTensors,
    OfferedValues,
    Rule,
    everything,
    find,
    load,
    offers,
    releases,
    unseen,
)

__all__ = [
    "WITHOUT",
    "Default",
    "Framework",
    "KeptTensors",
    "OfferedValues",
    "Rule",
    "everything",
    "find",
    "load",
    "offers",
    "releases",
    "unseen",
]
