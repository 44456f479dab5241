"""The specification of a workload: a model, how it is trained, and how it is split over the GPUs."""

from typing import Annotated, Literal, Self

from pydantic import Field

from clustersim.config.fields import Count, Fraction, Index, Name, Spec

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4"]
RecomputeModule = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]
Saved = Literal[
    "query_proj",
    "key_proj",
    "value_proj",
    "qkv_proj",
    "context",
    "out_proj",
    "mlpwi_0",
    "mlpwi_1",
    "mlpwi",
    "mlpwo",
    "dispatch",
    "combine",
    "reduce_scatter",
    "op",
    "save_qkv_proj",
    "save_out_proj",
    "save_dot_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_with_context_except_mlp",
    "minimal",
    "minimal_with_context",
    "minimal_flash",
]
Positions = Literal["learned", "rotary", "none"]


class LatentAttention(Spec):
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): queries, keys and values come out of narrow latents, and
    values have a width of their own. The names are Megatron's."""

    q_lora_rank: Count | None = None
    """Width of the latent of the queries; default: none, they come from the block's input (DeepSeek-V2-Lite)."""
    kv_lora_rank: Count
    """Width of the latent that keys and values share."""
    qk_head_dim: Count
    """Width of a head's queries and keys without their rotary part."""
    qk_pos_emb_head_dim: Count
    """Width of the rotary part; all heads share that of the keys."""
    v_head_dim: Count
    """Width of a head's values."""


Mixer = Literal["attention", "mamba2", "attention+mamba2", "delta", "conv", "none"]


class StateSpace(Spec):
    """A Mamba-2 layer: a selective state space in the form of chunks (Dao and Gu 2024, arXiv 2405.21060)."""

    heads: Count
    """Number of heads."""
    head_dim: Count
    """Width of one head."""
    state: Count
    """Width of the state of one channel."""
    groups: Count = 1
    """Number of groups of heads that share input and output matrices (B and C)."""
    conv: Count = 4
    """Width of the causal convolution before it."""
    chunk: Count = 256
    """Tokens of one chunk of the scan."""


