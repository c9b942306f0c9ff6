// SPDX-License-Identifier: MIT

// Reads DeepSpeed and FSDP sections of transformers, accelerate and axolotl,
// and keys with the size of an axis.

#include "tools/qlora/ForeignParallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "tools/qlora/ForeignRows.h"

namespace qlora {

using json = nlohmann::ordered_json;

static constexpr const char *kSectionKeys =
    "deepspeed fsdp fsdp_config fsdp_version";

/// Keys with ranks of an axis, of axolotl and of LLaMA-Factory's Megatron.
static constexpr std::pair<std::string_view, const char *> kSizes[] = {
    {"tensor_parallel_size", "tp"},
    {"tensor_model_parallel_size", "tp"},
    {"context_parallel_size", "cp"},
    {"sequence_parallel_degree", "cp"},
    {"pipeline_model_parallel_size", "pp"},
    {"expert_parallel_size", "ep"},
    {"expert_model_parallel_size", "ep"},
    {"dp_shard_size", "shard"},
    {"dp_replicate_size", "replicate"}};
/// Keys that keep tensors in host memory, with the value of --offload.
static constexpr std::pair<std::string_view, const char *> kOffloads[] = {
    {"activation_offloading", "activations"}, {"layer_offloading", "base"}};
static constexpr std::string_view kVirtualStages =
    "virtual_pipeline_model_parallel_size";

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

/// Keys of FSDP, without the prefix fsdp_, that affect only speed and memory.
static constexpr const char *kFsdpSame =
    "auto_wrap_policy transformer_layer_cls_to_wrap min_num_params "
    "backward_prefetch backward_prefetch_policy forward_prefetch "
    "limit_all_gathers state_dict_type final_state_dict_type "
    "sync_module_states cpu_ram_efficient_loading cpu_offload_pin_memory "
    "use_orig_params";

static bool isWordOf(const char *words, std::string_view word) {
  return std::ranges::count(splitWords(words), word) != 0;
}

/// Returns the second value of the pair whose first value is the key, or null.
static const char *
valueOf(std::span<const std::pair<std::string_view, const char *>> pairs,
        std::string_view key) {
  for (const auto &[name, value] : pairs)
    if (name == key)
      return value;
  return nullptr;
}

bool isParallelKey(std::string_view key) {
  return isWordOf(kSectionKeys, key) || valueOf(kSizes, key) ||
         valueOf(kOffloads, key) || key == kVirtualStages;
}

bool offloadsCheckpoints(const YamlEntry &entry) {
  return entry.key == "gradient_checkpointing" &&
         isWordOf("offload offload_disk unsloth", foreignNameOf(entry.value));
}

static Status notSupported(std::string_view key, const json &value,
                           std::string_view words) {
  return Status::invalid("'{}: {}' {}", key, foreignNameOf(value), words);
}

namespace {
/// Translates the sections of a file and collects the resulting options.
class Sections {
public:
  Sections(const std::string &path, RankCounts ranks)
      : path(path), ranks(ranks) {}

  Status add(const YamlEntry &entry);
  std::vector<YamlEntry> options();

private:
  Status addDeepSpeed(const json &value);
  Status addDeepSpeedConfig(const json &config);
  Status addZero(const json &zero);
  Status addStage(const std::string &stage);
  Status addOffload(const char *what, const json &where);
  Status addFsdpWords(const json &value);
  Status addFsdpConfig(const json &config);
  Status addFsdpKey(const std::string &key, const json &value);
  Status addStrategy(std::string word);
  Status addSize(const YamlEntry &entry, const std::string &name);
  std::string mesh() const;
  void keepInHost(const char *what, const YamlEntry &entry);
  Status setAxis(const std::string &axis, int64_t size);
  StatusOr<json> readJson(const std::string &name) const;
  void set(const char *option, json value) {
    entries.push_back({option, std::move(value), section.line, section.key});
  }

