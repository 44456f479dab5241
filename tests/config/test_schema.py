"""`clustersim schema`: what editors accept is what the program accepts, as far as a schema can say it."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from clustersim.cli.schema import document
from clustersim.config.fabric import FatTree
from clustersim.config.workload import Workload

ROOT = Path(__file__).parents[2]
FILES = {
    "cluster": sorted(ROOT.glob("topologies/*.y*ml")),
    "workload": [*sorted(ROOT.glob("workloads/*.yaml")), ROOT / "docs/examples/pipeline.yaml"],
    "jobs": [ROOT / "docs/examples/two_jobs.yaml"],
    "gpu": sorted(ROOT.glob("clustersim/hardware/gpus/*.yaml")),
}
EVERY = [(what, path) for what, paths in FILES.items() for path in paths]


@pytest.fixture(scope="module")
def schemas():
    return {what: Draft7Validator(document(what)) for what in FILES}


def errors(validator, data):
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in validator.iter_errors(data)]


@pytest.mark.parametrize("what", FILES)
def test_a_schema_is_one_and_every_key_of_it_is_explained(schemas, what):
    Draft7Validator.check_schema(schemas[what].schema)
    for name, made in {**schemas[what].schema["definitions"], "top": schemas[what].schema}.items():
        for key, field in made.get("properties", {}).items():
            assert field["description"], f"{name}.{key}"


@pytest.mark.parametrize(("what", "path"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_every_shipped_file_is_valid(schemas, what, path):
    assert errors(schemas[what], yaml.safe_load(path.read_text(encoding="utf-8"))) == []


def test_every_shipped_node_is_a_node(schemas):
    for path in sorted(ROOT.glob("clustersim/hardware/nodes/*.yaml")):
        node = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert errors(schemas["cluster"], {"cluster": {"nodes": 1, "node": node}}) == [], path.name


CLUSTER = {
    "cluster": {"name": "c", "nodes": 4, "node": "hgx-h100"},
    "fabric": {"kind": "fat_tree", "radix": 64, "link": {"rate": "400Gb/s", "cable": ["3m"]}},
}
JOB = {
    "name": "small",
    "model": {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 1024},
    "training": {"global_batch": 8, "seq": 1024},
}


def changed(data, key, value):
    """Return a deep copy with one value set, by dotted key; None takes the key away."""
    data = json.loads(json.dumps(data))
    *parents, last = key.split(".")
    here = data
    for part in parents:
        here = here.setdefault(part, {})
    if value is None:
        here.pop(last)
    else:
        here[last] = value
    return data


RIGHT = [
    ("cluster", "fabric.rails", 4),
    ("cluster", "fabric.tiers", [{"radix": 64}, {"name": "core"}]),
    ("cluster", "fabric.kind", "twins:build"),
    ("cluster", "cluster.node", {"extends": "hgx-h100", "gpus": {"model": "own.yaml"}, "nics": {"count": 1}}),
    ("cluster", "nccl", {"algo": "NVLSTree", "proto": "simple", "version": "2.27", "launch": "8 us"}),
    ("workload", "parallelism", {"dp": "auto", "tp": 2, "schedule": "gpipe", "algorithms": {"tp": "ring"}}),
    ("workload", "clocks", 0.8),
    ("workload", "training.adam-beta1", 0.9),
    ("workload", "seq_length", 2048),
    ("workload", "model", {"num-layers": 4, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 1000}),
]
WRONG = [
    ("cluster", "cluster.nodes", 0),
    ("cluster", "fabric.link.rate", "400 Gb"),
    ("cluster", "fabric.switch_latency", "250 GB/s"),
    ("cluster", "fabric.kind", "fattree"),
    ("cluster", "fabric.dims", [2, 2]),
    ("cluster", "fabric.tiers", 6),
    ("cluster", "cluster.node", {"nics": {"count": 1}}),
    ("cluster", "cluster.node", {"extends": "hgx-h100", "gpus": {"model": "h1000"}}),
    ("workload", "model.layres", 4),
    ("workload", "name", None),
    ("workload", "training.precision", "fp12"),
    ("workload", "parallelism.schedule", "1f1c"),
    ("workload", "parallelism.dp", "all"),
    ("workload", "clocks", 1.5),
]


@pytest.mark.parametrize(("what", "key", "value"), RIGHT, ids=str)
def test_what_the_program_reads_is_valid(schemas, what, key, value):
    assert errors(schemas[what], changed({"cluster": CLUSTER, "workload": JOB}[what], key, value)) == []


@pytest.mark.parametrize(("what", "key", "value"), WRONG, ids=str)
def test_what_is_wrong_is_not(schemas, what, key, value):
    assert errors(schemas[what], changed({"cluster": CLUSTER, "workload": JOB}[what], key, value)) != []


def test_a_key_says_what_the_reference_says(schemas):
    made = schemas["workload"].schema["definitions"]
    assert made["Parallelism"]["properties"]["tp"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100_000_000,
        "description": "Tensor-parallel degree.",
        "default": 1,
    }
    assert schemas["workload"].schema["properties"].keys() == Workload.model_fields.keys()
    fabric = schemas["cluster"].schema["definitions"]["FatTree"]["properties"]
    assert fabric.keys() == FatTree.model_fields.keys()
    assert fabric["switch_latency"]["examples"] == ["250ns"]
    assert "default" not in fabric["switch_latency"]  # kept in seconds, written with a unit


def test_the_command_prints_it(call):
    code, out, err = call("schema", "workload")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(document("workload")))
    code, _, err = call("schema", "work")
    assert code == 2
    assert "workload" in err
