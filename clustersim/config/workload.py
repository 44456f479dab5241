"""The specification of a workload: a model, its training, and its division over the GPUs."""

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
    """Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434), with Megatron's names."""

    q_lora_rank: Count | None = None
    """Width of the latent of queries; default: no latent (DeepSeek-V2-Lite)."""
    kv_lora_rank: Count
    """Width of the shared latent of keys and values."""
    qk_head_dim: Count
    """Width of a head's queries and keys without the rotary part."""
    qk_pos_emb_head_dim: Count
    """Width of the rotary part; heads share that of the keys."""
    v_head_dim: Count
    """Width of a head's values."""


AttentionKernel = Literal["flash", "flash1", "triton", "flash2", "flash3", "flash4", "cudnn", "cudnn_fp8", "unfused"]
Mixer = Literal["attention", "mamba2", "attention+mamba2", "delta", "conv", "none"]


class StateSpace(Spec):
    """A Mamba-2 layer, computed in chunks (Dao and Gu 2024, arXiv 2405.21060)."""

    heads: Count
    """Number of heads."""
    head_dim: Count
    """Width of one head."""
    state: Count
    """Width of the state per channel."""
    groups: Count = 1
    """Number of head groups that share the matrices B and C."""
    conv: Count = 4
    """Width of the causal convolution."""
    chunk: Count = 256
    """Tokens per chunk of the scan."""


class DeltaNet(Spec):
    """A gated delta net (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next and Kimi Linear."""

    heads: Count
    """Number of value heads."""
    key_heads: Count | None = None
    """Number of query and key heads; default: `heads`."""
    key_dim: Count
    """Width of a query or key head."""
    value_dim: Count
    """Width of a value head."""
    conv: Count = 4
    """Width of the causal convolution."""
    chunk: Count = 64
    """Tokens per chunk of the scan."""
    channel_gates: bool = False
    """One decay per channel, and gates from low-rank linears (Kimi Delta Attention, arXiv 2510.26692)."""


class Indexer(Spec):
    """Scores that select the keys of each query: sparse attention of DeepSeek-V3.2."""

    heads: Count
    """Number of indexer heads."""
    dim: Count
    """Width of an indexer head."""


class Block(Spec):
    """Differences of one kind of block from `model`."""

    count: Count = 1
    """Number of such blocks in a row."""
    mixer: Mixer | None = None
    """As in `model`."""
    feed_forward: bool | None = None
    """As in `model`."""
    heads: Count | None = None
    """As in `model`."""
    kv_heads: Count | None = None
    """As in `model`."""
    head_dim: Count | None = None
    """As in `model`."""
    window: Index | None = None
    """As in `model`."""
    positions: Positions | None = None
    """As in `model`."""
    ffn: Count | None = None
    """As in `model`."""
    experts: Index | None = None
    """As in `model`; 0: one MLP."""
    topk: Count | None = None
    """As in `model`."""
    shared_experts: Index | None = None
    """As in `model`."""


