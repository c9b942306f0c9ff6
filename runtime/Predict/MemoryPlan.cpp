// SPDX-License-Identifier: MIT

// Formats arenas and process memory.

#include "runtime/Predict/MemoryPlan.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/HostMemory.h"
#include "runtime/Module/ParameterCounts.h"

namespace qlora {

using Json = nlohmann::json;

std::string planTable(const std::string &title, std::span<const PlanRow> rows,
                      bool withMeasured) {
  PlanRow total{"total", 0, 0, ""};
  for (const PlanRow &row : rows)
    if (row.isCounted && !row.isPart) {
      total.planned += row.planned;
      total.measured += row.measured;
    }
  auto line = [&](const PlanRow &row) {
    std::string text =
        fmt::format("{}{:<{}} {:>10}", row.isPart ? "    " : "  ", row.name,
                    row.isPart ? 22 : 24, formatBytes(row.planned));
    if (withMeasured && !row.isPart)
      text += fmt::format(" {:>10}", formatBytes(row.measured));
    return text + (row.note.empty() ? "\n" : "  " + row.note + "\n");
  };
  std::string table = fmt::format("{:<26} {:>10}{}\n", title, "plan",
                                  withMeasured ? "   measured" : "");
  std::string beside;
  for (const PlanRow &row : rows)
    (row.isCounted ? table : beside) += line(row);
  return table + line(total) + beside;
}

/// Returns the entry with the largest activations from the plan that the
/// compiler wrote into the program; null if it has none.
static Json largestEntry(const LoadedModule &module) {
  Json largest;
  const char *text = module.table().plan_json;
  const Json plan =
      Json::parse(text ? text : "", nullptr, /*allow_exceptions=*/false);
  uint64_t most = 0;
  if (!plan.is_object() || !plan.value("entries", Json()).is_array())
    return largest;
  for (const Json &entry : plan["entries"]) {
    const Json bytes =
        entry.is_object() ? entry.value("activation_bytes", Json()) : Json();
    if (!bytes.is_number_unsigned() || bytes <= most)
      continue;
    most = bytes;
    largest = entry;
  }
  return largest;
}

std::vector<std::pair<std::string, PlanRow>>
activationParts(const LoadedModule &module) {
  constexpr std::pair<const char *, const char *> kParts[] = {
      {"gathered", "gathered weights"},   {"saved", "saved for the backward"},
      {"recomputed", "recomputed"},       {"decoded", "decoded weights"},
      {"forward", "forward temporaries"}, {"backward", "backward temporaries"}};
  const Json entry = largestEntry(module);
  const Json peak = entry.is_object() ? entry.value("peak", Json()) : Json();
  std::vector<std::pair<std::string, PlanRow>> rows;
  for (const auto &[key, name] : kParts)
    if (peak.is_object() && peak.contains(key) &&
        peak[key].is_number_unsigned())
      rows.push_back({key, {name, peak[key], 0, "", true, true}});
  return rows;
}

static std::vector<PlanRow> arenaRows(const LoadedModule &module,
                                      const Device &device) {
  std::vector<PlanRow> rows;
  for (const ArenaUse &use : device.memory()) {
    rows.push_back(
        {std::string(arenaTitle(use.kind)), use.plannedBytes,
         use.allocatedBytes,
         use.shared ? "one copy for the ranks of this machine"
         : use.onHost && use.kind != QLORA_ARENA_HOST ? "in pinned host memory"
                                                      : "",
         !use.onHost});
    if (use.kind == QLORA_ARENA_ACTIVATION)
      for (auto &[key, row] : activationParts(module))
        rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns rows for memory outside the arenas, which is not in the total.
static std::string reserveLines(const Device &device, bool withMeasured) {
  std::string lines;
  for (const ReserveUse &use : device.gauges().reserve())
    lines += fmt::format("  {:<24} {:>{}}  outside the plan\n", use.name,
                         formatBytes(use.bytes), withMeasured ? 21 : 10);
  return lines;
}

std::string planText(const LoadedModule &module, const Device &device,
                     int ranks) {
  std::string title = ranks == 1
                          ? std::string("memory")
                          : fmt::format("memory per rank, {} ranks", ranks);
  return planTable(title, arenaRows(module, device), /*withMeasured=*/false) +
         reserveLines(device, /*withMeasured=*/false);
}

/// Formats the gradient bytes reduced per step, or per micro-batch if sharded.
static std::string sumsText(const LoadedModule &module) {
  if (module.table().mesh.zero2 == 1)
    return formatBytes(module.arenaBytes(QLORA_ARENA_GRADIENT)) +
           " of gradients per step";
  uint64_t bytes = 0;
  for (const qlora_parameter &parameter : module.parameters())
    if (isTrained(parameter.role))
      bytes += parameter.bytes;
  return formatBytes(bytes) + " of gradients per micro-batch";
}

static std::string updatesText(const LoadedModule &module) {
  const uint32_t updates = module.table().mesh.zero1;
  const uint32_t trained = module.table().mesh.zero2;
  if (trained > 1)
    return fmt::format(", trainable parameters in {} pieces", trained);
  return updates > 1 ? fmt::format(", optimizer states in {} pieces", updates)
                     : "";
}

std::string parallelText(const LoadedModule &module, int ranks) {
  const bool isGpu = module.table().target == QLORA_TARGET_CUDA;
  const std::string base = formatBytes(module.arenaBytes(QLORA_ARENA_FROZEN) +
                                       module.arenaBytes(QLORA_ARENA_HOST));
  if (ranks == 1)
    return fmt::format("one, with the whole base ({}); no reduction", base);
  const std::string sums = sumsText(module);
  const std::string updates = updatesText(module);
  const uint32_t shards = module.table().mesh.fsdp;
  const std::string bases = shards > 1
                                ? fmt::format("a base in {} pieces", shards)
                            : isGpu ? "a whole base per rank"
                                    : "one shared base";
  if (const int together = module.stages(); together > 1)
    return fmt::format(
        "{}pipeline parallel, {} stages; stage {}: {} ({}){}; {}",
        ranks > together ? "data and " : "", together, module.stage(), bases,
        base, updates, sums);
  for (const MeshAxis &axis : kMeshAxes)
    if (const int64_t together = module.groups()[axis.group];
        together > 1 && axis.group != QLORA_GROUP_FSDP)
      return fmt::format("{}{} over {} ranks, {} ({}){}; {}",
                         ranks > together ? "data and " : "",
                         kGroups[axis.group].title, together,
                         module.sliceRanks() == 1 ? bases
                         : shards > 1             ? "slices of " + bases
                                                  : "slices of a base",
                         base, updates, sums);
  if (shards > 1)
    return fmt::format("data parallel, one base per group of {0} ranks, in {0} "
                       "pieces ({1}){2}; {3}",
                       shards, base, updates, sums);
  return fmt::format("data parallel, {} ({}){}; {}", bases, base,
                     updates, sums);
}

static uint64_t arenaBytes(const LoadedModule &module, bool onHost) {
  uint64_t bytes = 0;
  for (const qlora_arena &arena : module.arenas())
    if (isOnHost(arena) == onHost)
      bytes += arena.bytes;
  return bytes;
}

uint64_t RunMemory::planned() const { return arenaBytes(module, false); }
uint64_t RunMemory::plannedOnHost() const { return arenaBytes(module, true); }

/// Bytes of arenas and of the reserve; nullopt if arenas are process memory.
static std::optional<uint64_t> deviceBytes(const Device &device) {
  const std::vector<ReserveUse> reserve = device.gauges().reserve();
  if (reserve.empty())
    return std::nullopt;
  uint64_t bytes = 0;
  for (const ReserveUse &use : reserve)
    bytes += use.bytes;
  for (const ArenaUse &use : device.memory())
    if (!use.onHost)
      bytes += use.allocatedBytes;
  return bytes;
}

uint64_t RunMemory::now() const {
  return deviceBytes(device).value_or(readProcessMemory().residentBytes);
}

uint64_t RunMemory::peak() const {
  return deviceBytes(device).value_or(readProcessMemory().peakBytes);
}

uint64_t RunMemory::predictedPeak() const {
  if (processBytes == 0)
    return 0;
  return predictedPeakBytes(planned() + plannedOnHost() - untouchedBytes,
                            processBytes + bufferBytes);
}

std::string RunMemory::residentText() const {
  constexpr const char *kLine = "  {:<24} {:>10}{}\n";
  std::string text;
  if (bufferBytes > 0)
    text += fmt::format(kLine, "checkpoint buffer", formatBytes(bufferBytes),
                        "  outside the plan, in host memory");
  if (predictedPeak() == 0)
    return text;
  text += fmt::format(kLine, "code, libraries, data", formatBytes(processBytes),
                      "  outside the plan");
  if (untouchedBytes > 0)
    text += fmt::format(kLine, "never used", formatBytes(untouchedBytes),
                        "  of the plan, with this data");
  return text + fmt::format(kLine, "resident at most",
                            formatBytes(predictedPeak()), "");
}

std::string RunMemory::measuredText() const {
  std::string table =
      planTable("memory", arenaRows(module, device), /*withMeasured=*/true);
  return table + reserveLines(device, /*withMeasured=*/true) +
         fmt::format(
             "  {:<24} {:>10} {:>10}  {}code, libraries and weight loading",
             "peak of the process",
             predictedPeak() ? formatBytes(predictedPeak()) : "",
             formatBytes(readProcessMemory().peakBytes),
             device.traits.hasHostArenas ? "arenas, " : "");
}

} // namespace qlora
