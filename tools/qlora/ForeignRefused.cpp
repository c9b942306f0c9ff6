// SPDX-License-Identifier: MIT

// Other tools' keys that would change the result in an unsupported way. They
// are accepted only with values that change nothing.

#include "tools/qlora/ForeignRows.h"

namespace qlora {

/// Keys with a remedy.
static const ForeignRow kWithRemedy[] = {
    {"lora_task_type", "", "CAUSAL_LM", "is not supported: write CAUSAL_LM"},
    {"peft_type", "", "LORA lora", "is not supported: write LORA"},
    {"pissa_iter", "", "16",
     "is part of init_lora_weights: replace pissa_init with pissa_niter_N, or "
     "pissa for a full SVD"},
    {"quantization_method", "", "bnb bitsandbytes none",
     "supports only bitsandbytes: write bnb, or quant_method: fp8 or mxfp4"},
    {"hub_token push_to_hub_token hf_hub_token ms_hub_token om_hub_token", "",
     kOff,
     "is a secret, which others may read in a file: run hf auth login, or set "
     "HF_TOKEN"},
    {"hub_revision", "", kOff,
     "is a branch to upload to, but push_to_hub uploads to main: remove it"},
    {"max_prompt_length max_prompt_len max_completion_length", "", kOff,
     "cuts prompts or answers separately: here rows are cut at max_length"},
    {"enable_thinking", "", "true",
     "removes thoughts from answers, which is not supported: write true"},
    {"preserve_thinking", "", kOff,
     "keeps thoughts of earlier turns, which the template does not: write "
     "chat_template: FILE with a template that does"},
    {"mix_strategy", "", "concat",
     "interleaves data sets, which is not supported: write concat, and weights "
     "after the paths of train_file"},
    {"fp16 float16 fp16_full_eval", "", kOff,
     "float16 is not supported: write bf16: true"},
    {"pure_bf16 bfloat16", "", kOff,
     "keeps trainable parameters in bfloat16, which is not supported: write "
     "bf16: true"},
    {"peft_autocast_adapter_dtype", "", "true",
     "keeps adapters in bfloat16, which is not supported: write true"},
    {"fp8", "", kOff, "float8 matmuls are not supported: write bf16: true"},
    {"model_quantization_config", "", "Mxfp4Config",
     "quantizes the base on loading: write quant_method: fp8"},
    {"chat_template_jinja", "", kOff,
     "is a Jinja text: write it into a file, and name that file with "
     "chat_template"},
    {"chat_template_kwargs", "", kOff,
     "is not supported: write chat_template: FILE with a template that has "
     "these values"},
    {"generation_num_beams num_beams eval_num_beams", "", "1 none",
     "searches with several beams, which is not supported: write 1"},
    {"truncation_mode", "", "keep_start",
     "cuts the start of long rows, which is not supported: write keep_start"},
    {"f_divergence_type", "", "reverse_kl",
     "is another divergence, which is not supported: write reverse_kl"},
    {"average_tokens_across_devices", "", "true",
     "averages the loss of each rank separately, which is not supported: write "
     "true"},
    {"ignore_pad_token_for_loss", "", "true",
     "puts padding into the loss, which is not supported: write true"},
    {"repetition_penalty", "", "1 1.0",
     "changes answers, which is not supported: write 1.0"},
    {"ref_model ref_model_adapters ref_model_quantization_bit sync_ref_model",
     "", kOff,
     "configures a second model: here the reference is the base without its "
     "adapter"},
    {"rpo_alpha", "", kOff,
     "is not a key of TRL since 0.29: write loss_type: [sigmoid, sft] and "
     "loss_weights: [1, ALPHA]"},
    {"pref_ftx", "", kOff,
     "adds the mean loss per token of each chosen answer, with equal weights "
     "of answers, which is not supported: remove it, or for equal weights of "
     "tokens write loss_type: [sigmoid, sft] and loss_weights"},
    {"parallelism_config", "", kOff,
     "is not supported: write parallel, such as parallel: fsdp=2,cp=2"},
    {"trl", "", kOff,
     "configures reinforcement learning: write rl_beta for its beta"},
    {"tokenizer_config base_model_config", "", kOff,
     "names files of another model: copy them into the model's folder"},
    {"rope_scaling moe_aux_loss_coef router_aux_loss_coef", "", kOff,
     "would change the model's configuration: write it into config.json"},
    {"tokens add_tokens add_special_tokens new_special_tokens_config "
     "added_tokens_overrides",
     "", kOff, "would change the tokenizer: write it into its files"},
    {"tokenizer_use_mistral_common", "", kOff,
     "tokenizes with mistral-common, which is not supported: use a model with "
     "tokenizer.json and a chat template, and remove it"},
    {"adapter_folder", "", kOff,
     "is not supported: write the whole path as adapter_name_or_path"},
    {"create_new_adapter", "", kOff,
     "adds a second adapter: merge the first one into the model (qlora export "
     "--to merged), and train that"},
    {"dataset_shard_num dataset_shard_idx", "", kOff,
     "leaves rows out: write a file without them"},
    {"processor_type", "", kOff,
     "trains on images or sound, but only text is supported: remove it, and "
     "rows with images or sound"},
};

/// Keys of methods that are not supported.
static const ForeignRow kMethods[] = {
    {"group_by_length "
     "sortish_sampler interleave_probs dataloader_drop_last dataset_kwargs",
     "", kOff, "changes which rows share a step, which is not supported"},
    {"lr_quadratic_warmup cosine_constant_lr_ratio jagged_restart_steps "
     "jagged_restart_warmup_steps jagged_restart_anneal_steps lr_groups "
     "embedding_lr embedding_lr_scale",
     "", kOff, "changes the learning rate in an unsupported way: remove it"},
    {"optim_args optim_target_modules use_galore use_badam use_apollo "
     "use_adam_mini use_muon",
     "", kOff,
     "configures an unsupported optimizer: remove it, and choose one with "
     "optim"},
    {"rl_label_smoothing pref_bco_weight ld_alpha use_weighting "
     "dpo_use_weighting dpo_norm_loss liger_use_token_scaling use_asft_loss "
     "use_eaft_loss use_eaft",
     "", kOff, "changes the loss in an unsupported way: remove it"},
    {"reward_model process_reward_model", "", kOff,
     "trains a reward model, which is not supported"},
    {"do_predict dpo_generate_during_eval dpo_use_logits_to_keep", "", kOff,
     "is not supported: remove it, and run qlora eval after training"},
    {"mask_history default_system default_system_message tool_format "
     "split_special_tokens",
     "", kOff, "changes the tokens of rows in an unsupported way: remove it"},
    {"resize_vocab shrink_embeddings fix_untrained_tokens reinit_weights "
     "train_from_scratch shift_attn s2_attention max_packed_sequence_len "
     "mixture_of_depths scaling_softmax use_pose "
     "use_llama_pro use_onebitllms peft_layer_replication "
     "peft_ensure_weight_tying lisa_n_layers "
     "lisa_step_interval relora relora_steps qat dsv4_bf16_all "
     "dsv4_fp4_grouped_mode dsv4_fp8_nonexpert_mode gemma4_fp8_nonexpert "
     "gemma4_nf4_nonexpert nvfp4_merge_aware nvfp4_merge_aware_start_step "
     "use_kt use_hyper_parallel model_kwargs overrides_of_model_kwargs "
     "model_init_kwargs trainer_cls generation_config",
     "", kOff, "changes the training in an unsupported way: remove it"},
    {"nonexpert_quantization", "", "none bf16",
     "quantizes the base in an unsupported way: write none, or load_in_4bit"},
    {"use_mca use_megatron_bridge", "", kOff,
     "trains with Megatron-LM, whose loss and optimizer differ: remove it"},
};

ForeignTable refusedRows() { return {kWithRemedy, kMethods}; }

} // namespace qlora
