"""A Hugging Face config.json as the shapes that a model is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clustersim.config.yaml import read as read_yaml
from clustersim.errors import InputError, shown, suggest

LAYERS = 10_000
"""Largest number of layers, as in a workload file."""
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""{torch_dtype, called dtype in transformers 5: our data type}"""


@dataclass(frozen=True, slots=True)
class Config:
    """Keys of one config.json, read with errors that name the file."""

    path: str
    keys: Mapping[str, object]
    read: set[str] = field(default_factory=set, compare=False)
    """Names of the keys that were read, of this object and all that share its file."""

    @property
    def kind(self) -> str:
        """The `model_type`."""
        return str(self.keys.get("model_type", ""))

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first present key, an integer of at least 1; a list of equal values counts as one value.

        Return `default` without a key. Raises InputError for another value, or without key and default.
        """
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]  # one for each layer, all equal (Hunyuan)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{self.path}: {name} is {shown(value)}; it must be a whole number of at least 1")
            self.read.update(other for other in names if self.keys.get(other) == value)
            return value
        if default is None:
            raise InputError(f"{self.path}: lacks {names[0]}; a config.json of model_type {self.kind!r} has it")
        return default

    def with_keys(self, keys: Mapping[str, object]) -> Config:
        """Return a Config of other keys of the same file, which shares the record of keys that were read."""
        return Config(self.path, keys, self.read)

    def get(self, name: str) -> object:
        """Return the value of a key and record it as read; None if it is missing."""
        self.read.add(name)
        return self.keys.get(name)

    def index(self, *names: str, default: int) -> int:
        """Return the first present key, an integer of at least 0 (false is 0), or the default. Raises InputError otherwise."""
        present = [name for name in names if self.get(name) is not None]
        return 0 if present and self.keys[present[0]] in (0, False) else self.count(*present[:1], default=default)

    def listed(self, name: str, what: str) -> list[object]:
        """Return a list, [] for a missing key. Raises InputError for another value, naming `what`, the items of the list."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{self.path}: {name} is {shown(value)}; it is a list of {what}")
        return value or []

    def flag(self, *names: str, default: bool) -> bool:
        """Return the first present key, a boolean, or the default. Raises InputError for another value."""
        name = next((key for key in names if self.get(key) is not None), None)
        if name is None:
            return default
        if not isinstance(value := self.keys[name], bool):
            raise InputError(f"{self.path}: {name} is {shown(value)}; it must be true or false")
        return value

    def rate(self, name: str, default: float) -> float:
        """Return the dropout rate `name` in [0, 1), `default` if missing. Raises InputError for another value."""
        value = self.get(name) if name in self.keys else default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise InputError(f"{self.path}: {name} is {shown(value)}; a rate is a number from 0 to below 1")
        return float(value)

    def layers(self, *names: str) -> int:
        """Return the number of layers. Raises InputError if it is missing, not a positive integer, or above LAYERS."""
        number = self.count(*names)
        if number > LAYERS:
            name = next(name for name in names if self.keys.get(name) is not None)
            raise InputError(f"{self.path}: {name} is {number}; at most {LAYERS} layers are built")
        return number

    @property
    def dtype(self) -> str | None:
        """Our name of the data type of the published weights; None if it is missing or unknown."""
        return DTYPES.get(str(self.keys.get("torch_dtype") or self.keys.get("dtype")))

    @property
    def architecture(self) -> str:
        """Model class in `architectures`; "" if it is missing. Raises InputError unless it is a list of one name."""
        named = self.keys.get("architectures") or [""]
        if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
            raise InputError(f"{self.path}: architectures is {shown(named)}; it is a list with one name")
        return named[0]

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        """Return a key that must be one of the words `known`, or the default. Raises InputError for another word."""
        value = self.get(name) or default
        if value not in known:
            raise InputError(f"{self.path}: {name} {shown(value)} is not supported; {suggest(str(value), known)}")
        return str(value)


def read(path: str | Path) -> Config:
    """Return the config of a JSON file. Raises InputError if it cannot be read, and ConfigError if it is not a JSON object."""
    return Config(str(path), read_yaml(path, "a config.json", foreign=True).data)
