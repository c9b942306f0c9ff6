// SPDX-License-Identifier: MIT

// dlopen and dlsym of cuDNN.

#include "runtime/Kernels/Cuda/CudnnApi.h"

#include "runtime/Kernels/Cuda/FindSymbol.h"

#include <dlfcn.h>

#include <string_view>

namespace qlora {

static constexpr const char *kFile = "libcudnn.so.9";
/// 10000 * major + 100 * minor + patch.
static constexpr size_t kMinVersion = 91900;

StatusOr<Cudnn> Cudnn::openFile(const char *file) {
  static constexpr const char *kRemedy =
      "install cuDNN 9 (the package cudnn9-cuda-13, or nvidia-cudnn-cu13 of "
      "PyPI) and name its folder in LD_LIBRARY_PATH";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::error(StatusCode::kUnavailable, "no cuDNN here: {}; {}",
                         dlerror(), kRemedy);
  Cudnn cudnn{};
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "cudnnGetVersion", cudnn.getVersion));
  // Before the other symbols: an old cuDNN lacks some of them.
  if (const size_t version = cudnn.getVersion(); version < kMinVersion)
    return Status::error(StatusCode::kUnavailable,
                         "{} is cuDNN {}.{}, but {}.{} is needed; {}", file,
                         version / 10000, version % 10000 / 100,
                         kMinVersion / 10000, kMinVersion % 10000 / 100,
                         kRemedy);
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, "cudnnGetLastErrorString",
                                   cudnn.getLastErrorString));
#define QLORA_CUDNN(Name, Symbol, Parameters)                                  \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, cudnn.Name));
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return cudnn;
}

StatusOr<const Cudnn *> Cudnn::open() {
  static const StatusOr<Cudnn> cudnn = openFile(kFile);
  QLORA_RETURN_IF_ERROR(cudnn.status());
  return &cudnn.value();
}

Status Cudnn::check(cudnnStatus_t status, const char *what) const {
  if (status == 0)
    return Status::ok();
  char text[512] = {};
  getLastErrorString(text, sizeof text - 1);
  std::string_view reason(text);
  reason = reason.substr(0, reason.find('\n'));
  const bool isMemory = status == kCudnnHostAllocationFailed ||
                        status == kCudnnDeviceAllocationFailed;
  return Status::error(isMemory ? StatusCode::kResourceExhausted
                                : StatusCode::kUnavailable,
                       "{}: cuDNN status {}{}{}", what, status,
                       reason.empty() ? "" : ": ", reason);
}

} // namespace qlora
