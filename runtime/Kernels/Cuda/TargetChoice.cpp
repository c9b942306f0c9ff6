// SPDX-License-Identifier: MIT

// Queries the driver, and looks for a CUDA compiler.

#include "runtime/Kernels/Cuda/TargetChoice.h"

#include <algorithm>
#include <set>

#include "runtime/Base/FindProgram.h"
#include "runtime/Kernels/Cuda/CudaGpu.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora {

/// Cubins for all generations from Ampere on, and PTX for future ones.
static constexpr const char *kAllOfThem[] = {"80",  "89",  "90",
                                             "100", "120", "compute_80"};

static Status checkWords(const std::vector<std::string> &archs) {
  if (archs.empty())
    return Status::invalid(
        "--cuda-arch: expects a value, such as 90 or native");
  for (const char *word : {kNativeArchs, kAllArchs, kNoArchs})
    if (archs.size() > 1 && std::ranges::count(archs, word))
      return Status::invalid(
          "--cuda-arch: '{}' allows no other value; use it alone", word);
  return Status::ok();
}

static bool isWord(const std::vector<std::string> &archs, const char *word) {
  return archs.size() == 1 && archs[0] == word;
}

/// Returns the distinct architectures of this machine's GPUs, ascending.
static StatusOr<std::vector<std::string>> nativeArchs() {
  auto gpus = visibleGpus();
  if (!gpus.isOk())
    return Status::error(
        gpus.status().code(),
        "--target cuda needs a GPU of this machine: {}; for another machine, "
        "name its architecture (qloracc --cuda-arch 90)",
        gpus.status().message());
  std::set<uint32_t> archs;
  for (const GpuName &gpu : *gpus)
    archs.insert(gpu.arch);
  std::vector<std::string> names;
  for (const uint32_t arch : archs)
    names.push_back(std::to_string(arch));
  return names;
}

static StatusOr<std::vector<std::string>>
resolvedArchs(const std::vector<std::string> &archs) {
  if (isWord(archs, kNativeArchs))
    return nativeArchs();
  if (isWord(archs, kNoArchs))
    return std::vector<std::string>();
  return isWord(archs, kAllArchs)
             ? std::vector<std::string>(std::begin(kAllOfThem),
                                        std::end(kAllOfThem))
             : archs;
}

/// Returns the target for `auto`. Sets `warning` if it leaves a GPU idle.
static std::string automaticTarget(const TargetRequest &request,
                                   std::string &warning) {
  auto gpus = visibleGpus();
  if (!gpus.isOk()) {
    if (gpus.status().code() != StatusCode::kNotFound)
      warning = "idle GPU: --target auto compiles for the CPU: " +
                gpus.status().message();
    return "cpu";
  }
  if (!request.hasCompiler)
    return "cuda";
  const auto compiler = findCudaCompiler(request.cudaCompiler);
  if (compiler.isOk())
    return "cuda";
  warning = fmt::format("idle GPU: {}: --target auto compiles for the CPU: {}",
                        gpuText(*gpus), compiler.status().message());
  return "cpu";
}

StatusOr<TargetChoice> chooseTarget(const TargetRequest &request) {
  QLORA_RETURN_IF_ERROR(checkWords(request.archs));
  TargetChoice choice{request.target, {}, ""};
  const bool namesArch = !isWord(request.archs, kNativeArchs) &&
                         !isWord(request.archs, kNoArchs);
  if (choice.target == "auto" && namesArch)
    choice.target = "cuda";
  if (choice.target == "auto" && !request.profile.empty()) {
    QLORA_ASSIGN_OR_RETURN(const DeviceProfile profile,
                           findDeviceProfile(request.profile));
    choice.target = profile.gpu ? "cuda" : "cpu";
  }
  if (choice.target == "auto")
    choice.target = automaticTarget(request, choice.warning);
  if (choice.target == "cuda" && request.hasKernels) {
    QLORA_ASSIGN_OR_RETURN(choice.archs, resolvedArchs(request.archs));
  }
  return choice;
}

} // namespace qlora