class DeltaNet(Spec):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next and, with gates by channel, in Kimi Linear."""

    heads: Count
    """Number of value heads."""
    key_heads: Count | None = None
    """Number of query and key heads; default: heads."""
    key_dim: Count
    """Width of one query or key head."""
    value_dim: Count
    """Width of one value head."""
    conv: Count = 4
    """Width of the causal convolution before it."""
    chunk: Count = 64
    """Tokens of one chunk of the scan."""
    channel_gates: bool = False
    """Decay and output gate come from low-rank linears, one decay a channel (Kimi Delta Attention, arXiv 2510.26692)."""


class Indexer(Spec):
    """Scores by which a query chooses the keys that it attends to: sparse attention of DeepSeek-V3.2."""

    heads: Count
    """Number of indexer heads."""
    dim: Count
    """Width of one indexer head."""


class Block(Spec):
    """What one kind of block, or several in a row, has otherwise than the model says."""

    count: Count = 1
    """How many in a row."""
    mixer: Mixer | None = None
    """What mixes the tokens."""
    feed_forward: bool | None = None
    """Whether an MLP or experts follow."""
    heads: Count | None = None
    """Attention heads."""
    kv_heads: Count | None = None
    """Key and value heads."""
    head_dim: Count | None = None
    """Width of one head."""
    window: Index | None = None
    """Keys that a query sees at most, counted back from itself; 0: all."""
    positions: Positions | None = None
    """How tokens know their place."""
    ffn: Count | None = None
    """Width of the MLP, or of one expert."""
    experts: Index | None = None
    """Experts of a mixture; 0: one MLP."""
    topk: Count | None = None
    """Experts that a token visits."""
    shared_experts: Index | None = None
    """Experts that every token visits too."""


class Model(Spec):
    """A transformer by its shapes. Megatron's names of keys are accepted too ([list](#megatrons-names))."""

    layers: Annotated[int, Field(ge=1, le=10_000)]
    """Blocks; of a decoder."""
    blocks: Annotated[tuple[Block, ...], Field(strict=False)] = ()
    """Kinds of blocks in order, repeated until all layers have one, the last time in part: `[{window: 128}, {}]` slides in every
    other layer. Default: all alike."""
    hidden: Annotated[int, Field(ge=1, le=1_000_000)]
    """Width of the activations between blocks."""
    heads: Count
    """Attention heads."""
    vocab: Count
    """Tokens, before padding."""
    ffn: Count | None = None
    """Width of the MLP, of one expert in a mixture; default 4·hidden."""
    kv_heads: Count | None = None
    """Key and value heads (GQA); default: heads."""
    head_dim: Count | None = None
    """Width of one head; default hidden / heads."""
    mla: LatentAttention | None = None
    """Multi-head latent attention, in the place of kv_heads and head_dim."""
    mixer: Mixer = "attention"
    """What mixes the tokens in a block: attention, a state space, both in parallel, a gated delta net, a short convolution, or
    nothing."""
    mamba: StateSpace | None = None
    """Shapes of `mixer: mamba2`."""
    delta: DeltaNet | None = None
    """Shapes of `mixer: delta`."""
    conv: Count | None = None
    """Width of the gated convolution of `mixer: conv` (LFM2)."""
    feed_forward: bool = True
    """Whether an MLP or experts follow the mixer in a block."""
    output_gate: bool = False
    """Queries come with a gate that is multiplied with attention's output (Qwen3-Next)."""
    window: Index = 0
    """Keys that a query sees at most, counted back from itself (sliding window), or with `indexer` chosen by score; 0: all."""
    indexer: Indexer | None = None
    """What scores all keys for sparse attention; `window` is the number of keys that a query then attends to."""
    qk_norm: bool = False
    """Queries and keys are normed head by head (Qwen 3)."""
    max_positions: Count | None = None
    """Rows of the table of learned positions; default seq."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Which norm."""
    norm_position: Literal["pre", "post", "both"] = "pre"
    """Before (`pre`) or after (`post`) each half of a block, or `both` (Grok-1)."""
    activation: Literal["gelu", "gelu_new", "relu", "squared_relu", "swiglu", "geglu"] = "gelu"
    """Of the MLP; `gelu_new` is GPT-2's tanh form, eight kernels when eager; `swiglu` and `geglu` multiply with a gate."""
    activation_clamp: Annotated[float, Field(gt=0, strict=False)] | None = None
    """What both inputs of the activation of experts with a gate are limited to (GPT-OSS: 7); default: no limit."""
    positions: Positions = "learned"
    """How tokens know their place."""
    bias: bool = True
    """Linears add one."""
    qkv_bias: bool | None = None
    """Queries, keys and values add one; default: bias (Qwen 2.5: these alone)."""
    tied_embeddings: bool = True
    """The head shares the embedding's weights."""
    head_transform: bool = False
    """The head starts with a linear, the activation and a norm (BERT)."""
    vocab_multiple: Count = 128
    """The vocabulary is padded to a multiple of this times tp (make_vocab_size_divisible_by)."""
    causal: bool = True
    """A token sees those before it; false for encoders (BERT)."""
    dropout: bool = False
    """Dropout kernels run."""
    experts: Count | None = None
    """Experts of a mixture; default: none."""
    topk: Count = 1
    """Experts that a token visits."""
    router_groups: Count = 1
    """Groups of experts among which the router chooses first (Megatron's moe_router_num_groups, n_group of a config.json) …"""
    router_group_topk: Count | None = None
    """… and this number of groups per token, in which its experts are (moe_router_group_topk, topk_group); default: all. With
    `parallelism.algorithms.ep: deepep` or `hybridep` they say what crosses the network."""
    shared_experts: Index = 0
    """Experts, of the same width, that every token visits too."""
    shared_ffn: Count | None = None
    """Width of each of those; default: ffn."""
    dense_layers: Index = 0
    """So many of the first layers have one MLP and no experts (DeepSeek)."""
    dense_ffn: Count | None = None
    """Width of that MLP; default: ffn."""
    encoder_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Blocks of an encoder, to whose output those of the decoder attend (T5); of the same kinds in the same order."""
    mtp_layers: Annotated[int, Field(ge=0, le=100)] = 0
    """Further tokens that are predicted, each by one more block (multi-token prediction, DeepSeek-V3)."""


class Documents(Spec):
    """The lengths of documents, of which each sees itself alone."""

    mean: Count
    """Tokens of a document in the mean."""
    max: Count | None = None
    """Of the longest one; default: seq."""
    spread: Annotated[float, Field(ge=0, le=100, strict=False)] = 1.0
    """Standard deviation of the lengths over their mean; 1: exponential lengths, 0: all alike."""


class Offload(Spec):
    """What is kept in the memory of the hosts, to which PCIe or NVLink-C2C leads; how fast these are says `host` of a node."""

    optimizer_states: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """The share of the optimizer's state that is on the host, whose CPUs update it (Megatron's optimizer_cpu_offload and
    optimizer_offload_fraction, DeepSpeed's offload_optimizer). With `zero: 2` and 3 gradients go there as they are reduced."""
    parameters: bool = False
    """Sharded parameters are there too, and are copied to the GPU before they are gathered (DeepSpeed's offload_param, FSDP's
    CPUOffloadPolicy); needs zero: 3 and optimizer_states: 1."""
    activations: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """The share of what blocks keep for their backward pass that is copied there under the next block, and back before it is
    needed (Megatron's cpu_offloading and fine_grained_activation_offloading)."""
    overlap: bool = False
    """Copies and the CPUs' update run block by block beside each other (overlap_cpu_optimizer_d2h_h2d)."""
    update: Literal["fused", "eager"] = "fused"
    """The optimizer on the CPU: one fused pass (DeepSpeed's CPUAdam), or PyTorch's own, operation by operation."""
    threads: Count | None = None
    """Threads of a rank's update; torchrun's default is 1 (OMP_NUM_THREADS). Default: the rank's share of its node's cores."""


