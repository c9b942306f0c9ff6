// SPDX-License-Identifier: MIT

// Reads configurations of DeepSpeed: a section of the YAML file, or a JSON
// file.

#include "tools/qlora/ForeignParallelSections.h"

#include <fmt/format.h>

#include <algorithm>

namespace qlora {

using json = nlohmann::ordered_json;

/// Keys of DeepSpeed that affect only speed, memory and logs.
static constexpr const char *kDeepSpeedSame =
    "_comment comment zero_allow_untested_optimizer "
    "zero_force_ds_cpu_optimizer wall_clock_breakdown steps_per_print "
    "memory_breakdown dump_state flops_profiler comms_logger tensorboard wandb "
    "csv_monitor activation_checkpointing compile checkpoint";
static constexpr const char *kZeroSame =
    "allgather_partitions allgather_bucket_size overlap_comm reduce_scatter "
    "reduce_bucket_size contiguous_gradients round_robin_gradients "
    "sub_group_size stage3_prefetch_bucket_size "
    "stage3_param_persistence_threshold stage3_max_live_parameters "
    "stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save "
    "prefetch_bucket_size param_persistence_threshold max_live_parameters "
    "max_reuse_distance gather_16bit_weights_on_model_save "
    "ignore_unused_parameters load_from_fp32_weights memory_efficient_linear "
    "use_multi_rank_bucket_allreduce elastic_checkpoint";
/// Keys of DeepSpeed that repeat transformers' arguments, with qlora's option.
static constexpr std::pair<const char *, const char *> kDeepSpeedNumbers[] = {
    {"train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"train_batch_size", "global_batch_size"},
    {"gradient_clipping", "max_grad_norm"}};

Status ParallelSections::addStage(const std::string &stage) {
  if (stage == "0")
    return setAxis("none", 1);
  if (stage == "1")
    return setAxis("zero1", ranks.all);
  if (stage == "2")
    return setAxis("zero2", ranks.all);
  if (stage == "3")
    return setAxis("fsdp", ranks.all);
  return Status::invalid("'stage: {}' is not a ZeRO stage: write 0, 1, 2 or 3",
                         stage);
}

Status ParallelSections::addZero(const json &zero) {
  if (!zero.is_object() || !zero.contains("stage"))
    return Status::invalid("expects 'zero_optimization' with a 'stage'");
  QLORA_RETURN_IF_ERROR(addStage(foreignNameOf(zero["stage"])));
  for (const auto &[key, value] : zero.items()) {
    if (key == "stage" || isWordOf(kZeroSame, key))
      continue;
    if (key == "offload_optimizer" || key == "cpu_offload") {
      QLORA_RETURN_IF_ERROR(addOffload("optimizer", value));
    } else if (key == "offload_param" || key == "cpu_offload_params") {
      QLORA_RETURN_IF_ERROR(addOffload("base", value));
    } else if (!isOffWord(foreignNameOf(value))) {
      return notSupported("zero_optimization." + key, value,
                          "is not supported: remove it");
    }
  }
  return Status::ok();
}

/// Adds a DeepSpeed configuration. gradient_clipping is off by default.
Status ParallelSections::addDeepSpeedConfig(const json &config) {
  if (!config.is_object() || !config.contains("zero_optimization"))
    return Status::invalid("expects a configuration with 'zero_optimization', "
                           "or zero1, zero2 or zero3");
  for (const auto &[key, value] : config.items()) {
    const std::string word = foreignNameOf(value);
    const auto *number = std::ranges::find(
        kDeepSpeedNumbers, key, &std::pair<const char *, const char *>::first);
    if (number != std::end(kDeepSpeedNumbers)) {
      if (word != "auto")
        set(number->second, word);
    } else if (key == "zero_optimization") {
      QLORA_RETURN_IF_ERROR(addZero(value));
    } else if (key == "bf16" || key == "bfloat16" || key == "fp16" ||
               key == "amp") {
      const std::string enabled =
          value.is_object()
              ? foreignNameOf(value.value("enabled", json("false")))
              : word;
      const bool isBf16 = key.starts_with("bf");
      if (enabled == "true" && !isBf16)
        return notSupported(key, enabled, "is not supported: write bf16: true");
      if (isBf16 && (enabled == "true" || enabled == "false"))
        set("compute_dtype", enabled == "true" ? "bfloat16" : "float32");
    } else if (!isWordOf(kDeepSpeedSame, key) && !isOffWord(word)) {
      return Status::invalid(
          "'{}' of DeepSpeed is not supported: remove it from that section",
          key);
    }
  }
  if (!config.contains("gradient_clipping"))
    set("max_grad_norm", "0");
  return Status::ok();
}

Status ParallelSections::addDeepSpeed(const json &value) {
  if (value.is_object())
    return addDeepSpeedConfig(value);
  const std::string name = foreignNameOf(value);
  if (name.starts_with("zero") && name.size() == 5)
    return addStage(name.substr(4));
  QLORA_ASSIGN_OR_RETURN(const json config, readJson(name));
  return addDeepSpeedConfig(config).withContext(name);
}

} // namespace qlora