class Model(Spec):
    """A transformer by its shapes. [Megatron's names](#megatrons-names) are accepted too."""

    layers: Annotated[int, Field(ge=1, le=10_000)]
    """Number of blocks (of a T5: in the decoder)."""
    blocks: Annotated[tuple[Block, ...], Field(strict=False)] = ()
    """Kinds of blocks, repeated until all layers are covered: `[{window: 128}, {}]` gives every other layer a window.
    Default: equal blocks."""
    hidden: Annotated[int, Field(ge=1, le=1_000_000)]
    """Width of the activations between blocks."""
    heads: Count
    """Attention heads."""
    vocab: Count
    """Vocabulary before padding."""
    ffn: Count | None = None
    """Width of the MLP, or of one expert; default 4·hidden."""
    kv_heads: Count | None = None
    """Key and value heads (GQA); default: heads."""
    head_dim: Count | None = None
    """Width of a head; default hidden / heads."""
    mla: LatentAttention | None = None
    """Multi-head latent attention; replaces kv_heads and head_dim."""
    mixer: Mixer = "attention"
    """Token mixing of a block: attention, Mamba-2, both in parallel, gated delta net, short convolution, or none."""
    mamba: StateSpace | None = None
    """Shapes of `mixer: mamba2`."""
    delta: DeltaNet | None = None
    """Shapes of `mixer: delta`."""
    conv: Count | None = None
    """Width of the convolution of `mixer: conv` (LFM2)."""
    feed_forward: bool = True
    """An MLP or experts follow the mixer."""
    output_gate: bool = False
    """A gate multiplies attention's output (Qwen3-Next)."""
    window: Index = 0
    """Most keys that a query attends to: the last ones (sliding window), or with `indexer` the best; 0: all."""
    indexer: Indexer | None = None
    """Sparse attention: scores of all keys, of which `window` are used."""
    qk_norm: bool = False
    """Queries and keys are normalized per head (Qwen3)."""
    max_positions: Count | None = None
    """Rows of the learned position table; default: seq."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of normalization."""
    norm_position: Literal["pre", "post", "both"] = "pre"
    """Norms before (`pre`) or after (`post`) each half of a block, or `both` (Grok-1)."""
    activation: Literal["gelu", "gelu_new", "relu", "squared_relu", "swiglu", "geglu"] = "gelu"
    """Activation of the MLP; `gelu_new` is GPT-2's tanh form; `swiglu` and `geglu` are gated."""
    activation_clamp: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Limit on both inputs of a gated expert activation (GPT-OSS: 7); default: none."""
    positions: Positions = "learned"
    """Position encoding."""
    bias: bool = True
    """Linear layers have biases."""
    qkv_bias: bool | None = None
    """Queries, keys and values have biases; default: `bias`."""
    tied_embeddings: bool = True
    """The output layer shares the embedding's weights."""
    head_transform: bool = False
    """The output head starts with a linear layer, activation and norm (BERT)."""
    vocab_multiple: Count = 128
    """The vocabulary is padded to a multiple of this times tp (make_vocab_size_divisible_by)."""
    causal: bool = True
    """Causal attention; false for encoders (BERT)."""
    dropout: bool = False
    """Dropout kernels run."""
    experts: Count | None = None
    """Number of experts; default: none."""
    topk: Count = 1
    """Experts per token."""
    router_groups: Count = 1
    """Groups of experts from which the router chooses first (moe_router_num_groups; n_group of a config.json)."""
    router_group_topk: Count | None = None
    """Groups per token (moe_router_group_topk, topk_group); default: all. Sets the network traffic of `deepep` and
    `hybridep`."""
    shared_experts: Index = 0
    """Number of experts that all tokens visit."""
    shared_ffn: Count | None = None
    """Width of a shared expert; default: ffn."""
    dense_layers: Index = 0
    """Number of first layers with an MLP instead of experts (DeepSeek)."""
    dense_ffn: Count | None = None
    """Width of that MLP; default: ffn."""
    encoder_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Blocks of an encoder before the decoder (T5)."""
    mtp_layers: Annotated[int, Field(ge=0, le=100)] = 0
    """Additional predicted tokens, each by one more block (multi-token prediction, DeepSeek-V3)."""


class Documents(Spec):
    """Lengths of documents. A token attends only to its own document."""

    mean: Count
    """Mean tokens per document."""
    max: Count | None = None
    """Longest document; default: seq."""
    spread: Annotated[float, Field(ge=0, le=100, strict=False)] = 1.0
    """Coefficient of variation of the lengths; 1: exponential, 0: equal lengths."""


class Offload(Spec):
    """Data kept in host memory, reached over PCIe or NVLink-C2C at the rates of the node's `host`."""

    optimizer_states: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Share of the optimizer state on the host, updated by its CPUs (optimizer_offload_fraction; DeepSpeed's
    offload_optimizer). With `zero: 2` or 3 gradients go there as they are reduced."""
    parameters: bool = False
    """Parameter shards too, copied before each gather (offload_param, CPUOffloadPolicy); needs zero: 3 and
    optimizer_states: 1."""
    activations: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Share of the saved activations that is copied to the host during the next block (cpu_offloading,
    fine_grained_activation_offloading)."""
    overlap: bool = False
    """Copies and CPU updates of different blocks overlap (overlap_cpu_optimizer_d2h_h2d)."""
    update: Literal["fused", "eager"] = "fused"
    """Optimizer on the CPU: one fused pass (DeepSpeed's CPUAdam), or PyTorch's separate operations."""
    threads: Count | None = None
    """CPU threads per rank (torchrun's default: 1). Default: the rank's share of the cores."""


