"""A model's config.json → its graph, of the blocks that a step on a cluster is made of, without transformers or torch."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.config.yaml import Document
from clustersim.convert.hugging_face import Config
from clustersim.convert.hugging_face_workload import converted
from clustersim.errors import InputError
from clustersim.hardware.constants import BYTES
from clustersim.hardware.formats import activation_type
from clustersim.model.kernel import APART, Kernel, gemm, one_of, vector
from clustersim.parallel.load import build as build_job
from clustersim.single_gpu import job
from clustersim.single_gpu.model import Graph

WORDS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration")
"""How classes of models end that have a logit for each word; others have a few for each sequence, or none."""


def build(config: Config, batch: int, seq: int, dtype: str = "fp32", training: bool = False) -> Graph:
    """Return the graph of a config.json for `batch` sequences of `seq` tokens, its kernels as PyTorch launches them.

    In training: forward, loss, backward, and the sum of each weight's gradient into the one that is there; no optimizer.
    Raises InputError for a model_type that is not built in and for missing keys, ConfigError for shapes that contradict one
    another.
    """
    found = converted(Document(config.path, dict(config.keys), {}))
    model = {**found.data["model"], "vocab_multiple": 1}
    positions = config.count("n_positions", "n_ctx", "max_position_embeddings", default=seq)
    if model.get("positions", "learned") != "learned":
        model.pop("max_positions", None)  # any length can be asked of a model without a table of positions
    elif seq > positions:
        raise InputError(f"{config.path}: --seq {seq} is more than the {positions} positions of the model; lower it")
    if not training:
        model |= {"dropout": False, "mtp_layers": 0}  # further tokens are predicted to learn from them
    run: dict[str, object] = {"global_batch": batch, "micro_batch": batch, "seq": seq, "precision": dtype}
    run |= {"kernels": "eager", "gradients": "fp32" if dtype == "tf32" else dtype}
    run |= {"attention": "unfused" if config.kind in TRANSFORMERS else "flash"}
    if config.keys.get("expert_capacity") is not None:  # every expert is counted full
        rows = min(config.count("expert_capacity"), batch * seq) * model["experts"]
        run |= {"capacity_factor": rows / (batch * seq), "pad_to_capacity": True}
    document = Document(config.path, {"name": config.kind, "model": model, "training": run}, found.positions)
    variant = TRANSFORMERS.get(config.kind, job.itself)
    return job.graph(build_job(document, job.ALONE), training, _words(config, training), variant)


def _apart(op: str, kernel: Kernel) -> Iterator[Kernel]:
    """Yield what transformers launches: one expert after the other, and queries, keys and values by products of their own."""
    if kernel.kind == "grouped_gemm":
        yield from [one_of(kernel._replace(generation=APART))[0]] * kernel.batch
    elif op == "qkv" and kernel.kind == "linear":
        m, n, k = kernel.m, kernel.n, kernel.k
        m, n, k = {"forward": (m, n // 3, k), "dgrad": (m, n, k // 3), "wgrad": (m // 3, n, k)}[kernel.op]
        yield from [gemm("linear", kernel.op, kernel.dtype, 1, m, n, k)] * 3
        dtype = activation_type(kernel.dtype)
        yield from [vector("elementwise", "add", dtype, m, n, 1.0, 3 * BYTES[dtype])] * (
            2 if kernel.op == "dgrad" else 0
        )
    else:
        yield kernel


def _masked(op: str, kernel: Kernel) -> Iterator[Kernel]:
    """Yield the same of OPT, whose mask is of all pairs of tokens and read beside the scores."""
    for one in _apart(op, kernel):
        yield one._replace(bytes=1.5 * one.bytes) if one.op == "mask" else one


TRANSFORMERS: dict[str, job.LibraryKernels] = {
    "bert": _apart,
    "gpt2": job.itself,
    "opt": _masked,
    "switch_transformers": _apart,
}
"""Values of `model_type` that run as in transformers 4.31 to 4.35, with attention as two products around a softmax, and what is
launched there for a kernel of a block. All others have fused attention."""


def _words(config: Config, training: bool) -> bool:
    """Return whether the model ends with logits, as where `architectures` names none. Raises InputError without a loss."""
    name = config.architecture
    if training and name.endswith("Model") and not name.endswith(WORDS):
        raise InputError(
            f"{config.path}: has no loss to train on; name one with a head in architectures, or predict inference"
        )
    return not name or name.endswith(WORDS)
