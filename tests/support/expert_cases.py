"""Jobs with experts on ranks of their own."""

from clustersim.config.yaml import parse
from clustersim.model.kernel import Kernel
from clustersim.parallel.load import build
from clustersim.parallel.stages import stages
from clustersim.simulation import run
from clustersim.topology.build import build as built

MODEL = """\
name: experts
predictor: roofline
model: {layers: 4, hidden: 512, heads: 8, ffn: 1024, vocab: 1024, experts: 8, topk: 2, activation: swiglu, bias: false,
  tied_embeddings: false, positions: rotary}
training:
  global_batch: 32
  seq: 256
parallelism:
  tp: 1
"""


def job(text=MODEL, **overrides):
    """Return the small mixture of experts; keyword names are dotted keys with __ for the dot, tp and its kind for short."""
    short = {name: f"parallelism__{name}" for name in ("tp", "pp", "dp", "ep", "expert_tp", "zero")}
    if overrides.get("tp", 1) > 1:
        overrides.setdefault("parallelism__sequence_parallel", True)
    return build(parse(text, "w.yaml"), {short.get(k, k).replace("__", "."): v for k, v in overrides.items()})


WIDE = {"model__hidden": 2048, "training__seq": 2048, "model__ffn": 4096}

SHARED = {"model__shared_experts": 2, "ep": 8, "dp": 8, **WIDE}


def played(overlap, rate, fold=True, engine="simpy", **more):
    """Return a step of eight nodes of one GPU, whose NICs have that rate in Gb/s."""
    node = f"{{extends: hgx-h100, gpus: {{count: 1}}, nics: {{count: 1, rate: {rate}Gb/s}}}}"
    topology = built(parse(f"cluster: {{nodes: 8, node: {node}}}\nfabric: {{kind: switch}}\n", "t.yaml"))
    asked = job(parallelism__overlap__ep=overlap, **{**SHARED, **more})
    return run(topology, asked, fold=fold, ignore_memory=True, engine=engine)


def kernels_of(one):
    return [step for stage in stages(one) for step in (*stage.forward, *stage.backward) if isinstance(step, Kernel)]
