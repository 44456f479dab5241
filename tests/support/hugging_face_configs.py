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

GEMMA = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
GLM = {
    **keys(46, 4096, 96, 8, 10944, 151552, 131072, head_dim=128, attention_bias=True, use_qk_norm=False),
    "model_type": "glm4_moe",
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "n_group": 1,
    "topk_group": 1,
}
GEMMA3 = keys(62, 5376, 32, 16, 21504, 262208, 131072, head_dim=128, sliding_window=1024, **GEMMA)
OTHERS |= {
    # Gemma 7B: 8.54 billion (google/gemma-7b, tensors)
    "gemma": (8.538e9, {"model_type": "gemma", **keys(28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256, **GEMMA)}),
    # Gemma 2 27B: 27.2 billion (arXiv 2408.00118, table 2)
    "gemma2": (
        27.23e9,
        {"model_type": "gemma2", **keys(46, 4608, 32, 16, 36864, 256000, 8192, head_dim=128, **GEMMA)},
    ),
    # Gemma 3 27B: 1.416 + 25.6 billion without the vision encoder (arXiv 2503.19786, table 1)
    "gemma3": (27.016e9, {"model_type": "gemma3", "text_config": GEMMA3, "vision_config": {"hidden_size": 1152}}),
    "gemma3_text": (27.016e9, {"model_type": "gemma3_text", **GEMMA3}),
    # GLM-4-9B-0414 and glm-4-9b-hf: 9.40 billion (zai-org, tensors)
    "glm4": (9.40e9, {"model_type": "glm4", **keys(40, 4096, 32, 2, 13696, 151552, 32768, attention_bias=True)}),
    "glm": (9.40e9, {"model_type": "glm", **keys(40, 4096, 32, 2, 13696, 151552, 131072, attention_bias=True)}),
    # GLM-4.5-Air and GLM-4.5: 110.47 and 358.34 billion with the further prediction, which copies embedding and head (zai-org)
    "glm4.5_air": (106.9e9, GLM),
    "glm4.5": (
        352.8e9,
        GLM
        | keys(92, 5120, 96, 8, 12288, 151552, 131072, head_dim=128, use_qk_norm=True)
        | {"n_routed_experts": 160, "moe_intermediate_size": 1536, "first_k_dense_replace": 3},
    ),
    # Phi-3-mini-4k: 3.82 billion, Phi-4: 14.66 billion (microsoft, tensors)
    "phi3": (3.821e9, {"model_type": "phi3", **keys(32, 3072, 32, 32, 8192, 32064, 4096, sliding_window=2047)}),
    "phi4": (14.66e9, {"model_type": "phi3", **keys(40, 5120, 40, 10, 17920, 100352, 16384, sliding_window=None)}),
    # the text models are Qwen2.5-7B: 7.62 billion, Qwen3-8B: 8.19 billion and Qwen3-30B-A3B: 30.5 billion (model cards)
    "qwen2_5_vl": (7.616e9, {**CONFIGS["qwen2.5_7b"], "model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}),
    "qwen3_vl": (8.19e9, {"model_type": "qwen3_vl", "text_config": CONFIGS["qwen3_8b"]}),
    "qwen3_vl_moe": (30.53e9, {"model_type": "qwen3_vl_moe", "text_config": CONFIGS["qwen3_30b_a3b"]}),
}
BY_KEYS = {
    # OLMo 2 7B: 7.30 billion; SmolLM3 3B: 3.08 billion; StarCoder2 15B: 15.96 billion (tensors of their repositories)
    "olmo2": (7.299e9, {"model_type": "olmo2", **keys(32, 4096, 32, 32, 11008, 100352, 4096)}),
    "smollm3": (
        3.075e9,
        {"model_type": "smollm3", **keys(36, 2048, 16, 4, 11008, 128256, 65536, tie_word_embeddings=True)},
    ),
    "starcoder2": (
        15.96e9,
        {
            "model_type": "starcoder2",
            **{
                key: value for key, value in keys(40, 6144, 48, 4, 24576, 49152, 16384).items() if key != "rms_norm_eps"
            },
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-05,
            "rope_theta": 100000,
            "use_bias": True,
        },
    ),
    # dots.llm1: 142 billion (arXiv 2506.05767)
    "dots1": (
        142.8e9,
        {
            "model_type": "dots1",
            **keys(62, 4096, 32, 32, 10944, 152064, 32768, head_dim=128, attention_bias=False),
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
        },
    ),
    # ChatGLM3-6B: 6.24 billion (zai-org, tensors), whose names are its own
    "chatglm": (
        6.24e9,
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "multi_query_group_num": 2,
            "ffn_hidden_size": 13696,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
            "rms_norm_eps": 1e-05,
            "tie_word_embeddings": False,
        },
    ),
}
"""Decoders that are not built in: parameters and keys."""