  const std::string &path;
  RankCounts ranks;
  YamlEntry section; ///< the section that is being read
  std::string axis;  ///< axis of --parallel, or "none"; empty: not given
  YamlEntry axisSection;
  int64_t axisSize = 0;
  std::vector<YamlEntry> entries;
  std::vector<std::string> offload; ///< values of --offload, each once
  YamlEntry offloadSection;
  std::map<std::string, int64_t> sizes; ///< by axis, of kSizes
  YamlEntry sizeEntry;                  ///< the last key with a size
};
} // namespace

Status Sections::setAxis(const std::string &name, int64_t size) {
  if (!axis.empty() && (axis != name || axisSize != size))
    return Status::invalid("means {}, but '{}' in line {} means {}; remove one",
                           name, axisSection.key, axisSection.line, axis);
  axis = name;
  axisSize = size;
  axisSection = section;
  return Status::ok();
}

Status Sections::addStage(const std::string &stage) {
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

Status Sections::addOffload(const char *what, const json &where) {
  std::string device = where.is_object()
                           ? foreignNameOf(where.value("device", json("none")))
                           : foreignNameOf(where);
  if (device == "none" || device == "false")
    return Status::ok();
  if (device != "cpu" && device != "true")
    return Status::invalid(
        "offloads to '{}', but --offload uses host memory only: write cpu",
        device);
  if (where.is_object())
    for (const auto &[key, value] : where.items())
      if (key == "ratio" && foreignNameOf(value) != "1" &&
          foreignNameOf(value) != "1.0")
        return notSupported(key, value, "is not supported: remove it");
  keepInHost(what, section);
  return Status::ok();
}

void Sections::keepInHost(const char *what, const YamlEntry &entry) {
  if (!std::ranges::count(offload, what))
    offload.push_back(what);
  offloadSection = entry;
}

Status Sections::addSize(const YamlEntry &entry, const std::string &name) {
  const std::string word = foreignNameOf(entry.value);
  int64_t size = 0;
  const auto [end, error] =
      std::from_chars(word.data(), word.data() + word.size(), size);
  if (error != std::errc() || end != word.data() + word.size() || size < 1)
    return Status::invalid("'{}' is not a number of ranks: write 1 or more",
                           word);
  const auto [known, isNew] = sizes.emplace(name, size);
  if (!isNew && known->second != size)
    return Status::invalid("is {}, but '{}' in line {} is {}; remove one", size,
                           sizeEntry.key, sizeEntry.line, known->second);
  sizeEntry = entry;
  return Status::ok();
}

Status Sections::addZero(const json &zero) {
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
Status Sections::addDeepSpeedConfig(const json &config) {
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

StatusOr<json> Sections::readJson(const std::string &name) const {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string file = (fs::path(path).parent_path() / name).string();
  if (!fs::exists(file, ignored) && fs::exists(name, ignored))
    file = name;
  if (!fs::exists(file, ignored))
    return Status::invalid(
        "'{}' is not a file; write {} instead, or parallel: fsdp=N", name,
        section.key == "deepspeed" ? "zero1, zero2 or zero3"
                                   : "the keys of FSDP");
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(file));
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object())
    return Status::invalid("'{}' is not a JSON object", file);
  return value;
}

Status Sections::addDeepSpeed(const json &value) {
  if (value.is_object())
    return addDeepSpeedConfig(value);
  const std::string name = foreignNameOf(value);
  if (name.starts_with("zero") && name.size() == 5)
    return addStage(name.substr(4));
  QLORA_ASSIGN_OR_RETURN(const json config, readJson(name));
  return addDeepSpeedConfig(config).withContext(name);
}

/// Reads the name or number of a torch.distributed.fsdp.ShardingStrategy.
Status Sections::addStrategy(std::string word) {
  static constexpr const char *kNumbered[] = {
      "full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
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
Status Sections::addFsdpWords(const json &value) {
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

/// Accepts FSDP versions 1 and 2. qlora shards the same tensors for both.
static Status checkVersion(const std::string &word) {
  if (word == "1" || word == "2")
    return Status::ok();
  return Status::invalid("'{}' is not a version of FSDP: write 1 or 2", word);
}

Status Sections::addFsdpKey(const std::string &key, const json &value) {
  const std::string word = foreignNameOf(value);
  if (key == "version")
    return checkVersion(word);
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

Status Sections::addFsdpConfig(const json &value) {
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

Status Sections::add(const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  if (offloadsCheckpoints(entry))
    keepInHost("activations", entry);
  if (!isParallelKey(entry.key) || isOffWord(word))
    return Status::ok();
  if (const char *what = valueOf(kOffloads, entry.key))
    return keepInHost(what, entry), Status::ok();
  if (const char *name = valueOf(kSizes, entry.key))
    return addSize(entry, name)
        .withContext(fmt::format("{}:{}: '{}'", path, entry.line, entry.key));
  if (entry.key == kVirtualStages) {
    entries.push_back({"num_virtual_stages_per_pipeline_rank", entry.value,
                       entry.line, entry.key});
    return Status::ok();
  }
  if (entry.key == "fsdp_version")
    return checkVersion(word).withContext(
        fmt::format("{}:{}: '{}'", path, entry.line, entry.key));
  section = entry;
  const Status status = entry.key == "deepspeed" ? addDeepSpeed(entry.value)
                        : entry.key == "fsdp"    ? addFsdpWords(entry.value)
                                                 : addFsdpConfig(entry.value);
  if (!status.isOk())
    return status.withContext(
        fmt::format("{}:{}: '{}'", path, entry.line, entry.key));
  return Status::ok();
}

/// Returns the value of --parallel. Ranks of tp, cp and pp share the rows that
/// one rank of the sections has, and cp shards weights with them.
std::string Sections::mesh() const {
  const auto sizeOf = [&](const char *name) {
    const auto found = sizes.find(name);
    return found == sizes.end() ? 1 : found->second;
  };
  int64_t sharded = axis == "none" ? 1 : axisSize;
  if (sizes.contains("shard") && axis != "none")
    sharded = sizeOf("shard") * sizeOf("cp");
  else if (sharded == ranks.all)
    sharded /= sizeOf("tp") * sizeOf("pp") * sizeOf("replicate");
  std::string text;
  if (sharded > 1)
    text = fmt::format("{}={}", axis, sharded);
  for (const char *name : {"tp", "cp", "pp", "ep"})
    if (sizeOf(name) > 1)
      text +=
          fmt::format("{}{}={}", text.empty() ? "" : ",", name, sizeOf(name));
  return text.empty() ? "none" : text;
}

/// Returns all options. FSDP without a strategy means full sharding.
std::vector<YamlEntry> Sections::options() {
  std::vector<YamlEntry> all = entries;
  if (axis.empty() && (section.line != 0 || sizes.contains("shard"))) {
    axis = "fsdp";
    axisSize = ranks.all;
    axisSection = section.line != 0 ? section : sizeEntry;
  }
  const YamlEntry &from = axis.empty() ? sizeEntry : axisSection;
  if (!axis.empty() || !sizes.empty())
    all.push_back({"parallel", mesh(), from.line, from.key});
  if (!offload.empty())
    all.push_back({"offload", json(offload), offloadSection.line,
                   offloadSection.key});
  return all;
}

StatusOr<std::vector<YamlEntry>>
translateParallel(std::span<const YamlEntry> entries, const std::string &path,
                  RankCounts ranks) {
  Sections sections(path, ranks);
  for (const YamlEntry &entry : entries)
    QLORA_RETURN_IF_ERROR(sections.add(entry));
  return sections.options();
}

} // namespace qlora
