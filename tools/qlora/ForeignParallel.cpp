// SPDX-License-Identifier: MIT

// Collects the sections of a file, and keys with the size of an axis.
// ForeignDeepSpeed.cpp and ForeignFsdp.cpp read the sections.

#include "tools/qlora/ForeignParallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionValue.h"
#include "tools/qlora/ForeignParallelSections.h"
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

Status ParallelSections::setAxis(const std::string &name, int64_t size) {
  if (!axis.empty() && (axis != name || axisSize != size))
    return Status::invalid("means {}, but '{}' in line {} means {}; remove one",
                           name, axisSection.key, axisSection.line, axis);
  axis = name;
  axisSize = size;
  axisSection = section;
  return Status::ok();
}

Status ParallelSections::addOffload(const char *what, const json &where) {
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

void ParallelSections::keepInHost(const char *what, const YamlEntry &entry) {
  if (!std::ranges::count(offload, what))
    offload.push_back(what);
  offloadSection = entry;
}

Status ParallelSections::addSize(const YamlEntry &entry,
                                 const std::string &name) {
  const std::string word = foreignNameOf(entry.value);
  StatusOr<int64_t> size = parseNumber<int64_t>(word);
  if (!size.isOk() || *size < 1)
    return Status::invalid("'{}' is not a number of ranks: write 1 or more",
                           word);
  const auto [known, isNew] = sizes.emplace(name, *size);
  if (!isNew && known->second != *size)
    return Status::invalid("is {}, but '{}' in line {} is {}; remove one",
                           *size, sizeEntry.key, sizeEntry.line, known->second);
  sizeEntry = entry;
  return Status::ok();
}

StatusOr<json> ParallelSections::readJson(const std::string &name) const {
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

Status ParallelSections::add(const YamlEntry &entry) {
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
    return checkFsdpVersion(word).withContext(
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
std::string ParallelSections::mesh() const {
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
std::vector<YamlEntry> ParallelSections::options() {
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
  ParallelSections sections(path, ranks);
  for (const YamlEntry &entry : entries)
    QLORA_RETURN_IF_ERROR(sections.add(entry));
  return sections.options();
}

} // namespace qlora
