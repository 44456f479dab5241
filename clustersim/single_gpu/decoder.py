"""Decoders of the Llama family from their config.json, as a workload of ours: RMSNorm, rotary positions, SwiGLU, GQA."""

from __future__ import annotations

from clustersim.config.yaml import Document
from clustersim.convert.hugging_face import Config
from clustersim.parallel.load import build as build_job
from clustersim.single_gpu import job
from clustersim.single_gpu.model import Graph

KINDS = ("llama", "mistral", "qwen2", "qwen3")


def build(config: Config, batch: int, seq: int, dtype: str, training: bool) -> Graph:
    """Return the graph of a config.json, with eager element-wise kernels and fused (flash) attention.

    Raises InputError for missing keys, ConfigError for shapes that contradict one another.
    """
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    config.choice("hidden_act", ("silu",), "silu")
    model = {
        "layers": config.layers("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.count("num_key_value_heads", default=heads),
        "head_dim": config.count("head_dim", default=max(hidden // heads, 1)),
        "ffn": config.count("intermediate_size"),
        "vocab": config.count("vocab_size"),
        "vocab_multiple": 1,
        "norm": "rmsnorm",
        "activation": "swiglu",
        "positions": "rotary",
        "bias": False,
        "tied_embeddings": bool(config.keys.get("tie_word_embeddings", False)),
    }
    run = {"global_batch": batch, "micro_batch": batch, "seq": seq, "precision": dtype}
    run |= {"kernels": "eager", "attention": "flash", "gradients": "fp32" if dtype == "fp32" else dtype}
    document = Document(config.path, {"name": config.kind, "model": model, "training": run}, {})
    return job.graph(build_job(document, job.ALONE), training)
