// SPDX-License-Identifier: MIT

// Other tools' keys that have no effect here. A note says why, unless the value
// is off.

#include "tools/qlora/ForeignRows.h"

namespace qlora {

/// Keys that tune the other tool. None of them changes the result.
static const ForeignRow kTuning[] = {
    {"flash_attention flash_attn xformers_attention sdp_attention "
     "flex_attention sage_attention eager_attention attn_implementation "
     "flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp "
     "flash_attn_d512 "
     "flash_optimum flex_attn_compile_kwargs large_head_attention sdpa_varlen "
     "fused_attn_kernel gemma4_hybrid_attn_impl use_unsloth use_v1_kernels "
     "use_kernels use_glm_dsa_kernels use_dsv4_kernels "
     "dsv4_fp8_lora_kernel dsv4_shared_mlp_lora_kernel "
     "experts_implementation expert_backend use_scattermoe use_sonicmoe "
     "moe_bnb_fast moe_dequant_chunk_size moe_grouped_backend "
     "llama4_linearized_experts enable_liger_kernel use_liger_kernel "
     "use_liger dpo_use_liger_kernel liger_kernel_config liger_rope "
     "liger_rms_norm liger_rms_norm_gated liger_layer_norm "
     "liger_glu_activation liger_swiglu liger_cross_entropy "
     "liger_fused_linear_cross_entropy cut_cross_entropy chunked_cross_entropy "
     "chunked_cross_entropy_num_chunks tiled_mlp tiled_mlp_num_shards "
     "tiled_mlp_use_original_mlp lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
     "lora_embedding_kernel torch_compile torch_compile_backend "
     "torch_compile_mode torch_compile_options deepcompile "
     "bias_activation_fusion apply_rope_fusion masked_softmax_fusion "
     "cross_entropy_loss_fusion moe_grouped_gemm moe_token_dispatcher_type",
     "", kAny, "chooses kernels: here the compiler chooses them"},
    {"tf32 ddp ddp_find_unused_parameters ddp_backend ddp_bucket_cap_mb "
     "ddp_broadcast_buffers ddp_static_graph use_distributed_optimizer "
     "overlap_param_gather overlap_grad_reduce sequence_parallel "
     "heads_k_stride ring_attn_func fsdp_final_state_dict_type "
     "fsdp_transformer_layer_cls_to_wrap expert_parallel_backend "
     "expert_parallel_fallback_on_unsupported expert_parallel_num_nvl_bytes "
     "expert_parallel_num_rdma_bytes expert_parallel_token_capacity "
     "account_for_embedding_in_pipeline_split "
     "account_for_loss_in_pipeline_split",
     "", kAny, "tunes how ranks communicate: here the compiler decides"},
    {"gradient_checkpointing_kwargs activation_checkpointing_kwargs "
     "selective_checkpointing use_reentrant_gc "
     "use_unsloth_gc recompute_granularity recompute_method "
     "recompute_num_layers "
     "low_cpu_mem_usage device_map quantization_device_map max_memory "
     "gpu_memory_limit bnb_4bit_quant_storage qlora_sharded_model_loading "
     "lora_on_cpu experimental_skip_move_to_device offload_folder "
     "embeddings_skip_upcast gc_steps gc_collect_steps torch_empty_cache_steps "
     "torchdistx_path use_cache use_kv_cache save_on_each_node",
     "", kAny, "tunes memory of the other tool: here memory is planned"},
    {"dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor "
     "dataloader_persistent_workers dataloader_multiprocessing_context "
     "dataloader_in_order pad_to_sequence_len pad_to_multiple_of "
     "batch_flattening dpo_padding_free eval_sample_packing eval_packing "
     "multipack_real_batches sample_packing_group_size "
     "sample_packing_bin_size sample_packing_eff_est "
     "sample_packing_mp_start_method use_packed_sequences "
     "dataset_prepared_path dataset_keep_in_memory num_dataset_shards_to_save "
     "skip_prepare_dataset preprocessing_batch_size data_shared_file_system "
     "overwrite_cache cache_dir streaming dataset_streaming buffer_size "
     "remove_unused_columns label_names length_column_name total_num_tokens "
     "total_supervised_tokens precompute_ref_log_probs "
     "precompute_ref_batch_size",
     "", kAny, "tunes how data are prepared: the same rows are trained"},
    {"sample_packing_sequentially", "", kAny,
     "chooses rows that share a sequence: packing does it as TRL does"},
    {"shuffle_merged_datasets shuffle_before_merging_datasets shuffle_dataset "
     "data_seed",
     "", kAny, "orders rows in advance: every epoch shuffles them with --seed"},
    {"upcast_layernorm upcast_lmhead_output fp32_norms fp32_norm_classes", "",
     kAny, "is not needed: norms and losses are computed in float32"},
    {"bf16_full_eval", "", kAny,
     "is not needed: evaluations use the data types of the training"},
};

/// Keys of models, logs, processes and files.
static const ForeignRow kSurroundings[] = {
    {"model_type type_of_model cls_model_config tokenizer_type "
     "tokenizer_use_fast tokenizer_legacy use_fast_tokenizer "
     "tokenizer_save_jinja_files is_llama_derived_model is_encoder_decoder "
     "is_mistral_derived_model is_qwen_derived_model is_falcon_derived_model "
     "trust_remote_code",
     "", kAny, "names classes of transformers: config.json names the model"},
    {"resize_token_embeddings_to_32x mean_resizing_embeddings "
     "init_special_tokens",
     "", kAny, "is for new tokens, and none are added"},
    {"pad_token padding_value", "", kAny,
     "is not needed: padding is never in the loss"},
    {"eot_tokens", "", kAny,
     "is not needed: the text that ends a turn of the assistant is in the "
     "loss"},
    {"loraplus_lr_embedding", "", kAny,
     "is a rate of adapters of embeddings, which are not supported"},
    {"lora_fan_in_fan_out", "", kAny, "is detected from the model"},
    {"wandb_project wandb_entity wandb_watch wandb_name wandb_run_id "
     "wandb_log_model wandb_mode use_wandb use_mlflow mlflow_tracking_uri "
     "mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts "
     "use_comet comet_api_key comet_workspace comet_project_name "
     "comet_experiment_key comet_mode comet_online comet_experiment_config "
     "use_trackio trackio_project_name trackio_run_name trackio_space_id "
     "trackio_bucket_id trackio_static_space_id project use_otel_metrics "
     "otel_metrics_host otel_metrics_port use_swanlab swanlab_project "
     "swanlab_workspace swanlab_run_name swanlab_experiment_name "
     "swanlab_description swanlab_mode swanlab_api_key swanlab_logdir "
     "swanlab_lark_webhook_url swanlab_lark_secret swanlab_lark_webhook "
     "swanlab_web_host swanlab_api_host swanlab_private_webhook_host "
     "swanlab_log_model swanlab_log_completions "
     "swanlab_completion_log_interval swanlab_completion_max_buffer "
     "plot_loss debug logging_strategy "
     "logging_nan_inf_filter log_level log_level_replica log_on_each_node "
     "disable_tqdm skip_memory_metrics include_num_input_tokens_seen "
     "include_effective_tokens_per_second include_tokens_per_second "
     "include_tkps print_param_status save_only_model save_safetensors "
     "save_first_step push_dataset_to_hub",
     "", kAny, "configures logs and files: metrics.jsonl is written"},
    {"profiler_steps profiler_steps_start enable_torch_profiler "
     "profiler_output_dir profiler_wait_steps profiler_warmup_steps "
     "profiler_active_steps profiler_repeat profiler_record_shapes "
     "profiler_profile_memory profiler_with_stack profile_modules",
     "", kAny, "profiles the other tool: use --profile"},
    {"gradio_title gradio_share gradio_server_name gradio_server_port "
     "gradio_max_new_tokens gradio_temperature infer_backend infer_dtype "
     "vllm vllm_maxlen vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank "
     "vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size "
     "sglang_config sglang_lora_backend",
     "", kAny, "configures answers, not training: see qlora generate"},
    {"merge_lora merge_method export_dir export_size export_device "
     "export_quantization_bit export_quantization_dataset "
     "export_quantization_nsamples export_quantization_maxlen "
     "export_legacy_format export_hub_model_id export_hf_on_finish "
     "quantization",
     "", kAny, "exports a trained model: see qlora export"},
    {"use_ray ray_num_workers ray_run_name ray_init_kwargs "
     "resources_per_worker master_addr master_port local_rank world_size "
     "device use_cpu ignore_bias_buffers",
     "", kAny, "starts processes: see --gpus and --target"},
    {"strict axolotl_config_path is_preprocess preprocess_iterable "
     "hf_use_auth_token ignore_data_skip enable_jit_checkpoint "
     "dynamic_checkpoint restore_callback_states_from_checkpoint "
     "full_determinism hub_always_push",
     "", kAny, "configures the other tool: not needed"},
    {"hub_strategy", "", kAny,
     "sets when to upload: push_to_hub uploads once, at the end"},
    {"loss_watchdog_threshold loss_watchdog_patience", "", kAny,
     "stops a run whose loss is high: here only --on-nonfinite stops one"},
};

/// Keys of evaluations and of other kinds of training.
static const ForeignRow kOthers[] = {
    {"do_eval", "", kAny, "validation_file and eval_strategy decide"},
    {"eval_on_start", "", kAny,
     "is not needed: the first evaluation runs before training"},
    {"compute_accuracy", "", kAny, "is not needed: accuracy is measured"},
    {"do_causal_lm_eval eval_causal_lm_metrics do_bench_eval bench_dataset "
     "bench_split eval_table_size eval_max_new_tokens generate_samples "
     "num_generation_samples generation_temperature generation_top_p "
     "generation_top_k generation_prompt_ratio generation_do_sample "
     "generate_during_eval lm_eval_tasks lm_eval_batch_size "
     "lm_eval_post_train lm_eval_model prediction_loss_only "
     "batch_eval_metrics include_for_metrics eval_accumulation_steps "
     "eval_do_concat_batches eval_use_gather_object eval_on_each_dataset",
     "", kAny,
     "configures evaluations, not training: see --predict-with-generate"},
    {"temperature top_p top_k length_penalty skip_special_tokens", "", kAny,
     "samples answers: --predict-with-generate answers greedily"},
    {"processor_kwargs image_size image_resize_algorithm "
     "image_max_pixels image_min_pixels image_do_pan_and_scan crop_to_patches "
     "video_max_pixels video_min_pixels video_fps video_maxlen "
     "use_audio_in_video audio_sampling_rate media_dir role_boundaries "
     "freeze_mm_modules freeze_vision_tower freeze_multi_modal_projector "
     "freeze_language_model",
     "", kAny, "is for images, videos and sound: text is trained"},
    {"eta_min adam_eps test_value gptq_disable_exllama", "", kAny,
     "is no key of axolotl, which ignores it"},
    {"gptq", "", kAny, "is not needed: config.json has the stored format"},
    {"pissa_convert", "", kAny,
     "is always done: the result is a plain LoRA of the model"},
    // The key that turns the method on is refused.
    {"fp8_backend fp8_enable_fsdp_float8_all_gather "
     "model_quantization_config_kwargs relora_prune_ratio "
     "relora_prune_method relora_cpu_offload "
     "lisa_layers_attribute pose_max_context_len pose_num_chunks "
     "pose_split_on_token_ids eaft_alpha eaft_k asft_alpha "
     "scaling_softmax_factor scaling_softmax_bias num_labels "
     "center_rewards_coefficient lr_div_factor adam_beta3 adam_epsilon2 "
     "dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of "
     "qgalore_rank qgalore_update_proj_gap qgalore_scale qgalore_proj_type "
     "qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size "
     "qgalore_cos_threshold qgalore_gamma_proj qgalore_queue_size "
     "galore_target galore_rank galore_update_interval galore_scale "
     "galore_proj_type galore_layerwise apollo_target apollo_rank "
     "apollo_update_interval apollo_scale apollo_proj apollo_proj_type "
     "apollo_layerwise apollo_scale_front apollo_scale_type badam_mode "
     "badam_start_block badam_switch_mode badam_switch_interval "
     "badam_update_ratio badam_mask_mode badam_verbose freeze_trainable_layers "
     "freeze_trainable_modules freeze_extra_modules oft_rank oft_block_size "
     "oft_target module_dropout ppo_buffer_size ppo_epochs ppo_score_norm "
     "ppo_target ppo_whiten_rewards reward_model_adapters "
     "reward_model_quantization_bit reward_model_type "
     "ref_model_mixup_alpha ref_model_sync_steps f_alpha_divergence_coef "
     "ebft kt_config kt_cpu_activation kt_use_lora_experts "
     "kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path "
     "kt_lora_expert_num kt_lora_expert_intermediate_size "
     "hyper_parallel_args hyper_parallel_cp_size "
     "megatron_pretrained_checkpoint mixed_precision "
     "calculate_per_token_loss extra_config "
     "pretrain_multipack_attn pretrain_multipack_buffer_size "
     "pretraining_sample_concatenation streaming_multipack_buffer_size",
     "", kAny, "configures a method that another key turns on"},
    // `plugins` decides. Without its plugin, axolotl ignores the key too.
    {"dense_mixer diffusion grokfast_alpha grokfast_lamb hatchery kd_trainer "
     "kd_ce_alpha kd_alpha kd_temperature kd_beta kd_normalize_topk "
     "kd_online_server kd_online_server_base_url kd_online_topk "
     "kd_online_timeout kd_temperature_min llmcompressor mora "
     "spectrum_top_fraction spectrum_model_name nemo_gym_enabled "
     "nemo_gym_dir nemo_gym_config_paths nemo_gym_datasets nemo_gym_auto_clone "
     "nemo_gym_auto_start nemo_gym_head_port nemo_gym_max_turns "
     "nemo_gym_model_name nemo_gym_multi_turn nemo_gym_run_timeout "
     "nemo_gym_server_timeout nemo_gym_verify_timeout",
     "", kAny, "configures a plugin of axolotl, which 'plugins' turns on"},
};

ForeignTable ignoredRows() { return {kTuning, kSurroundings, kOthers}; }

} // namespace qlora
