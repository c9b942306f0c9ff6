// SPDX-License-Identifier: MIT

// Table of tools, their keys and their defaults.

#include "tools/qlora/ForeignTools.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/Options/OptionTable.h"

namespace qlora {

namespace {
using enum ForeignTool;

struct ToolKeys {
  ForeignTool tool;
  const char *keys; ///< separated by spaces
  /// The tool's default; empty: the same as qlora's, or it has no effect.
  const char *initial = "";
  const char *rl = ""; ///< objectives that the default is for; empty: all
};
} // namespace

static const ToolKeys kToolKeys[] = {
    // axolotl: utils/schemas/{config,training,peft,datasets}.py.
    {kAxolotl, "adapter", "none"},
    {kAxolotl, "sequence_len", "512"},
    {kAxolotl, "micro_batch_size", "1"},
    {kAxolotl, "num_epochs", "1"},
    {kAxolotl, "lr_scheduler", "cosine"},
    // core/builders/base.py, _configure_warmup_and_logging
    {kAxolotl, "warmup_ratio", "auto"},
    // loaders/model.py, _set_quantization_config
    {kAxolotl, "bnb_4bit_use_double_quant", "true"},
    // core/builders/base.py, _configure_save_and_eval_strategy
    {kAxolotl, "save_strategy", "epoch"},
    {kAxolotl, "save_total_limit", "4"},
    // utils/data/utils.py, handle_long_seq_in_dataset
    {kAxolotl, "excess_length_strategy", "drop"},
    {kAxolotl,
     "datasets test_datasets train_on_inputs lora_model_dir lora_r lora_alpha "
     "lora_modules_to_save lora_fan_in_fan_out lora_target_parameters "
     "dataset_prepared_path dataset_exact_deduplication "
     "shuffle_merged_datasets "
     "pad_to_sequence_len eval_sample_packing special_tokens tokens "
     "evals_per_epoch saves_per_epoch flash_attention xformers_attention "
     "sdp_attention flex_attention eager_attention attn_implementation "
     "lora_mlp_kernel lora_qkv_kernel lora_o_kernel liger_rope liger_rms_norm "
     "liger_glu_activation liger_fused_linear_cross_entropy wandb_project "
     "wandb_entity wandb_watch wandb_name wandb_run_id wandb_log_model strict "
     "model_type tokenizer_type is_llama_derived_model "
     "is_mistral_derived_model is_qwen_derived_model trust_remote_code "
     "unfrozen_parameters relora_steps auto_resume_from_checkpoints "
     "chat_template_jinja rl_label_smoothing dpo_use_weighting rpo_alpha "
     "dpo_label_smoothing simpo_gamma loraplus_lr_embedding "
     "precompute_ref_log_probs local_rank deepspeed fsdp fsdp_config "
     "fsdp_version dp_shard_size dp_replicate_size plugins eot_tokens "
     "early_stopping_patience gradient_checkpointing_kwargs"},
    // LLaMA-Factory: hparams/{finetuning,data,model}_args.py.
    {kLlamaFactory, "cutoff_len", "2048"},
    // From finetuning_args.py: self.lora_alpha or self.lora_rank * 2
    {kLlamaFactory, "lora_alpha", "2*lora_rank"},
    {kLlamaFactory, "bnb_4bit_use_double_quant", "true"},
    // model/model_utils/checkpointing.py, prepare_model_for_training
    {kLlamaFactory, "gradient_checkpointing", "true"},
    // infer_seqlen() (data/processor/processor_utils.py) shortens question and
    // answer of a long row in proportion, which qlora does not support.
    {kLlamaFactory, "excess_length_strategy", "raise"},
    {kLlamaFactory,
     "stage finetuning_type template dataset dataset_dir eval_dataset "
     "media_dir quantization_bit quantization_method quantization_type "
     "double_quantization lora_rank lora_target additional_target "
     "create_new_adapter pissa_init pissa_iter pissa_convert pref_loss "
     "pref_ftx pref_beta simpo_gamma dpo_label_smoothing kto_chosen_weight "
     "kto_rejected_weight ld_alpha ref_model ref_model_adapters "
     "ref_model_quantization_bit loraplus_lr_embedding use_galore use_badam "
     "plot_loss overwrite_cache use_unsloth flash_attn pure_bf16 "
     "packing neat_packing mask_history train_on_prompt enable_thinking "
     "preserve_thinking default_system tool_format mix_strategy "
     "interleave_probs tokenized_path shift_attn resize_vocab do_predict "
     "local_rank "
     "trust_remote_code do_train do_eval deepspeed fsdp "
     "fsdp_config gradient_checkpointing_kwargs"},
    // TRL: trainer/{model,sft,dpo,kto}_config.py, experimental/orpo.
    {kTrl, "use_peft", "false"},
    {kTrl, "lora_r", "16"},
    {kTrl, "lora_alpha", "32"},
    {kTrl, "lora_dropout", "0.05"},
    {kTrl, "gradient_checkpointing", "true"},
    {kTrl, "learning_rate", "2e-5", "none"},
    {kTrl, "learning_rate", "1e-6", "dpo cpo kto orpo"},
    {kTrl, "assistant_only_loss", "false", "none"},
    {kTrl, "train_sampling_strategy", "sequential", "kto"},
    {kTrl,
     "dataset_name dataset_config dataset_train_split dataset_test_split "
     "dataset_kwargs dataset_mixture dataset_mixer dataset_splits "
     "lora_task_type lora_modules_to_save lora_target_parameters "
     "use_bnb_nested_quant bnb_4bit_quant_storage attn_implementation "
     "trust_remote_code disable_dropout max_prompt_length "
     "max_completion_length precompute_ref_log_probs sync_ref_model ld_alpha "
     "use_weighting rpo_alpha truncation_mode packing_strategy eval_packing "
     "model_init_kwargs eos_token pad_token do_train do_eval do_predict "
     "local_rank deepspeed fsdp "
     "fsdp_config gradient_checkpointing_kwargs"},
};

const char *nameOf(ForeignTool tool) {
  switch (tool) {
  case kAxolotl:
    return "axolotl";
  case kLlamaFactory:
    return "LLaMA-Factory";
  case kTrl:
    return "TRL";
  }
  return "";
}

/// Returns the only tool with the key. No value if qlora has such an option.
static std::optional<ForeignTool> ownerOf(std::string_view key) {
  if (findOption(optionTable(), key))
    return std::nullopt;
  std::optional<ForeignTool> owner;
  for (const ToolKeys &row : kToolKeys) {
    if (!std::ranges::count(splitWords(row.keys), key))
      continue;
    if (owner && *owner != row.tool)
      return std::nullopt;
    owner = row.tool;
  }
  return owner;
}

StatusOr<std::optional<FileTool>> toolOf(std::span<const YamlEntry> entries,
                                         const std::string &path) {
  std::optional<FileTool> found;
  for (const YamlEntry &entry : entries) {
    const auto owner = ownerOf(entry.key);
    if (!owner || entry.value.is_null())
      continue;
    if (!found)
      found = FileTool{*owner, entry.key, entry.line};
    if (*owner != found->tool)
      return Status::invalid(
          "{}:{}: '{}' is a key of {}, but '{}' in line {} is a key of {}, "
          "which has other defaults; keep the keys of one tool",
          path, entry.line, entry.key, nameOf(*owner), found->key, found->line,
          nameOf(found->tool));
  }
  // Keys without a value contradict nothing, but `adapter:` is axolotl's.
  for (const YamlEntry &entry : entries)
    if (const auto owner = ownerOf(entry.key); owner && !found)
      found = FileTool{*owner, entry.key, entry.line};
  return found;
}

std::vector<ForeignDefault> defaultsOf(ForeignTool tool, std::string_view rl) {
  std::vector<ForeignDefault> defaults;
  for (const ToolKeys &row : kToolKeys)
    if (row.tool == tool && *row.initial &&
        (!*row.rl || std::ranges::count(splitWords(row.rl), rl)))
      defaults.push_back({row.keys, row.initial});
  return defaults;
}

/// Follows TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING of PEFT 0.21.
StatusOr<nlohmann::ordered_json> peftTargets(const std::string &modelType) {
  static constexpr const char *kQueryValue =
      "llama mistral mixtral stablelm gemma gemma2 gemma3_text qwen2 qwen3 opt "
      "gptj gpt_neo";
  if (std::ranges::count(splitWords(kQueryValue), modelType))
    return nlohmann::ordered_json::array({"q_proj", "v_proj"});
  if (modelType == "phi")
    return nlohmann::ordered_json::array({"q_proj", "v_proj", "fc1", "fc2"});
  if (modelType == "gpt2" || modelType == "gpt_bigcode")
    return nlohmann::ordered_json::array({"c_attn"});
  if (modelType == "gpt_neox" || modelType == "falcon" || modelType == "bloom")
    return nlohmann::ordered_json::array({"query_key_value"});
  return Status::invalid("'lora_target_modules' is not given, and PEFT has no "
                         "modules for the model_type '{}': write "
                         "lora_target_modules, such as all-linear",
                         modelType);
}

} // namespace qlora
