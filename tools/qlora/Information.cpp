// SPDX-License-Identifier: MIT

// `qlora info`: CPU, GPU libraries, tools and caches of this machine.

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/CpuCount.h"
#include "runtime/Base/FindProgram.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "tools/qlora/Commands.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static std::string cpuLevel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4"))
    return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3"))
    return "x86-64-v3";
  if (__builtin_cpu_supports("x86-64-v2"))
    return "x86-64-v2";
#endif
  return "baseline";
}

static bool hasLibrary(const char *name) {
  void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  if (library)
    dlclose(library);
  return library != nullptr;
}

static std::string toolLine(const char *tool, const char *missing) {
  const auto path = findTool(tool);
  return fmt::format("  {:<15} {}\n", tool,
                     path.isOk() ? path.value() : missing);
}

static uint64_t bytesIn(const fs::path &folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code gone; // another run may just have deleted it
    if (const uint64_t size = entry->file_size(gone); !gone)
      bytes += size;
  }
  return bytes;
}

static std::string gpuLines() {
  static constexpr struct {
    const char *what, *library, *missing;
  } kLibraries[] = {
      {"driver", "libcuda.so.1", "missing: no training on a GPU"},
      {"cuBLASLt 12", "libcublasLt.so.12", "not found"},
      {"cuBLASLt 13", "libcublasLt.so.13", "not found"},
      {"cuDNN 9", "libcudnn.so.9", "not found: attention uses slower kernels"},
      {"NCCL", "libnccl.so.2", "not found: one GPU at a time"},
      {"NVML", "libnvidia-ml.so.1", "not found: no readings of the GPU"},
  };
  auto gpus = visibleGpus();
  auto compiler = findCudaCompiler("");
  std::string text = "GPU\n";
  text += fmt::format("  {:<15} {}\n", "usable GPUs",
                      gpus.isOk() ? gpuText(*gpus)
                                  : "none: " + gpus.status().message());
  text += fmt::format("  {:<15} {}\n", "nvcc",
                      compiler.isOk() ? *compiler
                                      : compiler.status().message());
  for (const auto &[what, library, missing] : kLibraries)
    text += fmt::format("  {:<15} {}\n", what,
                        hasLibrary(library) ? library : missing);
  return text;
}

std::string machineInformation() {
  std::string text = "qlora " QLORA_VERSION "\nCPU\n";
  text += fmt::format("  {:<15} {}\n", "name", processorName());
  text += fmt::format("  {:<15} {}\n", "level", cpuLevel());
  text += fmt::format("  {:<15} {}\n", "usable CPUs", usableCpus());
  text += gpuLines() + "Tools\n";
  text += toolLine("qlora-run", "missing: nothing can be trained");
  for (const char *tool : {"qlora-import", "qloracc"})
    text += toolLine(tool, "missing: only compiled programs can run");
  text += toolLine("qlora-data", "missing: JSONL files cannot be read");
  const std::string cache = userCacheFolder();
  text += fmt::format("Caches in {}\n", cache.empty() ? "no folder" : cache);
  std::error_code ignored;
  for (fs::directory_iterator entry(cache, ignored), end;
       !cache.empty() && !ignored && entry != end; entry.increment(ignored))
    text += fmt::format("  {:<15} {}\n", entry->path().filename().string(),
                        formatBytes(bytesIn(entry->path())));
  return text;
}

} // namespace qlora
