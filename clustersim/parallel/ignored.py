"""Megatron's arguments that a file may hold and that do not change the time of a step here (megatron/training, megatron/core)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Ignored(NamedTuple):
    """Arguments of a file that were left out, as written there: those without effect on time, and those not modelled."""

    no_effect: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()


NOTHING = Ignored()


def sorted_out(keys: Iterable[Any]) -> Ignored:
    """Return which of some keys are ignored, and why; hyphens count as underscores."""
    names = {str(key): str(key).rsplit(".", 1)[-1].replace("-", "_") for key in keys}
    return Ignored(
        tuple(key for key, name in names.items() if name in NO_EFFECT),
        tuple(key for key, name in names.items() if name in NOT_MODELLED),
    )


_NO_EFFECT = """
    abort_on_unmet_fused_kernel_constraints adam_beta1 adam_beta2 adam_eps adlr_autoresume adlr_autoresume_interval
    allow_ambiguous_pad_tokens app_tag_run_name app_tag_run_version apply_layernorm_1p apply_query_key_layer_scaling
    apply_wd_to_qk_layernorm async_ckpt_cpu_priority async_ckpt_io_priority async_ckpt_use_cpu_shm async_save
    async_strategy attention_softmax_in_fp32 auto_detect_ckpt_format autocast_dtype barrier_with_l1_time
    calc_ft_timeouts calculate_per_token_loss chat_template check_for_large_grads check_for_nan_in_grad
    check_for_nan_in_loss check_for_spiky_loss check_weight_hash_across_dp_replicas_interval
    ckpt_assume_constant_structure ckpt_convert_format ckpt_convert_save ckpt_convert_update_legacy_dist_opt_format
    ckpt_drop_redundant_extra_state ckpt_format ckpt_fully_parallel_load ckpt_fully_parallel_load_exchange_algo
    ckpt_fully_parallel_load_per_rank_objects ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save
    ckpt_fully_parallel_save_process_group ckpt_load_validate_sharding_integrity ckpt_pg_tensors_cache_create
    ckpt_pg_tensors_cache_path ckpt_step clone_scatter_output_in_embedding codecarbon_dir config_logger_dir
    create_moe_param_group data_args_path data_cache_path data_impl data_parallel_random_init data_path
    dataloader_defer_npy_index_mmap dataloader_fast_cache_load dataloader_type DDP_impl decoupled_lr decoupled_min_lr
    decoupled_weight_decay deepspeed deepspeed_activation_checkpointing deepspeed_config deterministic_mode
    disable_gloo_process_groups disable_msc disable_straggler_on_startup dist_ckpt_format
    dist_ckpt_optim_fully_reshardable dist_ckpt_save_pre_mcore_014 dist_ckpt_strictness dist_ckpt_workers
    distrib_optim_fully_reshardable_mem_efficient distributed_backend distributed_timeout_minutes
    distributed_timeout_seconds_after_init embedding_init_method embedding_init_method_std empty_unused_memory_level
    enable_autocast enable_experimental enable_ft_package enable_msc end_weight_decay eod_mask_loss
    eval_global_batch_size eval_interval eval_iters eval_micro_batch_size exit_duration_in_mins exit_interval
    exit_on_missing_checkpoint exit_signal exit_signal_handler exit_signal_handler_for_dataloader
    exit_signal_handler_for_training filter_warnings fim_data fim_eod_token fim_fragment_rate fim_middle_token
    fim_no_prefix fim_pad_token fim_prefix_token fim_rate fim_split_sample fim_spm_rate fim_suffix_token finetune
    flight_recorder_dump_on_timeout flight_recorder_dump_path flight_recorder_extra_dump_on_exec
    flight_recorder_include_only_active flight_recorder_include_stack_trace flight_recorder_trace_buffer_size
    fp8_amax_compute_algo fp8_amax_history_len fp8_interval fp8_margin fsdp_manual_registration
    ft_num_warmup_iters fully_parallel_load fully_parallel_save gpu_sniff_test_interval group_query_attention hysteresis
    init_method_std init_method_xavier_uniform init_model_with_meta_device initial_loss_scale
    inprocess_active_world_size inprocess_barrier_timeout inprocess_completion_timeout inprocess_empty_cuda_cache
    inprocess_granularity inprocess_hard_timeout inprocess_heartbeat_interval inprocess_heartbeat_timeout
    inprocess_last_call_wait inprocess_max_iterations inprocess_monitor_process_interval
    inprocess_monitor_thread_interval inprocess_progress_watchdog_interval inprocess_restart inprocess_soft_timeout
    inprocess_termination_grace_time iterations_to_skip kill_switch_path layernorm_epsilon layernorm_zero_centered_gamma
    lazy_mpu_init load load_main_params_from_ckpt load_optim load_rng local_rank log_batch_size_to_tensorboard
    log_device_memory_used log_energy log_interval log_l2_norm_grad_to_tensorboard log_level log_level_replica
    log_loss_scale_to_tensorboard log_max_attention_logit log_memory_interval log_memory_to_tensorboard
    log_num_zeros_in_grad log_optimizer_states_to_tensorboard log_params_norm log_progress log_runtime_to_tensorboard
    log_straggler log_throughput log_throughput_to_tensorboard log_timers_to_tensorboard
    log_validation_ppl_to_tensorboard log_world_size_to_tensorboard logging_level loss_on_targets_only loss_scale
    loss_scale_window lr lr_decay_iters lr_decay_samples lr_decay_steps lr_decay_style lr_decay_tokens
    lr_warmup_fraction lr_warmup_init lr_warmup_iters lr_warmup_samples lr_warmup_steps lr_warmup_tokens
    lr_wsd_decay_iters lr_wsd_decay_samples lr_wsd_decay_style manual_gc manual_gc_eval manual_gc_interval mask_prob
    memory_snapshot_path merge_file mid_level_dataset_surplus min_loss_scale min_lr mock_data moe_aux_loss_coeff
    moe_enable_deepep moe_flex_dispatcher_backend
    moe_eval_capacity_factor moe_input_jitter_eps moe_loss_coeff moe_min_capacity moe_per_layer_logging
    moe_router_bias_update_rate moe_router_dtype moe_router_enable_expert_bias moe_router_force_load_balancing
    moe_router_load_balancing_type moe_router_pre_softmax
    moe_router_score_function moe_router_topk_limited_devices moe_router_topk_scaling_factor
    moe_routing_trace_capture_hidden_states moe_routing_trace_capture_logits moe_routing_trace_dump_weights
    moe_routing_trace_max_training_iters moe_routing_trace_path moe_z_loss_coeff most_recent_k mscale mscale_all_dim
    mtp_loss_scaling_factor no_barrier_with_level_1_timing no_ckpt_fully_parallel_save
    no_create_attention_mask_in_dataloader no_data_sharding no_initialization no_load_lr_state no_load_optim no_load_rng
    no_mmap_bin_files no_one_logger no_pin_cpu_grads no_pin_cpu_params no_pipeline_parallel no_query_key_layer_scaling
    no_rope_freq no_save_optim no_save_rng no_weight_decay_cond_type no_yarn_correction_range_round_to_int
    non_persistent_ckpt_type non_persistent_global_ckpt_dir non_persistent_local_ckpt_algo non_persistent_local_ckpt_dir
    non_persistent_save_interval norm_epsilon null_tokenizer_eod_id null_tokenizer_pad_id num_dataset_builder_threads
    num_workers nvtx_ranges object_storage_cache_path one_logger_async one_logger_project one_logger_run_name
    override_ckpt_iteration override_opt_param_scheduler params_dtype per_dataset_sequences_path
    per_split_data_args_path perform_initialization persistent_save_interval pipeline_dtype pretrained_checkpoint
    profile profile_ranks profile_step_end profile_step_start pytorch_profiler_collect_callstack
    pytorch_profiler_collect_chakra pytorch_profiler_collect_shapes rank record_memory_history record_shapes
    replication_factor replication_jump rerun_mode reset_position_ids rope_scaling_factor rope_type rotary_base
    rotary_interleaved rotary_percent rotary_scaling_factor rotary_seq_len_interpolation_factor runtime_time_unit save
    save_activations_interval save_config_filepath save_dgrads_interval save_interval save_optim save_params_interval
    save_retain_interval save_rng save_tokenizer_assets save_tokens_per_expert_interval save_wgrads_interval seed
    set_level_for_all_loggers sgd_momentum short_seq_prob skip_train_iteration_range softmax_scale split
    start_eval_at_iter start_weight_decay straggler_ctrlr_port straggler_minmax_count strict_fsdp_dtensor_load
    sync_tp_duplicated_parameters te_rng_tracker tensorboard_dir tensorboard_log_interval tensorboard_queue_size
    test_data_path throughput_window_size tiktoken_num_special_tokens tiktoken_pattern timing_log_level
    timing_log_option tokenizer_hf_no_include_special_tokens tokenizer_hf_no_use_fast tokenizer_metadata tokenizer_model
    tokenizer_name_or_path tokenizer_sentencepiece_ignore_extra_whitespaces tokenizer_sentencepiece_legacy
    tokenizer_special_tokens tokenizer_type train_data_path train_iters train_samples train_sync_interval train_tokens
    train_weighted_split_paths_path transformer_impl trust_remote_code universal_checkpoint use_checkpoint_args
    use_checkpoint_opt_param_scheduler use_cpu_initialization use_dist_ckpt use_gigatoken use_gloo_process_groups
    use_mcore_models use_mp_args_from_checkpoint_args use_nsys_profiler use_persistent_ckpt_worker use_pytorch_profiler
    use_precision_aware_optimizer
    use_rope_scaling use_same_sampling_seed_across_dp_ranks use_te_rng_tracker use_tokenizer_model_from_checkpoint_args
    valid_data_path valid_num_workers valid_weighted_split_paths_path validation_set_names verify_integrity
    vocab_extra_ids vocab_file wandb_entity wandb_exp_name wandb_project wandb_save_dir wd_incr_steps weight_decay
    weight_decay_incr_style world_size wsd_decay_steps yaml_cfg yarn_beta_fast yarn_beta_slow
    yarn_correction_range_round_to_int yarn_original_max_position_embeddings
