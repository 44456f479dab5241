"""Published models of `published_models.yaml`: keys of their config.json files and the parameters that their publishers name."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_FILE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


class Published(NamedTuple):
    """Billions of parameters, also for one token where a mixture's publisher names them, and how far the figures are rounded."""

    total: float
    active: float | None = None
    within: float = 0.005
    source: str = ""


KEYS: dict[str, dict[str, Any]] = _FILE["shipped"] | {name: one["keys"] for name, one in _FILE["models"].items()}
SHIPPED = (*_FILE["shipped"], "mixtral_8x22b", "qwen3_30b_a3b", "qwen3_235b_a22b")
"""Models that are shipped workloads of the same name."""
PUBLISHED = {name: Published(**one["published"]) for name, one in _FILE["models"].items()}
BESIDE = {name: Published(**one) for name, one in _FILE["beside"].items()}
"""Models whose config.json is in the folder `wild/configs` beside the measured runs."""
REFUSED = {name: (one["keys"], one["named"]) for name, one in _FILE["refused"].items()}
"""Families whose layers are not modelled → (keys of their file, what the refusal names)."""
HARMLESS: list[str] = _FILE["harmless"]
"""Keys of published files that have no weights, nor change those of others."""
ELSEWHERE: list[str] = _FILE["elsewhere"]
"""Architectures of the configs of `BESIDE`, the dense one of ERNIE 4.5, and the text model of Llama 4."""


def written(folder: Path, keys: dict[str, Any]) -> Path:
    """Write a config.json of these keys, one a line, and return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(keys, indent=2), encoding="utf-8")
    return path
