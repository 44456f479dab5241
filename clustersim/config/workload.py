"""The specification of a workload: a model, how it is trained, and how it is split over the GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clustersim.config.fields import Count, Fraction, Index, Name, Spec

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]


class Model(Spec):
    """A transformer by its shapes (names in brackets are Megatron's, accepted as aliases).

    ffn: width of the MLP (of one expert in a mixture). kv_heads: key/value heads (GQA; default: heads). head_dim: default
    hidden / heads. experts, topk: mixture of experts, with `shared_experts` always on. dense_layers: so many of the first
    layers have one MLP of width `dense_ffn` (default: ffn) and no experts (DeepSeek). causal: false for encoders (BERT).
    tied_embeddings: the head shares the embedding's weights. dropout: whether dropout kernels run. activation: `gelu_new`
    is GPT-2's tanh form, eight kernels when eager. head_transform: the head starts with a linear, the activation and a
    norm (BERT). vocab_multiple: the vocabulary is padded to a multiple of this times tp (make_vocab_size_divisible_by).
    """

    layers: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Annotated[int, Field(ge=1, le=1_000_000)]
    heads: Count
    vocab: Count
    ffn: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    max_positions: Count | None = None
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_position: Literal["pre", "post"] = "pre"
    activation: Literal["gelu", "gelu_new", "relu", "swiglu"] = "gelu"
    positions: Literal["learned", "rotary", "none"] = "learned"
    bias: bool = True
    tied_embeddings: bool = True
    head_transform: bool = False
    vocab_multiple: Count = 128
    causal: bool = True
    dropout: bool = False
    experts: Count | None = None
    topk: Count = 1
    shared_experts: Index = 0
    dense_layers: Index = 0
    dense_ffn: Count | None = None


class Training(Spec):
    """How the model is trained.

    global_batch and micro_batch count sequences. attention: `flash` is one fused kernel, `unfused` runs both products and
    the softmax apart. kernels: `fused` merges bias, activation, dropout and residual as Megatron's fused kernels do,
    `eager` launches each element-wise operation by itself. recompute: activations recomputed in the backward pass.
    gradients: data type of the gradients that are accumulated and reduced. optimizer: `none` leaves the update out.
    expert_imbalance: how many times the mean of tokens the busiest rank of an expert-parallel group receives, from 1
    (balanced) to ep (all of them); the ranks' shares follow Zipf's law, and a rank spreads its own over its experts.
    """

    global_batch: Count
    micro_batch: Count = 1
    seq: Count
    precision: Precision = "bf16"
    attention: Literal["flash", "unfused"] = "flash"
    kernels: Literal["fused", "eager"] = "fused"
    recompute: Literal["none", "selective", "full"] = "none"
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    optimizer: Literal["adam", "sgd", "none"] = "adam"
    clip_gradients: bool = True
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class Overlap(Spec):
    """What communication runs beside computation (Megatron's --overlap-grad-reduce, …).

    grad_reduce: gradients are reduced in buckets during the last backward pass. param_gather: parameters of the
    distributed optimizer are gathered during the first forward pass. p2p: a stage goes on while its activations travel.
    """

    grad_reduce: bool = False
    param_gather: bool = False
    p2p: bool = False


class Algorithms(Spec):
    """The collective algorithm of each group: a file of `clustersim/collectives/algorithms/`.

    tp, ep: those groups. dp: those that reduce gradients, of experts too. embedding: first and last stage, which share a tied
    embedding. model: all ranks of a replica (with all experts), which share the gradient norm.
    """

    tp: Name = "nccl"
    ep: Name = "nccl"
    dp: Name = "nccl"
    embedding: Name = "nccl"
    model: Name = "nccl"


class Parallelism(Spec):
    """How the model is split.

    dp `auto` is the largest degree that the cluster holds and the batch allows. ep: over how many of the dp replicas the
    experts are spread, each of which holds experts / ep of them; tokens travel to their experts and back (Megatron's
    expert_model_parallel_size and its all-to-all dispatcher). expert_tp: into how many slices an expert is cut (default: tp;
    Megatron's expert_tensor_parallel_size); ep times expert_tp divides tp times dp. vpp: model chunks a pipeline rank
    (interleaved schedules). account_for_embedding, account_for_loss: the embedding counts as a layer of the first stage, the
    loss as one of the last, when layers are divided (Megatron's account_for_…_in_pipeline_split). zero: 0; 1 for the
    distributed optimizer; 2 also frees the gradients of a stage, all but its share, once its last backward pass has reduced
    them (with overlap.grad_reduce), which helps where the passes of a stage follow each other. bucket: parameters a gradient
    bucket (default: 40 million or 1 million times dp, whichever is more, as in Megatron).
    tp_across_nodes: whether a tensor-parallel group may span nodes. shard_all_parameters: tp divides norms, biases and
    position embeddings too, as NeuSight counts them; Megatron, and the default, replicate these.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count | Literal["auto"] = "auto"
    ep: Count = 1
    expert_tp: Count | None = None
    vpp: Count = 1
    account_for_embedding: bool = False
    account_for_loss: bool = False
    schedule: Name = "1f1b"
    sequence_parallel: bool = False
    zero: Annotated[int, Field(ge=0, le=2)] = 0
    bucket: Count | None = None
    overlap: Overlap = Overlap()
    algorithms: Algorithms = Algorithms()
    tp_across_nodes: bool = False
    shard_all_parameters: bool = False

    @property
    def etp(self) -> int:
        """Slices of an expert."""
        return self.expert_tp or self.tp

    @property
    def spread(self) -> bool:
        """Whether experts lie on the ranks in another way than the rest of the model, so that rows travel to them."""
        return self.ep > 1 or self.etp != self.tp


class Workload(Spec):
    """A whole workload file.

    clocks: `sustained` is what the GPU's power holds in a step of seconds, `boost` the speed of a short burst, and a number
    the share of it that matrix products keep ([how](clocks.md)).
    """

    name: Name
    model: Model
    training: Training
    parallelism: Parallelism = Parallelism()
    predictor: Name = "neusight"
    clocks: Literal["sustained", "boost"] | Fraction = "sustained"
