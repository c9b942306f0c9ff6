// SPDX-License-Identifier: MIT

// Reads the keys `fsdp` and `fsdp_config` of transformers, accelerate and
// axolotl.

#include "tools/qlora/ForeignParallelSections.h"

#include <fmt/format.h>

#include <algorithm>

namespace qlora {

using json = nlohmann::ordered_json;

/// Keys of FSDP, without the prefix fsdp_, that affect only speed and memory.
static constexpr const char *kFsdpSame =
    "auto_wrap_policy transformer_layer_cls_to_wrap min_num_params "
    "backward_prefetch backward_prefetch_policy forward_prefetch "
    "limit_all_gathers state_dict_type final_state_dict_type "
    "sync_module_states cpu_ram_efficient_loading cpu_offload_pin_memory "
    "use_orig_params";

/// Reads the name or number of a torch.distributed.fsdp.ShardingStrategy.
Status ParallelSections::addStrategy(std::string word) {
  static constexpr const char *kNumbered[] = {"full_shard", "shard_grad_op",
                                              "no_shard", "hybrid_shard",
                                              "hybrid_shard_zero2"};
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '5')
    word = kNumbered[word[0] - '1'];
  std::ranges::transform(word, word.begin(), ::tolower);
  if (word == "full_shard")
    return setAxis("fsdp", ranks.all);
  if (word == "shard_grad_op")
    return setAxis("zero2", ranks.all);
  if (word == "hybrid_shard")
    return setAxis("fsdp", ranks.ofMachine);
  if (word == "hybrid_shard_zero2")
    return setAxis("zero2", ranks.ofMachine);
  if (word == "no_shard")
    return setAxis("none", 1);
  return Status::invalid(
      "'{}' is not a sharding strategy: write full_shard, shard_grad_op, "
      "hybrid_shard, hybrid_shard_zero2 or no_shard",
      word);
}

/// Reads "full_shard auto_wrap offload", a list of these words, or true.
Status ParallelSections::addFsdpWords(const json &value) {
  std::string text;
  for (const json &word : value.is_array() ? value : json::array({value}))
    text += foreignNameOf(word) + " ";
  for (const std::string_view word : splitWords(text)) {
    if (word == "auto_wrap" || word == "true")
      continue;
    if (word == "offload") {
      QLORA_RETURN_IF_ERROR(addOffload("base", json("cpu")));
      QLORA_RETURN_IF_ERROR(addOffload("optimizer", json("cpu")));
    } else {
      QLORA_RETURN_IF_ERROR(addStrategy(std::string(word)));
    }
  }
  return Status::ok();
}

Status checkFsdpVersion(const std::string &word) {
  if (word == "1" || word == "2")
    return Status::ok();
  return Status::invalid("'{}' is not a version of FSDP: write 1 or 2", word);
}

Status ParallelSections::addFsdpKey(const std::string &key, const json &value) {
  const std::string word = foreignNameOf(value);
  if (key == "version")
    return checkFsdpVersion(word);
  if (isWordOf(kFsdpSame, key))
    return Status::ok();
  if (key == "sharding_strategy")
    return addStrategy(word);
  // In FSDP2, this key is true or false. accelerate also accepts a strategy.
  if (key == "reshard_after_forward")
    return addStrategy(word == "true"    ? "full_shard"
                       : word == "false" ? "shard_grad_op"
                                         : word);
  if (key == "offload_params") {
    QLORA_RETURN_IF_ERROR(addOffload("base", value));
    return addOffload("optimizer", value);
  }
  if (key == "activation_checkpointing") {
    if (word == "true")
      set("gradient_checkpointing", "true");
    return Status::ok();
  }
  if (key == "mixed_precision_policy" && word == "bf16") {
    set("compute_dtype", "bfloat16");
    return Status::ok();
  }
  if (isOffWord(word))
    return Status::ok();
  return notSupported(key, value, "of FSDP is not supported: remove it");
}

Status ParallelSections::addFsdpConfig(const json &value) {
  json config = value;
  if (!value.is_object()) {
    QLORA_ASSIGN_OR_RETURN(config, readJson(foreignNameOf(value)));
  }
  constexpr std::string_view kPrefix = "fsdp_";
  for (const auto &[name, setting] : config.items()) {
    const std::string key =
        name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
    if (!setting.is_null())
      QLORA_RETURN_IF_ERROR(addFsdpKey(key, setting));
  }
  return Status::ok();
}

} // namespace qlora