"""
NO_EFFECT = frozenset(_NO_EFFECT.split())
"""Learning rates, data, tokenizers, checkpoints, logs, numerics, what other arguments say in full: a step takes as long with them
as without."""

_NOT_MODELLED = """
    align_grad_reduce align_param_gather attention_dropout batch_p2p_comm
    batch_p2p_communication bias_activation_fusion bias_dropout_fusion bias_gelu_fusion bias_swiglu_fusion
    cross_entropy_loss_fusion cuda_graph_impl cuda_graph_modules cuda_graph_scope cuda_graph_warmup_steps
    dataloader_inter_document_masking ddp_average_in_collective ddp_num_buckets ddp_pad_buckets_for_high_nccl_busbw
    deallocate_pipeline_outputs defer_embedding_wgrad_compute delay_wgrad_compute disable_jit_fuser
    distribute_saved_activations embed_layernorm enable_cuda_graph
    export_force_local_attention external_cuda_graph flash_attention_version fp16_lm_cross_entropy
    fp32_residual_connection fp4_param fp4_param_gather fp8_dot_product_attention fp8_multi_head_attention fp8_output_proj
    fp8_param fp8_param_gather fp8_wgrad
    glu_linear_offset high_priority_stream_groups
    keep_fp8_transpose_cache main_params_dtype masked_softmax_fusion
    megatron_fsdp_main_grads_dtype megatron_fsdp_main_params_dtype memory_efficient_layer_norm
    microbatch_group_size_per_virtual_pipeline_stage microbatch_group_size_per_vp_stage mla_down_proj_fusion
    moe_grouped_gemm moe_layer_recompute
    moe_permute_fusion moe_router_fusion nccl_communicator_config_path nccl_ub
    no_align_param_gather no_bias_dropout_fusion no_bias_gelu_fusion no_bias_swiglu_fusion
    no_masked_softmax_fusion no_persist_layer_norm optimizer_cuda_graph
    outer_dp_sharding_strategy overlap_p2p_communication_warmup_flush
    overlap_param_gather_with_optimizer_step persist_layer_norm qk_l2_norm reset_attention_mask
    reuse_grad_buf_for_mxfp8_param_ag sharp_enabled_group softmax_type suggested_communication_unit_size
    tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_bootstrap_backend tp_comm_bulk_dgrad tp_comm_bulk_wgrad
    tp_comm_overlap_ag tp_comm_overlap_cfg tp_comm_overlap_disable_fc1 tp_comm_overlap_disable_qkv tp_comm_overlap_rs
    tp_comm_overlap_rs_dgrad tp_comm_split_ag tp_comm_split_rs use_bnb_optimizer use_nccl_ub
    use_ring_exchange_p2p use_sharp use_transformer_engine_op_fuser wgrad_deferral_limit
"""
NOT_MODELLED = frozenset(_NOT_MODELLED.split())
"""Fusions, CUDA graphs and overlaps that change a step somewhat, and that clustersim does not tell apart."""
