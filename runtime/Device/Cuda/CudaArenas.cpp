// SPDX-License-Identifier: MIT

// Allocates arenas once. If the GPU has too little free memory, the error lists
// the processes that hold memory.

#include "runtime/Device/Cuda/CudaArenas.h"

#include "runtime/Device/Cuda/NvmlApi.h"
#include "runtime/Module/ModuleLoader.h"

#include <cstring>

namespace qlora {

/// Alignment in bytes that cuMemAlloc always gives.
static constexpr uint64_t kNaturalAlignment = 256;

/// Maximum number of processes that a message names.
static constexpr size_t kMostNamed = 4;

static std::string sizeText(uint64_t bytes) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  const auto size = static_cast<double>(bytes);
  return size >= kGiB ? fmt::format("{:.1f} GiB", size / kGiB)
                      : fmt::format("{:.1f} MiB", size / kMiB);
}

static std::string processText(const GpuProcess &process) {
  const std::string name =
      process.name.empty() ? "" : fmt::format(" ({})", process.name);
  const std::string size =
      process.bytes ? sizeText(*process.bytes) : "an unknown amount";
  return fmt::format("process {}{} holds {}", process.pid, name, size);
}

/// Returns ": process 4711 (python) holds 136.2 GiB" for the processes that
/// NVML names, or an empty text if it names none.
static std::string holdersText(const CudaGpu &gpu) {
  const auto nvml = Nvml::open();
  if (!nvml.isOk())
    return "";
  const auto processes = otherProcesses(*nvml.value(), gpu.pciBusId());
  std::string text;
  for (size_t i = 0; i < std::min(processes.size(), kMostNamed); ++i)
    text += (i == 0 ? ": " : ", ") + processText(processes[i]);
  if (processes.size() > kMostNamed)
    text += fmt::format(", and {} more", processes.size() - kMostNamed);
  return text;
}

/// Returns kResourceExhausted if a GPU has less than `plannedBytes` free. The
/// message is one line, without processes if NVML names none:
///
///   GPU 0 (NVIDIA H200) has 3.1 GiB free of 139.8 GiB, but the plan needs
///   24.0 GiB: process 4711 (python) holds 136.2 GiB. Fix: stop other
///   processes on this GPU, choose another GPU (CUDA_VISIBLE_DEVICES), or
///   compile the model with a smaller --memory-limit
static Status checkRoom(const CudaGpu &gpu, uint64_t plannedBytes) {
  QLORA_ASSIGN_OR_RETURN(const CudaMemoryInfo memory, gpu.memory());
  if (plannedBytes <= memory.free)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "GPU {} ({}) has {} free of {}, but the plan needs "
                       "{}{}. Fix: stop other processes on this GPU, choose "
                       "another GPU (CUDA_VISIBLE_DEVICES), or compile the "
                       "model with a smaller --memory-limit",
                       gpu.ordinal, gpu.name, sizeText(memory.free),
                       sizeText(memory.total), sizeText(plannedBytes),
                       holdersText(gpu));
}

static double asMiB(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

static StatusOr<CudaMemory> allocateMemory(const CudaDriver &driver,
                                           uint64_t bytes) {
  CUdeviceptr address = 0;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.memAlloc(&address, bytes), "cuMemAlloc"));
  return CudaMemory(driver, address);
}

/// Adds the arena to an error; if memory is exhausted, also sizes and free
/// bytes.
static Status explain(const Status &status, const qlora_arena &arena,
                      const CudaGpu &gpu) {
  const auto memory = gpu.memory();
  if (status.code() != StatusCode::kResourceExhausted || !memory.isOk())
    return status.withContext(
        fmt::format("{} arena", arenaKindName(arena.kind)));
  return Status::error(
      StatusCode::kResourceExhausted,
      "{} arena: cannot get {} bytes ({:.1f} MiB): {} has {:.1f} of {:.1f} MiB "
      "free; compile the model with a smaller --memory-limit ({})",
      arenaKindName(arena.kind), arena.bytes, asMiB(arena.bytes), gpu.name,
      asMiB(memory->free), asMiB(memory->total), status.message());
}

/// Allocates an arena in pinned host memory, which kernels access over the bus.
/// The memory begins at a page boundary, which satisfies every alignment.
Status CudaArenas::allocateHost(const CudaDriver &driver,
                                const qlora_arena &arena) {
  void *mapped = nullptr;
  const Status status = driver.check(
      driver.memHostAlloc(&mapped, arena.bytes, kCudaHostMapped),
      "cuMemHostAlloc");
  if (!status.isOk())
    return Status::error(
        status.code(),
        "{} arena: cannot get {} bytes ({:.1f} MiB) of pinned host memory; "
        "compile the model with less of --offload, or --offload-embedding "
        "false ({})",
        arenaKindName(arena.kind), arena.bytes, asMiB(arena.bytes),
        status.message());
  hostMemory.back() = CudaHostMemory(driver, mapped);
  // Zero the memory from the host, before any stream uses it. Frozen arenas
  // need no zeros, because loading overwrites all bytes.
  if (!isFrozenArena(arena.kind))
    std::memset(mapped, 0, arena.bytes);
  return driver.check(
      driver.memHostGetDevicePointer(&addresses.back(), mapped, 0),
      "cuMemHostGetDevicePointer");
}

Status CudaArenas::allocateArena(const CudaDriver &driver,
                                 const qlora_arena &arena, const CudaGpu &gpu,
                                 CUstream stream) {
  memory.emplace_back();
  hostMemory.emplace_back();
  addresses.push_back(0);
  sizes.push_back(arena.bytes);
  if (arena.bytes == 0)
    return Status::ok();
  if (isOnHost(arena))
    return allocateHost(driver, arena);
  const uint64_t spare =
      arena.alignment > kNaturalAlignment ? arena.alignment : 0;
  auto allocated = allocateMemory(driver, arena.bytes + spare);
  if (!allocated.isOk())
    return explain(allocated.status(), arena, gpu);
  memory.back() = std::move(*allocated);
  const CUdeviceptr base = memory.back().get();
  addresses.back() =
      spare == 0 ? base
                 : (base + spare - 1) / arena.alignment * arena.alignment;
  return driver.check(
      driver.memsetD8Async(addresses.back(), 0, arena.bytes, stream),
      "cuMemsetD8Async");
}

Status CudaArenas::allocate(const CudaDriver &driver,
                            std::span<const qlora_arena> arenas,
                            const CudaGpu &gpu, CUstream stream) {
  uint64_t planned = 0;
  for (const qlora_arena &arena : arenas)
    planned += isOnHost(arena) ? 0 : arena.bytes;
  QLORA_RETURN_IF_ERROR(checkRoom(gpu, planned));
  for (const qlora_arena &arena : arenas)
    QLORA_RETURN_IF_ERROR(allocateArena(driver, arena, gpu, stream));
  QLORA_ASSIGN_OR_RETURN(stepMemory,
                         allocateMemory(driver, sizeof(qlora_step_block)));
  return Status::ok();
}

uint64_t CudaArenas::totalBytes() const {
  uint64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    total += hostMemory[i] ? 0 : sizes[i];
  return total;
}

std::vector<uint8_t *> CudaArenas::bases() const {
  std::vector<uint8_t *> result;
  for (const CUdeviceptr address : addresses)
    result.push_back(reinterpret_cast<uint8_t *>(address));
  return result;
}

std::vector<CudaSpan> CudaArenas::spans() const {
  std::vector<CudaSpan> spans;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (memory[i])
      spans.push_back({addresses[i], sizes[i]});
  return spans;
}

} // namespace qlora
