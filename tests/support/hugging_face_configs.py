"""The keys of config.json files of published models, as their repositories have them, and how many parameters each has."""

LLAMA = {"hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "rms_norm_eps": 1e-05}
DEEPSEEK = {
    **LLAMA,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_layer_freq": 1,
    "max_position_embeddings": 163840,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def keys(layers, hidden, heads, kv_heads, ffn, vocab, positions, **more):
    return {
        **LLAMA,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **more,
    }


QWEN3 = {"head_dim": 128, "attention_bias": False, "use_sliding_window": False, "sliding_window": None}
LLAMA4 = {
    **keys(48, 5120, 40, 8, 8192, 202048, 262144),
    "model_type": "llama4_text",
    "head_dim": 128,
    "intermediate_size_mlp": 16384,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1, 1, 1, 0] * 12,
}
CONFIGS = {
    "llama3_8b": {"model_type": "llama", **keys(32, 4096, 32, 8, 14336, 128256, 8192, attention_bias=False)},
    "llama3_70b": {"model_type": "llama", **keys(80, 8192, 64, 8, 28672, 128256, 8192)},
    "mixtral_8x7b": {
        "model_type": "mixtral",
        **keys(32, 4096, 32, 8, 14336, 32000, 32768, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    },
    "mixtral_8x22b": {
        "model_type": "mixtral",
        **keys(56, 6144, 48, 8, 16384, 32768, 65536, num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    },
    "qwen2.5_7b": {
        "model_type": "qwen2",
        **keys(28, 3584, 28, 4, 18944, 152064, 131072),
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
    },
    "qwen2.5_72b": {"model_type": "qwen2", **keys(80, 8192, 64, 8, 29568, 152064, 131072)},
    "qwen3_8b": {"model_type": "qwen3", **keys(36, 4096, 32, 8, 12288, 151936, 40960), **QWEN3},
    "qwen3_32b": {"model_type": "qwen3", **keys(64, 5120, 64, 8, 25600, 151936, 40960), **QWEN3},
    "qwen3_30b_a3b": {
        "model_type": "qwen3_moe",
        **keys(48, 2048, 32, 4, 6144, 151936, 40960, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
        **QWEN3,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3_235b_a22b": {
        "model_type": "qwen3_moe",
        **keys(
            94, 4096, 64, 4, 12288, 151936, 40960, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536
        ),
        **QWEN3,
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **DEEPSEEK,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "first_k_dense_replace": 3,
        "vocab_size": 129280,
        "num_nextn_predict_layers": 1,
        "quantization_config": {"fmt": "e4m3", "weight_block_size": [128, 128]},
    },
    "kimi_k2": {
        "model_type": "kimi_k2",
        **DEEPSEEK,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "first_k_dense_replace": 1,
        "vocab_size": 163840,
        "num_nextn_predict_layers": 0,
    },
    "grok_1": {
        "model_type": "grok-1",
        **keys(64, 6144, 48, 8, 32768, 131072, 8192, num_experts=8, num_experts_per_tok=2, tie_word_embeddings=True),
        "hidden_act": "gelu",
    },
    "nemotron4_340b": {
        "model_type": "nemotron",
        **keys(96, 18432, 96, 8, 73728, 256000, 4096),
        "hidden_act": "relu2",
        "norm_eps": 1e-05,
    },
    "gpt_oss_20b": {
        "model_type": "gpt_oss",
        **keys(24, 2880, 64, 8, 2880, 201088, 131072, head_dim=64, num_local_experts=32, num_experts_per_tok=4),
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": [SLIDING, FULL] * 12,
    },
    "gpt_oss_120b": {
        "model_type": "gpt_oss",
        **keys(36, 2880, 64, 8, 2880, 201088, 131072, head_dim=64, num_local_experts=128, num_experts_per_tok=4),
        "attention_bias": True,
        "sliding_window": 128,
    },
    "llama4_scout": {
        "model_type": "llama4",
        "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34},
        "text_config": {**LLAMA4, "num_local_experts": 16, "interleave_moe_layer_step": 1},
    },
    "llama4_maverick": {
        "model_type": "llama4",
        "text_config": {**LLAMA4, "num_local_experts": 128, "interleave_moe_layer_step": 2},
    },
    "gpt2_large": {
        "model_type": "gpt2",
        "n_layer": 36,
        "n_embd": 1280,
        "n_head": 20,
        "n_positions": 1024,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "bert_large": {
        "model_type": "bert",
        "num_hidden_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "vocab_size": 30522,
        "hidden_act": "gelu",
        "type_vocab_size": 2,
    },
    "t5_large": {
        "model_type": "t5",
        "d_model": 1024,
        "d_kv": 64,
        "d_ff": 4096,
        "num_layers": 24,
        "num_heads": 16,
        "vocab_size": 32128,
        "n_positions": 512,
        "dropout_rate": 0.1,
        "relative_attention_num_buckets": 32,
    },
    "t5_11b": {
        "model_type": "t5",
        "d_model": 1024,
        "d_kv": 128,
        "d_ff": 65536,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "num_heads": 128,
        "vocab_size": 32128,
        "feed_forward_proj": "relu",
    },
    "opt_1.3b": {
        "model_type": "opt",
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
        "max_position_embeddings": 2048,
        "vocab_size": 50272,
        "word_embed_proj_dim": 2048,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "dropout": 0.1,
    },
}
"""By the name of the shipped workload of the same model."""
OTHERS = {
    # Mistral 7B v0.1: 7.24 billion (model card)
    "mistral": (7.24e9, {"model_type": "mistral", **keys(32, 4096, 32, 8, 14336, 32000, 32768, sliding_window=4096)}),
    # Qwen2-57B-A14B: 57.4 billion (model card)
    "qwen2_moe": (
        57.4e9,
        {
            "model_type": "qwen2_moe",
            **keys(28, 3584, 28, 4, 18944, 151936, 131072, num_experts=64, num_experts_per_tok=8),
            "moe_intermediate_size": 2560,
            "shared_expert_intermediate_size": 20480,
            "decoder_sparse_step": 1,
        },
    ),
    # DeepSeek-V2: 236 billion; V2-Lite: 15.7 billion (arXiv 2405.04434)
    "deepseek_v2": (
        236e9,
        {
            "model_type": "deepseek_v2",
            **DEEPSEEK,
            "hidden_size": 5120,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
    ),
    "deepseek_v2_lite": (
        15.7e9,
        {
            "model_type": "deepseek_v2",
            **DEEPSEEK,
            "q_lora_rank": None,
            "hidden_size": 2048,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
    ),
    # T5 v1.1 XXL: 11.1 billion with a head of its own (google/t5-v1_1-xxl, tensors)
    "t5_gated": (
        11.135e9,
        {
            "model_type": "t5",
            "d_model": 4096,
            "d_kv": 64,
            "d_ff": 10240,
            "num_layers": 24,
            "num_decoder_layers": 24,
            "num_heads": 64,
            "vocab_size": 32128,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    # Switch-Base with 8 experts: 0.619 billion (google/switch-base-8, tensors)
    "switch_base_8": (
        0.619e9,
        {
            "model_type": "switch_transformers",
            "d_model": 768,
            "d_kv": 64,
            "d_ff": 3072,
            "num_layers": 12,
            "num_decoder_layers": 12,
            "num_heads": 12,
            "num_experts": 8,
            "expert_capacity": 64,
            "encoder_sparse_step": 2,
            "decoder_sparse_step": 2,
            "vocab_size": 32128,
            "feed_forward_proj": "relu",
        },
    ),
    # GPT-NeoX-20B: 20.55 billion (Black et al. 2022, section 2)
    "gpt_neox": (
        20.55e9,
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 44,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "max_position_embeddings": 2048,
            "vocab_size": 50432,
            "hidden_act": "gelu_fast",
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
        },
    ),
}
"""Models that are not shipped: parameters and keys."""