AttentionTarget = Literal["linear_qkv", "linear_q", "linear_k", "linear_v", "linear_proj"]
MlpTarget = Literal["linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]


class Lora(Spec):
    """Low-rank adapters beside frozen weights (LoRA, Hu et al. 2021, arXiv 2106.09685): y = W·x + alpha/rank · B·A·x. Targets
    have the names of Megatron-Bridge (`peft/lora.py`, `peft/canonical_lora.py`)."""

    rank: Count
    """Width between A and B (Megatron-Bridge's dim, PEFT's r)."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] | None = None
    """Scale of an adapter's output, times rank; it changes no time. Default: rank."""
    dropout: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    """Share of an adapter's input that is dropped; 0: no dropout kernels."""
    targets: Annotated[tuple[Literal[AttentionTarget, MlpTarget], ...], Field(strict=False, min_length=1)] = (
        *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    )
    """Linears of attention and dense MLPs that get an adapter. `linear_qkv` and `linear_fc1` have one for all their outputs;
    `linear_q`, `linear_fc1_gate` and their kind have one each (PEFT's q_proj, gate_proj, …)."""
    base: Literal["fp8", "mxfp8", "nvfp4", "nf4"] | None = None
    """Format in which the frozen linears of blocks lie in memory: that of `precision`, without a copy in 16 bits (NVIDIA's
    fp8_params), or `nf4`, 4.127 bits a weight that are unpacked before each product (QLoRA with double quantization, arXiv
    2305.14314). Default: the type of activations."""
    a2a: bool = False
    """With sequence_parallel: the outputs of adapters of row-parallel linears are exchanged for tokens, not gathered
    (Megatron-Bridge's a2a_experimental)."""


class Training(Spec):
    """How the model is trained."""

    global_batch: Count
    """Sequences of a step."""
    micro_batch: Count = 1
    """Sequences that a replica takes at a time."""
    seq: Count
    """Tokens of a sequence; of a decoder."""
    encoder_seq: Count | None = None
    """Tokens of the encoder's sequence; default: seq."""
    packed: Documents | None = None
    """Sequences are documents one behind the other, whose attention costs the sum of the squares of their lengths (Megatron's
    reset_attention_mask, packed sequences of fine-tuning); default: one document."""
    padded: Documents | None = None
    """Each sequence is a document that is padded to the longest of its microbatch, of at most `seq` tokens. Padding takes time
    and is not counted among tokens; default: sequences of `seq` tokens."""
    precision: Precision = "bf16"
    """Data type of the products; an absent 16-bit type runs in the next wider one. `fp8` needs GPUs
    that multiply it (Hopper, Ada, MI300 and later). `mxfp8` has a byte of scale for 32 values and fp8's rate, `nvfp4` one for 16
    and `mxfp4` one for 32, both at fp4's rate; they need Blackwell or MI355X, `nvfp4` Blackwell.
    [What stays in 16 bits](models.md#narrow-formats) is the same for all."""
    fp8_scaling: Literal["delayed", "current", "block", "row"] = "delayed"
    """Where `fp8` has its scales from: one a tensor from the steps before, or from the tensor itself, which is then read twice
    (Megatron's fp8_recipe delayed and tensorwise), one for 128 values (blockwise), or one a row (torchao's rowwise)."""
    bf16_first_layers: Index = 0
    """Number of first layers that multiply in bf16 under a `precision` below 16 bits (Megatron's first_last_layers_bf16)."""
    bf16_last_layers: Index = 0
    """The same of the last layers; NVIDIA's first long training in nvfp4 kept 16 % of its linear layers so (arXiv 2509.25149)."""
    attention: Literal["flash", "flash1", "triton", "flash2", "flash3", "flash4", "cudnn", "unfused"] = "flash"
    """`flash` is one fused kernel, of the generation that libraries run on the GPU. FlashAttention-1 to 4, FlashAttention-1 in
    `triton` and cuDNN's are [as fast beside it](predictors.md#flash-attention) as published. `unfused` runs both products and
    the softmax apart."""
    kernels: Literal["fused", "eager"] = "fused"
    """`fused` merges bias, activation, dropout and residual as Megatron's fused kernels do; `eager` launches each
    element-wise operation by itself."""
    fp8_activation_input: bool = False
    """Fused activations of MLPs and experts keep their input in fp8, which is cast back in the backward pass (Megatron's
    activation_func_fp8_input_store)."""
    norm_kernels: Literal["fused", "torch", "upcast", "eager"] | None = None
    """Norms: `fused` keep a row in registers (Transformer Engine's), `torch` are PyTorch's own or compiled ones, `upcast` those
    on values cast to fp32, made again in the backward pass (InternEvo's), of an `eager` RMSNorm each operation is launched by
    itself (Hugging Face's); default: as `kernels`."""
    fused_accumulation: bool = True
    """With `kernels: fused`: products of weights' gradients add to the main ones; else a kernel behind each does (autograd)."""
    fused_experts: bool = False
    """Products of experts take in what lies between them: casts, biases and the activation (Transformer Engine's op fuser)."""
    fused_projections: bool = True
    """Whether queries, keys and values are one product, and so the gate of an activation and what it gates."""
    rope_kernels: Literal["fused", "eager"] | None = None
    """Rotary positions in one kernel, or each operation by itself; default: as `kernels`."""
    cross_entropy: Literal["parallel", "native", "fused", "metered", "eager"] | None = None
    """The loss: `parallel` in fp32 over the parts of the vocabulary (Megatron's), `native` the same compiled, `fused` in the
    place of the logits (Transformer Engine's: cross_entropy_loss_fusion), `metered` a fused one with metrics by PyTorch's after
    it (Composer's), or `eager`; default: parallel, with eager kernels eager."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations recomputed in the backward pass: of whole blocks, or (`selective`) of modules of them."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Field(strict=False)] = ()
    """Which modules, under Megatron's names; default: core_attn."""
    recompute_method: Literal["uniform", "block"] = "uniform"
    """`full` recomputes all blocks (`uniform`) or the first recompute_layers of each stage (`block`)."""
    recompute_layers: Count | None = None
    """Layers: of `block` those that run again (default: all), of `uniform` those between two kept inputs (default: 1)."""
    recompute_saves: Annotated[tuple[Saved, ...], Field(strict=False)] = ()
    """`full` saves these outputs of a block and does not make them again: of products (`query_proj` to `mlpwo`, MaxText's names),
    attention (`context`), exchanges of experts (`dispatch`, `combine`) and reduce-scatters. A policy's name saves several:
    MaxText's, or torchtitan's `op`, every second product and attention. Default: none."""
    recompute_every: Count | None = None
    """Only each n-th block of a stage is recomputed (torchtitan's selective_ac_option); default: each."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type of the gradients that are accumulated and reduced."""
    optimizer: Literal["adam", "adam8bit", "adafactor", "muon", "sgd", "none"] = "adam"
    """`adam8bit` keeps both moments in a byte (bitsandbytes), `adafactor` means of rows and columns alone. `muon` keeps one
    moment of matrices inside blocks and updates them whole, by Newton–Schulz iterations; other weights are Adam's. With `zero`
    each of them belongs to one rank. `none` leaves the update out."""
    moments: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Data type of the optimizer's moments (Megatron's exp_avg_dtype and exp_avg_sq_dtype; DeepSeek-V3 keeps them in bf16)."""
    main_params: Literal["fp32", "bf16", "fp16"] | None = None
    """Data type of the weights that the optimizer updates (Megatron's main_params_dtype); in 16 bits they are those of the model.
    Default: fp32, and with `zero: 3` that of the moments, which PyTorch's optimizers make like the weights."""
    lora: Lora | None = None
    """Only low-rank adapters are trained and all other weights are frozen; default: all weights are trained."""
    offload: Offload = Offload()
    """What is on the hosts, not on the GPUs; default: nothing."""
    clip_gradients: bool = True
    """The gradient norm is taken over all ranks of a replica, and gradients are scaled."""
    framework: Name | None = None
    """Whose host launches the kernels, and what it keeps in memory beside the model: a file of `clustersim/frameworks/`; default:
    a host that is never late, and nothing."""
    cuda_graphs: Literal["none", "layer", "full"] = "none"
    """What the framework captures in CUDA graphs: each layer forward and backward (`layer`), or all passes of a step
    (`full`), whose kernels then never wait for the host."""
    check_nan: bool | None = None
    """The host reads the loss of each microbatch and the norm of each bucket of gradients, to see whether they are numbers
    (check_for_nan_in_loss_and_grad), and waits for its GPU there; default: as the framework does."""
    capacity_factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = None
    """Capacity of an expert, as a multiple of the mean number of rows; it drops those beyond (moe_expert_capacity_factor);
    default: none is dropped."""
    pad_to_capacity: bool = False
    """Every expert gets as many rows as its capacity, empty ones too (moe_pad_expert_input_to_capacity)."""
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """How many times the mean of rows the busiest rank of an expert-parallel group receives, from 1 (balanced) to ep (all of
    them). The ranks' shares follow Zipf's law, and a rank spreads its own over its experts."""
    dispatch: Literal["fp8"] | None = None
    """The data type in which rows travel out to experts, and gradients back to them: fp8 with a scale for each 128 values
    (DeepSeek-V3, section 3.3.3); default: that of activations."""


class Overlap(Spec):
    """What communication runs beside computation (Megatron's --overlap-grad-reduce, …)."""

    grad_reduce: bool = False
    """Gradients are reduced in buckets during the last backward pass."""
    param_gather: bool = False
    """Parameters of the distributed optimizer are gathered during the first forward passes."""
    p2p: bool = False
    """A stage goes on while its activations travel."""
    tp: Literal["none", "bulk", "ring", "async"] = "none"
    """Which tensor-parallel communication runs beside products. `bulk`: in the backward pass of a column-parallel linear, the
    gather of its input under the gradient of the input and the reduction of that under the gradient of the weights (Megatron
    since 2021). `ring`: those, and gathers and reductions in chunks under the chunks of the product that they feed or that feeds
    them (Transformer Engine's userbuffers; needs sequence_parallel). `async`: gathers and reductions in as many chunks as
    ranks, by copy engines; the gathered input is kept for the weights' gradient (PyTorch's async TP; needs sequence_parallel)."""
    ep: Literal["none", "shared", "microbatch"] = "none"
    """What runs beside the exchanges of rows between expert-parallel ranks. `shared`: the experts that every token visits, their
    first linear under the way out and the second under the way back (Megatron's moe_shared_expert_overlap). `microbatch`: a
    backward pass and the forward pass behind it take turns from exchange to exchange: what one exchanges moves while the other
    computes (Megatron's overlap_moe_expert_parallel_comm; needs schedule interleaved or dualpipe, or pp 1)."""
    sms: Literal["nccl"] | Index = 0
    """SMs that gradients, parameters, messages and rows of experts take on their way from the passes beside, as long as both run.
    `nccl`: one for each channel that NCCL has for them, such as 24 in a node of A100 or H100 and 1 to 4 for a message between
    nodes."""
    memory: Literal["nccl"] | Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """The share of the memory's bandwidth that the same take from kernels which it bounds (norms, activations, additions).
    `nccl`: what NCCL's Simple protocol moves, three bytes for each that a GPU receives."""


class Fsdp(Spec):
    """How parameters that `zero: 3` shards are gathered, and their gradients reduced, block by block. The defaults are those of
    PyTorch's FSDP2; `clustersim/frameworks/` has those of others, which `validate` takes."""

    shard: Annotated[int, Field(ge=2)] | None = None
    """Ranks among which one copy of the parameters is spread, neighbours of the dp group (hybrid sharding); the copies then
    all-reduce their gradients. Default: all of them."""
    reshard_after_forward: bool | None = None
    """The parameters of a block are freed after its forward pass, and gathered again for its backward pass. If not, they stay
    from the forward pass to the backward pass of a microbatch, and with a pipeline from the first to the last of a step.
    Default: true without a pipeline, false with one, as in torchtitan, and where passes are paired."""
    forward_prefetch: Index = 2
    """Blocks ahead that parameters are gathered in a forward pass: 2 in FSDP2, 1 under FSDP1's rate limiter, 0: none."""
    backward_prefetch: Index = 1
    """The same in a backward pass. FSDP1's BACKWARD_PRE and BACKWARD_POST are both 1: on one stream, each gather stands behind
    the reduction before it."""
    reduce_in_flight: Index = 1
    """Reductions that may be under way: before the next one the compute stream waits for the older ones. 0: any number, as in
    FSDP1."""
    no_sync: bool | None = None
    """Gradients are added up on each rank and reduced in the last backward pass only. Default: false without a pipeline, true
    with one, as in PyTorch's pipelines."""
    copy_out: bool = True
    """Gathered parameters are copied out of the collective's buffer, on the compute stream (FSDP2)."""
    copy_in: bool = True
    """Gradients are copied into the collective's buffer, in the type in which they are reduced, on the compute stream."""


WeightCount = Annotated[int, Field(ge=0, le=10**15)]


class DeepSpeed(Spec):
    """How DeepSpeed's ZeRO-3 gathers parameters and reduces gradients: module by module, by buckets. Names and defaults are those
    of its `zero_optimization`, where most begin with `stage3_`; numbers are parameters."""

    prefetch_bucket_size: WeightCount = 50_000_000
    """Parameters that are gathered ahead each time a module runs, and the rest of their module."""
    param_persistence_threshold: WeightCount = 100_000
    """Weights with at most this number of elements stay on every rank, such as norms."""
    max_live_parameters: WeightCount = 1_000_000_000
    """More than these are not gathered ahead."""
    max_reuse_distance: WeightCount = 1_000_000_000
    """Parameters of a module stay gathered if the modules that run before its next use have fewer parameters than this."""
    reduce_bucket_size: WeightCount = 500_000_000
    """Elements of a bucket of gradients: a full bucket is reduced at once, the last one behind the backward pass."""


class Algorithms(Spec):
    """The collective algorithm of each group: `nccl`, or a file of `clustersim/collectives/algorithms/`."""

    tp: Name = "nccl"
    """Tensor-parallel groups."""
    ep: Name = "nccl"
    """Expert-parallel groups. `deepep`: a token crosses to a node once, however many of its experts are there; `hybridep`: so
    too, but between nodes first, inside of them then."""
    dp: Name = "nccl"
    """Groups that reduce gradients, of experts too."""
    cp: Name = "nccl"
    """Context-parallel groups; a ring exchange is messages, whatever stands here."""
    embedding: Name = "nccl"
    """First and last stage, which share a tied embedding."""
    model: Name = "nccl"
    """All ranks of a replica (with all experts), which share the gradient norm."""


class Parallelism(Spec):
    """How the model is split."""

    tp: Count = 1
    """Tensor-parallel degree."""
    pp: Count = 1
    """Pipeline stages."""
    dp: Count | Literal["auto"] = "auto"
    """Replicas; `auto` is the largest degree that the cluster holds and the batch allows."""
    cp: Count = 1
    """Context-parallel degree: ranks among which each sequence is cut. They hold the same parameters; gradients are reduced over
    dp times cp."""
    cp_type: Literal["all_gather", "p2p", "a2a", "a2a+p2p"] = "p2p"
    """How attention sees the whole sequence (Megatron's cp_comm_type): keys and values are gathered (`all_gather`, Llama 3), go
    around a ring (`p2p`), or heads are exchanged for tokens (`a2a`, Ulysses); `a2a+p2p` exchanges among neighbours, with rings of
    those."""
    cp_inner: Count | None = None
    """Ranks of each exchange of `a2a+p2p`: the first of Megatron's hierarchical_context_parallel_sizes."""
    ep: Count = 1
    """Over how many of the dp replicas the experts are spread, each of which holds experts / ep of them. Tokens travel to
    their experts and back (Megatron's expert_model_parallel_size and its all-to-all dispatcher)."""
    expert_tp: Count | None = None
    """Slices of an expert; default: tp (Megatron's expert_tensor_parallel_size). ep times expert_tp divides tp times dp."""
    vpp: Count = 1
    """Model chunks a pipeline rank (interleaved schedules)."""
    account_for_embedding: bool = False
    """The embedding counts as a layer of the first stage when layers are divided."""
    account_for_loss: bool = False
    """The loss counts as a layer of the last stage when layers are divided."""
    first_layers: Count | None = None
    """Blocks of the first pipeline rank (decoder_first_pipeline_num_layers); default: as many as the others."""
    last_layers: Count | None = None
    """Blocks of the last pipeline rank."""
    partition: Literal["layers", "compute"] = "layers"
    """How stages share the blocks where no key above fixes it: as many each (`layers`), or as much arithmetic each, that of the
    logits counted in (`compute`, as nanotron does)."""
    layout: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """What each stage has, as Megatron's pipeline_model_parallel_layout says it: `E` embedding, `t` block, `m` MTP,
    `L` loss ([how](models.md#which-stage-has-which-layers))."""
    schedule: Name = "1f1b"
    """The order of passes: a file of `clustersim/schedules/kinds/`. `interleaved/5` runs groups of five microbatches on one chunk
    before the next (Megatron's microbatch_group_size_per_vp_stage, by default pp)."""
    sequence_parallel: bool = False
    """Norms, dropout and residuals are split over tp along the sequence."""
    keep_gathered: bool = False
    """With sequence_parallel: linears keep their input as it was gathered (PyTorch's DTensor), else their part of it, which is
    gathered again for the gradient of the weights (Megatron's)."""
    scatter_gather: bool = False
    """Without sequence_parallel, each tp rank sends its part of a message to the next stage, which gathers it (Megatron-LM's
    scatter_gather_tensors_in_pipeline until 2022, DeepSpeed's partitioned pipelines)."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """0; 1 for the distributed optimizer; 2 also frees the gradients of a stage, all but its share, once its last backward
    pass has reduced them (with overlap.grad_reduce), which helps where the passes of a stage follow each other; 3 shards
    parameters too (FSDP)."""
    reduce_every_microbatch: bool = False
    """Gradients are reduced after the backward pass of every microbatch, under it with overlap.grad_reduce, as DeepSpeed's ZeRO-2
    does; each pass waits for its own. Without a pipeline."""
    optimizer_instances: Count = 1
    """Copies of what `zero` shards (num_distributed_optimizer_instances): neighbours of the dp group share one, and each
    all-reduces its shard of the gradients with its likes of the other copies."""
    fsdp: Fsdp = Fsdp()
    """How `zero: 3` gathers parameters and reduces gradients."""
    zero3: DeepSpeed | None = None
    """As DeepSpeed does it, in the place of fsdp: `{}` for its defaults; without a pipeline."""
    bucket: Count | None = None
    """Parameters a gradient bucket; default: 40 million or 1 million times dp, whichever is more, as in Megatron."""
    overlap: Overlap = Overlap()
    """What runs beside computation."""
    algorithms: Algorithms = Algorithms()
    """How each group communicates."""
    tp_across_nodes: bool = False
    """A tensor-parallel group may span nodes."""
    shard_all_parameters: bool = False
    """tp divides norms, biases and position embeddings too, as NeuSight counts them; Megatron, and the default, replicate
    these."""

    @property
    def lanes(self) -> int:
        """GPUs of a replica."""
        return self.tp * self.cp * self.pp

    @property
    def reshard_after_forward(self) -> bool:
        """Whether sharded parameters are freed after a forward pass and gathered again for the backward pass."""
        return not self.pipelined if self.fsdp.reshard_after_forward is None else self.fsdp.reshard_after_forward

    @property
    def no_sync(self) -> bool:
        """Whether gradients of sharded parameters are added up over microbatches before they are reduced."""
        return self.pipelined if self.fsdp.no_sync is None else self.fsdp.no_sync

    @property
    def pipelined(self) -> bool:
        """Whether passes are scheduled over stages, or two by two on one."""
        return self.pp > 1 or self.schedule in ("dualpipe", "dualpipev")

    @property
    def uncut(self) -> Self:
        """The same without stages, but with gradients added up or not as with them: that is all of the cut that layers see."""
        whole = {"pp": 1, "vpp": 1, "layout": None, "first_layers": None, "last_layers": None}
        adds = {"fsdp": self.fsdp.model_copy(update={"no_sync": self.no_sync})} if self.zero == 3 else {}
        return self.model_copy(update=whole | adds)

    @property
    def etp(self) -> int:
        """Slices of an expert."""
        return self.expert_tp or self.tp

    @property
    def spread(self) -> bool:
        """Whether experts lie on the ranks in another way than the rest of the model, so that rows travel to them."""
        return self.ep > 1 or self.etp != self.tp


class Workload(Spec):
    """A whole workload file."""

    name: Name
    """Of the job."""
    model: Model
    """What is trained."""
    training: Training
    """How."""
    parallelism: Parallelism = Parallelism()
    """On how many ranks of which kind."""
    predictor: Name = "neusight"
    """What forecasts kernels: a file of `clustersim/predictors/kinds/`."""
    clocks: Literal["sustained", "boost"] | Fraction = "sustained"
    """`sustained` is what the GPU's power holds in a step of seconds, `boost` the speed of a short burst, and a number the
    share of it that matrix products keep ([how](predictors.md#clocks))."""
