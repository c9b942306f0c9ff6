// SPDX-License-Identifier: MIT

// dlopen, dlsym, and NVIDIA's error codes in words.

#include "runtime/Device/Cuda/CudaApi.h"

#include "runtime/Device/Cuda/FindSymbol.h"

#include <dlfcn.h>

#include <string_view>

namespace qlora {

static constexpr const char *kDriverFile = "libcuda.so.1";
static constexpr const char *kBlasFiles[] = {"libcublasLt.so.13",
                                             "libcublasLt.so.12"};
/// 1000 * major + 10 * minor.
static constexpr int kMinDriverVersion = 12000;
/// 10000 * major + 100 * minor.
static constexpr size_t kMinBlasVersion = 120000;

static constexpr CUresult kOutOfMemory = 2;
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to _WRONG_THREAD.
static constexpr CUresult kFirstOfCapture = 900, kLastOfCapture = 908;
static constexpr cublasStatus_t kBlasAllocationFailed = 3;
static constexpr cublasStatus_t kBlasArchMismatch = 8;
static constexpr cublasStatus_t kBlasNotSupported = 15;

template <typename... Args>
static Status unavailable(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kUnavailable, format,
                       std::forward<Args>(args)...);
}

StatusOr<CudaDriver> CudaDriver::openFile(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return unavailable("no CUDA driver here: {}; install NVIDIA's driver, or "
                       "compile the model with --target cpu",
                       dlerror());
  CudaDriver driver{};
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "cuDriverGetVersion", driver.driverGetVersion));
  int version = 0;
  if (CUresult result = driver.driverGetVersion(&version))
    return unavailable("{}: cuDriverGetVersion fails with error {}", file,
                       result);
  // Before the other symbols: an old driver lacks some of them.
  if (version < kMinDriverVersion)
    return unavailable("NVIDIA's driver is for CUDA {}.{}, but {}.{} is needed;"
                       " update the driver",
                       version / 1000, version % 1000 / 10,
                       kMinDriverVersion / 1000, kMinDriverVersion % 1000 / 10);
#define QLORA_DRIVER(Name, Symbol, Parameters)                                 \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, driver.Name));
#include "runtime/Device/Cuda/CudaSymbols.inc"
  return driver;
}

StatusOr<const CudaDriver *> CudaDriver::open() {
  static const StatusOr<CudaDriver> driver = openFile(kDriverFile);
  QLORA_RETURN_IF_ERROR(driver.status());
  return &driver.value();
}

Status CudaDriver::check(CUresult result, const char *what) const {
  if (result == 0)
    return Status::ok();
  const char *name = nullptr;
  const char *text = nullptr;
  if (getErrorName(result, &name) != 0 || !name)
    name = "unknown error";
  if (getErrorString(result, &text) != 0 || !text)
    text = "no description";
  StatusCode code = StatusCode::kInternal;
  if (result == kOutOfMemory)
    code = StatusCode::kResourceExhausted;
  if (result >= kFirstOfCapture && result <= kLastOfCapture)
    code = StatusCode::kUnavailable;
  return Status::error(code, "{}: {} ({}): {}", what, name, result, text);
}

StatusOr<CublasLt> CublasLt::openFirst(std::span<const char *const> files) {
  void *library = nullptr;
  const char *file = nullptr;
  std::string reasons;
  for (const char *candidate : files) {
    library = dlopen(file = candidate, RTLD_NOW | RTLD_LOCAL);
    if (library)
      break;
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  if (!library)
    return unavailable("no cuBLAS here: {}; install cuBLAS 12 or 13 (a part of "
                       "the CUDA toolkit) and name its folder in "
                       "LD_LIBRARY_PATH",
                       reasons);
  CublasLt blas{};
  // It returns no status, so it is in no table.
  size_t (*getVersion)() = nullptr;
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "cublasLtGetVersion", getVersion));
  blas.version = getVersion();
  if (blas.version < kMinBlasVersion)
    return unavailable("{} is cuBLAS {}.{}, but {}.{} is needed; install "
                       "cuBLAS 12 or 13 (a part of the CUDA toolkit)",
                       file, blas.version / 10000, blas.version % 10000 / 100,
                       kMinBlasVersion / 10000, kMinBlasVersion % 10000 / 100);
#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, blas.Name));
#include "runtime/Device/Cuda/CudaSymbols.inc"
  return blas;
}

StatusOr<const CublasLt *> CublasLt::open() {
  static const StatusOr<CublasLt> blas = openFirst(kBlasFiles);
  QLORA_RETURN_IF_ERROR(blas.status());
  return &blas.value();
}

static std::string_view blasStatusName(cublasStatus_t status) {
  switch (status) {
  case 1:
    return "CUBLAS_STATUS_NOT_INITIALIZED";
  case kBlasAllocationFailed:
    return "CUBLAS_STATUS_ALLOC_FAILED";
  case 7:
    return "CUBLAS_STATUS_INVALID_VALUE";
  case kBlasArchMismatch:
    return "CUBLAS_STATUS_ARCH_MISMATCH";
  case 11:
    return "CUBLAS_STATUS_MAPPING_ERROR";
  case 13:
    return "CUBLAS_STATUS_EXECUTION_FAILED";
  case 14:
    return "CUBLAS_STATUS_INTERNAL_ERROR";
  case kBlasNotSupported:
    return "CUBLAS_STATUS_NOT_SUPPORTED";
  default:
    return "unknown status";
  }
}

Status CublasLt::check(cublasStatus_t status, const char *what) const {
  if (status == 0)
    return Status::ok();
  StatusCode code = StatusCode::kInternal;
  if (status == kBlasAllocationFailed)
    code = StatusCode::kResourceExhausted;
  if (status == kBlasNotSupported || status == kBlasArchMismatch)
    code = StatusCode::kUnavailable;
  return Status::error(code, "{}: {} ({})", what, blasStatusName(status),
                       status);
}

} // namespace qlora
