// SPDX-License-Identifier: MIT

// Free memory and the processes that hold the rest, in words.

#include "runtime/Device/Cuda/CudaRoom.h"

#include "runtime/Device/Cuda/NvmlApi.h"

namespace qlora {

/// Processes that a line names.
static constexpr size_t kMostNamed = 4;

static std::string sizeText(uint64_t bytes) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  const auto size = static_cast<double>(bytes);
  return size >= kGiB ? fmt::format("{:.1f} GiB", size / kGiB)
                      : fmt::format("{:.1f} MiB", size / kMiB);
}

static std::string processText(const CardProcess &process) {
  const std::string name =
      process.name.empty() ? "" : fmt::format(" ({})", process.name);
  const std::string size =
      process.bytes ? sizeText(*process.bytes) : "an unknown amount";
  return fmt::format("process {}{} holds {}", process.pid, name, size);
}

/// ": process 4711 (python) holds 136.2 GiB; stop it," or as much as is known.
static std::string holdersText(const CudaCard &card) {
  const auto nvml = Nvml::open();
  if (!nvml.isOk())
    return ";";
  const auto processes = otherProcesses(*nvml.value(), card.pciBusId());
  std::string text;
  for (size_t i = 0; i < std::min(processes.size(), kMostNamed); ++i)
    text += (i == 0 ? ": " : ", ") + processText(processes[i]);
  if (processes.size() > kMostNamed)
    text += fmt::format(", and {} more", processes.size() - kMostNamed);
  if (processes.empty())
    return ";";
  return text + (processes.size() == 1 ? "; stop it," : "; stop some,");
}

Status checkRoom(const CudaCard &card, uint64_t plannedBytes) {
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, card.memory());
  if (plannedBytes <= memory.free)
    return Status::ok();
  return Status::error(
      StatusCode::kResourceExhausted,
      "GPU {} ({}) has {} free of {}, the plan needs {}{} choose another GPU "
      "(CUDA_VISIBLE_DEVICES), or compile the model with a smaller "
      "--memory-limit",
      card.ordinal, card.name, sizeText(memory.free), sizeText(memory.total),
      sizeText(plannedBytes), holdersText(card));
}

} // namespace qlora