AttentionTarget = Literal["linear_qkv", "linear_q", "linear_k", "linear_v", "linear_proj"]
MlpTarget = Literal["linear_fc1", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"]


class Lora(Spec):
    """Low-rank adapters with frozen weights (LoRA, arXiv 2106.09685): y = W·x + alpha/rank · B·A·x. Targets have the names
    of Megatron-Bridge."""

    rank: Count
    """Width between A and B (Megatron-Bridge's dim, PEFT's r)."""
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=False)] | None = None
    """Scale of an adapter's output, times rank; no effect on time. Default: rank."""
    dropout: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    """Dropout probability of an adapter's input; 0: no kernels."""
    targets: Annotated[tuple[Literal[AttentionTarget, MlpTarget], ...], Field(strict=False, min_length=1)] = (
        *("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    )
    """Linears with an adapter. `linear_qkv` and `linear_fc1` have one for all outputs; `linear_q`, … one each (PEFT's
    q_proj, …)."""
    base: Literal["fp8", "mxfp8", "nvfp4", "nf4", "int8"] | None = None
    """Format of frozen linears in memory: that of `precision`, `nf4` (4.127 bits per weight, unpacked before each GEMM), or
    `int8` (bitsandbytes' load_in_8bit). Default: the type of activations."""
    a2a: bool = False
    """With sequence_parallel: outputs of row-parallel adapters use an all-to-all, not a gather (a2a_experimental)."""


class Training(Spec):
    """How the model is trained."""

    global_batch: Count
    """Sequences per step."""
    micro_batch: Count = 1
    """Sequences per microbatch and replica."""
    seq: Count
    """Tokens per sequence (of a T5: in the decoder)."""
    encoder_seq: Count | None = None
    """Tokens per encoder sequence; default: seq."""
    packed: Documents | None = None
    """Sequences consist of documents with separate attention (reset_attention_mask, packed fine-tuning). Default: one
    document."""
    padded: Documents | None = None
    """Each sequence is one document, padded to the longest of its microbatch. Padding takes time but does not count as
    tokens. Default: full sequences."""
    precision: Precision = "bf16"
    """Data type of GEMMs; a missing 16-bit type runs in the next wider one. See [narrow formats](models.md#narrow-formats)
    for the others."""
    fp8_scaling: Literal["delayed", "current", "block", "row"] = "delayed"
    """Scales of `fp8`: per tensor from earlier steps (`delayed`) or from the tensor (`current`), per 128 values (`block`),
    or per row (`row`)."""
    bf16_first_layers: Index = 0
    """First layers whose GEMMs stay in bf16 under a narrower `precision` (first_last_layers_bf16)."""
    bf16_last_layers: Index = 0
    """Last layers whose GEMMs stay in bf16."""
    attention: AttentionKernel = "flash"
    """`flash`: the newest fused kernel for the GPU; [others](predictors.md#flash-attention) at their published speed
    relative to it (`cudnn_fp8`: fp8_dpa). `unfused`: separate GEMMs and softmax."""
    kernels: Literal["fused", "eager"] = "fused"
    """`fused`: bias, activation, dropout and residual in Megatron's fused kernels. `eager`: a kernel per element-wise
    operation."""
    fp8_activation_input: bool = False
    """Fused activations save their input in fp8 (activation_func_fp8_input_store)."""
    norm_kernels: Literal["fused", "torch", "upcast", "eager"] | None = None
    """Norms: `fused` (Transformer Engine), `torch` (PyTorch or compiled), `upcast` (cast to fp32 and recomputed:
    InternEvo), `eager` (separate operations: Hugging Face). Default: `kernels`."""
    fused_accumulation: bool = True
    """With `kernels: fused`: weight-gradient GEMMs accumulate into the main gradients; otherwise a separate kernel adds."""
    fused_experts: bool = False
    """Expert GEMMs include casts, biases and activation (Transformer Engine's op fuser)."""
    fused_projections: bool = True
    """One GEMM for queries, keys and values, and one for a gate and its input."""
    rope_kernels: Literal["fused", "eager"] | None = None
    """Rotary positions in one kernel or as separate operations; default: `kernels`."""
    permute_kernels: Literal["fused", "eager", "weighed"] | None = None
    """Return of experts' rows to their tokens: in one kernel (`fused`: Transformer Engine), by atomic additions (`eager`:
    PyTorch), or by atomic additions after a kernel that applies the router's weights (`weighed`: Megatron-Core up to 0.12;
    also `eager` if `kernels` are eager). Default: `kernels`."""
    cross_entropy: Literal["parallel", "native", "fused", "metered", "eager"] | None = None
    """Loss: `parallel` over vocabulary shards (Megatron), `native` the same compiled, `fused` in place of the logits
    (Transformer Engine), `metered` with PyTorch's metrics (Composer), or `eager`. Default: `parallel`, with eager kernels
    `eager`."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations recomputed in the backward pass: of whole blocks (`full`) or of modules (`selective`); [all
    forms](models.md#recomputation)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], Field(strict=False)] = ()
    """Modules of `selective`, by Megatron's names; default: core_attn."""
    recompute_method: Literal["uniform", "block"] = "uniform"
    """`full` recomputes all blocks (`uniform`), or the first recompute_layers of each stage (`block`)."""
    recompute_layers: Count | None = None
    """With `block`: number of recomputed layers (default: all). With `uniform`: layers between two saved inputs (default:
    1)."""
    recompute_saves: Annotated[tuple[Saved, ...], Field(strict=False)] = ()
    """Outputs that `full` saves, or a policy of MaxText or torchtitan (`op`). Default: none."""
    recompute_every: Count | None = None
    """Recompute only each n-th block of a stage (selective_ac_option); default: each."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type in which gradients are accumulated and reduced."""
    optimizer: Literal["adam", "adam8bit", "adafactor", "muon", "lion", "lion8bit", "sgd", "none"] = "adam"
    """`adam8bit`, `lion8bit`: moments in one byte. `adafactor`: row and column means. `muon`: Newton–Schulz on matrices inside
    blocks, Adam elsewhere. `none`: no update."""
    optimizer_kernels: Literal["fused", "foreach", "loop", "composer"] = "fused"
    """Kernels of an `adam` update: one (`fused`: Apex, Transformer Engine), eight (PyTorch) for all tensors (`foreach`, its
    default on GPUs) or for each (`loop`), or nine for each (`composer`)."""
    moments: Literal["fp32", "bf16", "fp16", "fp8"] = "fp32"
    """Data type of the optimizer's moments (exp_avg_dtype)."""
    main_params: Literal["fp32", "bf16", "fp16"] | None = None
    """Data type of the updated weights (main_params_dtype). Default: fp32, with `zero: 3` that of the moments."""
    lora: Lora | None = None
    """Trains low-rank adapters only; default: all weights."""
    offload: Offload = Offload()
    """Data kept on hosts; default: none."""
    clip_gradients: bool = True
    """Gradients are scaled by their norm over all ranks of a replica."""
    framework: Name | None = None
    """File of `clustersim/frameworks/` with host launch times and extra memory. Default: neither."""
    cuda_graphs: Literal["none", "layer", "full"] = "none"
    """CUDA graphs per layer and pass (`layer`), or of all passes of a step (`full`)."""
    check_nan: bool | None = None
    """The host waits for losses and norms to check them (check_for_nan_in_loss_and_grad). Default: the framework's."""
    capacity_factor: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = None
    """Capacity of an expert over its mean rows; excess rows are dropped (moe_expert_capacity_factor). Default: none
    dropped."""
    pad_to_capacity: bool = False
    """Experts are padded to their capacity (moe_pad_expert_input_to_capacity)."""
    expert_imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Rows of the busiest expert-parallel rank over the mean: 1 to ep. Shares follow Zipf's law."""
    dispatch: Literal["fp8"] | None = None
    """Data type of rows sent to experts: fp8 with a scale per 128 values. Default: that of activations."""

    @property
    def permutation(self) -> str:
        """Kernels that return the rows of experts to their tokens: `permute_kernels`, or `kernels`."""
        return self.permute_kernels or self.kernels


class Overlap(Spec):
    """Communication that overlaps with computation."""

    grad_reduce: bool = False
    """Gradients are reduced in buckets during the last backward pass."""
    param_gather: bool = False
    """Parameters of the distributed optimizer are gathered during the first forward passes."""
    p2p: bool = False
    """A stage continues while its activations are sent."""
    tp: Literal["none", "bulk", "ring", "async"] = "none"
    """Tensor-parallel collectives that run under GEMMs: `bulk` (Megatron), `ring` (Transformer Engine) or `async`
    (PyTorch); the last two need sequence_parallel ([details](explanation.md#gemms-and-communication))."""
    ep: Literal["none", "shared", "microbatch"] = "none"
    """During exchanges of experts run `shared` experts (moe_shared_expert_overlap), or a forward and a backward pass
    alternate (`microbatch`: overlap_moe_expert_parallel_comm; needs interleaved, dualpipe or pp 1)."""
    sms: Literal["nccl"] | Index = 0
    """SMs that data-, pipeline- and expert-parallel communication takes from concurrent passes. `nccl`: one per NCCL
    channel."""
    memory: Literal["nccl"] | Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Share of memory bandwidth that the same communication takes. `nccl`: three bytes per byte received (NCCL's Simple
    protocol)."""


class Fsdp(Spec):
    """How `zero: 3` gathers parameters and reduces gradients, block by block. Defaults are PyTorch's FSDP2."""

    shard: Annotated[int, Field(ge=2)] | None = None
    """Neighbouring dp ranks that share one copy of the parameters (hybrid sharding). Default: all ranks."""
    reshard_after_forward: bool | None = None
    """Parameters are freed after the forward pass and gathered again. Default: true without a pipeline and with paired
    passes, false with a pipeline."""
    forward_prefetch: Index = 2
    """Blocks gathered ahead in the forward pass: 2 in FSDP2, 1 with FSDP1's rate limiter."""
    backward_prefetch: Index = 1
    """Blocks gathered ahead in the backward pass."""
    reduce_in_flight: Index = 1
    """Reductions in flight before the compute stream waits; 0: any number (FSDP1)."""
    no_sync: bool | None = None
    """Gradients are reduced only in the last backward pass. Default: false without a pipeline, true with one."""
    copy_out: bool = True
    """Gathered parameters are copied out of the buffer on the compute stream (FSDP2)."""
    copy_in: bool = True
    """Gradients are copied into the buffer on the compute stream."""


WeightCount = Annotated[int, Field(ge=0, le=10**15)]


class DeepSpeed(Spec):
    """How DeepSpeed's ZeRO-3 gathers parameters and reduces gradients. Names (mostly with `stage3_`) and defaults of its
    `zero_optimization`, in parameters."""

    prefetch_bucket_size: WeightCount = 50_000_000
    """Parameters gathered ahead when a module runs."""
    param_persistence_threshold: WeightCount = 100_000
    """Weights up to this size stay on every rank."""
    max_live_parameters: WeightCount = 1_000_000_000
    """No gathers ahead beyond this number of gathered parameters."""
    max_reuse_distance: WeightCount = 1_000_000_000
    """A module stays gathered if fewer parameters than this run before its next use."""
    reduce_bucket_size: WeightCount = 500_000_000
    """Gradient elements per bucket; a full bucket is reduced at once."""


class Algorithms(Spec):
    """Collective algorithm of each group: `nccl`, or a file of `clustersim/collectives/algorithms/`."""

    tp: Name = "nccl"
    """Tensor-parallel groups."""
    ep: Name = "nccl"
    """Expert-parallel groups. `deepep` sends a token once to each node; `hybridep` too, between nodes first."""
    dp: Name = "nccl"
    """Groups that reduce gradients."""
    cp: Name = "nccl"
    """Context-parallel groups; rings are messages."""
    embedding: Name = "nccl"
    """First and last stage with a tied embedding."""
    model: Name = "nccl"
    """All ranks of a replica, for the gradient norm."""


class Parallelism(Spec):
    """Division of the job over the GPUs."""

    tp: Count = 1
    """Tensor-parallel degree."""
    pp: Count = 1
    """Pipeline-parallel degree."""
    dp: Count | Literal["auto"] = "auto"
    """Replicas; `auto`: the most that the cluster and the batch allow."""
    cp: Count = 1
    """Context-parallel degree: ranks that share each sequence. Gradients are reduced over dp × cp."""
    cp_type: Literal["all_gather", "p2p", "a2a", "a2a+p2p"] = "p2p"
    """Exchange for attention (cp_comm_type): gather of keys and values, ring (`p2p`), heads for tokens (`a2a`, Ulysses), or
    `a2a` among neighbours with rings between them."""
    cp_inner: Count | None = None
    """Ranks per exchange of `a2a+p2p` (first of hierarchical_context_parallel_sizes)."""
    ep: Count = 1
    """Expert-parallel degree: number of replicas among which experts are divided (expert_model_parallel_size)."""
    expert_tp: Count | None = None
    """Slices per expert; default: tp (expert_tensor_parallel_size). ep × expert_tp divides tp × dp."""
    vpp: Count = 1
    """Model chunks per pipeline rank (interleaved schedules)."""
    account_for_embedding: bool = False
    """The embedding counts as a layer of the first stage when layers are divided."""
    account_for_loss: bool = False
    """The loss counts as a layer of the last stage when layers are divided."""
    first_layers: Count | None = None
    """Blocks of the first pipeline rank (decoder_first_pipeline_num_layers)."""
    last_layers: Count | None = None
    """Blocks of the last pipeline rank."""
    partition: Literal["layers", "compute"] = "layers"
    """Stages get equally many blocks (`layers`) or equal FLOP with the logits (`compute`, nanotron)."""
    layout: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    """Content of each stage, as Megatron's pipeline_model_parallel_layout: `E` embedding, `t` block, `m` MTP, `L` loss
    ([how](models.md#which-stage-has-which-layers))."""
    schedule: Name = "1f1b"
    """Order of passes: a file of `clustersim/schedules/kinds/`. `interleaved/5` runs groups of five microbatches per chunk
    (microbatch_group_size_per_vp_stage; default pp)."""
    sequence_parallel: bool = False
    """Norms, dropout and residuals are split over tp along the sequence."""
    keep_gathered: bool = False
    """With sequence_parallel: linears save their gathered input (PyTorch's DTensor); otherwise it is gathered again
    (Megatron)."""
    scatter_gather: bool = False
    """Without sequence_parallel: each tp rank sends its part of a message, gathered by the next stage (Megatron-LM until
    2022, DeepSpeed)."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """1: optimizer state is sharded. 2: gradients too, freed after a stage's last backward pass. 3: parameters too
    (FSDP)."""
    reduce_every_microbatch: bool = False
    """Gradients are reduced after every microbatch, as in DeepSpeed's ZeRO-2. Without a pipeline."""
    optimizer_instances: Count = 1
    """Copies of the state that `zero` shards (num_distributed_optimizer_instances); copies all-reduce their gradients."""
    fsdp: Fsdp = Fsdp()
    """Gathers and reductions of `zero: 3`."""
    zero3: DeepSpeed | None = None
    """Gathers and reductions as DeepSpeed does them, instead of `fsdp`; `{}` for its defaults. Without a pipeline."""
    bucket: Annotated[int, Field(ge=1, le=10**15)] | None = None
    """Parameters per gradient bucket; default: the larger of 40 million and 1 million × dp (Megatron)."""
    overlap: Overlap = Overlap()
    """Communication that overlaps with computation."""
    algorithms: Algorithms = Algorithms()
    """Collective algorithms by group."""
    tp_across_nodes: bool = False
    """Tensor-parallel groups may span nodes."""
    shard_all_parameters: bool = False
    """tp also divides norms, biases and position embeddings, as NeuSight counts them."""

    @property
    def lanes(self) -> int:
        """GPUs per replica."""
        return self.tp * self.cp * self.pp

    @property
    def reshard_after_forward(self) -> bool:
        """Whether sharded parameters are freed after a forward pass and gathered again for the backward pass."""
        return not self.pipelined if self.fsdp.reshard_after_forward is None else self.fsdp.reshard_after_forward

    @property
    def no_sync(self) -> bool:
        """Whether gradients of sharded parameters are summed over microbatches before they are reduced."""
        return self.pipelined if self.fsdp.no_sync is None else self.fsdp.no_sync

    @property
    def pipelined(self) -> bool:
        """Whether passes are scheduled over stages, or paired on a single stage."""
        return self.pp > 1 or self.schedule in ("dualpipe", "dualpipev")

    @property
    def uncut(self) -> Self:
        """The same split without stages and replicas, gradients summed or not as before, on which alone layers depend."""
        changes = {"dp": 1, "pp": 1, "vpp": 1, "layout": None, "first_layers": None, "last_layers": None}
        summed = {"fsdp": self.fsdp.model_copy(update={"no_sync": self.no_sync})} if self.zero == 3 else {}
        return self.model_copy(update=changes | summed)

    @property
    def etp(self) -> int:
        """Slices per expert."""
        return self.expert_tp or self.tp

    @property
    def spread(self) -> bool:
        """Whether experts are divided over ranks differently from the rest of the model, so that rows are sent to them."""
        return self.ep > 1 or self.etp != self.tp


class Workload(Spec):
    """A whole workload file."""

    name: Name
    """Name of the job."""
    model: Model
    """Model to train."""
    training: Training
    """Batch, data types and kernels."""
    parallelism: Parallelism = Parallelism()
    """Division over the GPUs."""
    predictor: Name = "neusight"
    """Predictor of kernel times: a file of `clustersim/predictors/kinds/`."""
    clocks: Literal["sustained", "boost"] | Fraction = "sustained"
    """Speed of GEMMs: `sustained` by the GPU's power, a short burst's (`boost`), or a share of that
    ([how](predictors.md#clocks))."""
