"""Jobs, points and inputs of searches, written as words such as `tp=2 model.layers=4`."""

from typing import Any

import yaml
from hypothesis import strategies as st

from clustersim.config.shipped import find
from clustersim.parallel.options import KEYS
from clustersim.sweeps.evaluate import Files, SweepInputs, load


def loaded(topology: str, workload: str, unlikely: bool = True) -> SweepInputs:
    """Return the inputs of a shipped topology and a shipped workload."""
    return load(Files(topology, str(find("workloads", workload)), {}), unlikely)


def texts(words: str) -> dict[str, str]:
    """Return the text of each value by its key, from words such as `tp=1,2` or `model.layers=4`."""
    pairs = (word.split("=", 1) for word in words.split())
    return {KEYS.get(key, key): text for key, text in pairs}


def plain(words: str) -> dict[str, Any]:
    """Return the value of each key, as it stands, from such words."""
    pairs = (word.split("=", 1) for word in words.split())
    return {key: yaml.safe_load(text) for key, text in pairs}


def parsed(words: str) -> dict[str, Any]:
    """Return the value of each dotted key, from such words."""
    return {KEYS.get(key, key): value for key, value in plain(words).items()}


def question(words: str) -> tuple[SweepInputs, str]:
    """Return the inputs that the first two of some words name, and the other words."""
    topology, workload, rest = words.split(" ", 2)
    return loaded(topology, workload), rest


def keywords(words: str) -> dict[str, Any]:
    """Return the values of such words by keys as keyword arguments have them, with __ for the first dot."""
    return {key.replace(".", "__", 1): value for key, value in parsed(words).items()}


def some_of(choices: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for a value of each key of some of the keys."""
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in choices.items()})


def each_of(choices: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for a value of every key."""
    return st.fixed_dictionaries({key: st.sampled_from(values) for key, values in choices.items()})


def said(job: Any, key: str) -> Any:
    """Return the value that a job's specification has at a dotted key, a tuple as a list."""
    value = job
    for part in key.split("."):
        value = getattr(value, part)
    return list(value) if isinstance(value, tuple) else value
