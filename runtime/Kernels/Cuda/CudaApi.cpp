// SPDX-License-Identifier: MIT

// Opens NVIDIA's libraries with dlopen and dlsym, and formats their errors.

#include "runtime/Kernels/Cuda/CudaApi.h"

#include <string_view>

namespace qlora {

static constexpr const char *kDriverFile = "libcuda.so.1";
static constexpr const char *kBlasFiles[] = {"libcublasLt.so.13",
                                             "libcublasLt.so.12"};
/// 1000 * major + 10 * minor.
static constexpr int kMinDriverVersion = 12000;
/// 10000 * major + 100 * minor.
static constexpr size_t kMinBlasVersion = 120000;
static constexpr const char *kCudnnFile = "libcudnn.so.9";
/// 10000 * major + 100 * minor + patch.
static constexpr size_t kMinCudnnVersion = 91900;

template <typename... Args>
static Status unavailable(fmt::format_string<Args...> format, Args &&...args) {
  return Status::unavailable(format, std::forward<Args>(args)...);
}

StatusOr<CudaDriver> CudaDriver::openFile(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::notFound(
        "no CUDA driver here: {}; install NVIDIA's driver, or "
        "compile the model with --target cpu",
        dlerror());
  CudaDriver driver{};
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "cuDriverGetVersion", driver.driverGetVersion));
  int version = 0;
  if (CUresult result = driver.driverGetVersion(&version))
    return unavailable("{}: cuDriverGetVersion fails with error {}", file,
                       result);
  // Check the version first: an old driver lacks some of the symbols below.
  if (version < kMinDriverVersion)
    return unavailable("NVIDIA's driver is for CUDA {}.{}, but {}.{} is needed;"
                       " update the driver",
                       version / 1000, version % 1000 / 10,
                       kMinDriverVersion / 1000, kMinDriverVersion % 1000 / 10);
#define QLORA_DRIVER(Name, Symbol, Parameters)                                 \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, driver.Name));
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
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
  if (result == kCudaOutOfMemory)
    code = StatusCode::kResourceExhausted;
  if (result >= kCudaFirstOfCapture && result <= kCudaLastOfCapture)
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
  // CudaSymbols.inc lacks this function, because it returns no status.
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
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return blas;
}

std::span<const char *const> CublasLt::filesFor(int driverVersion) {
  return std::span(kBlasFiles).subspan(driverVersion < 13000 ? 1 : 0);
}

static StatusOr<CublasLt> openBlas() {
  QLORA_ASSIGN_OR_RETURN(const CudaDriver *driver, CudaDriver::open());
  int version = 0;
  QLORA_RETURN_IF_ERROR(driver->check(driver->driverGetVersion(&version),
                                      "cuDriverGetVersion"));
  return CublasLt::openFirst(CublasLt::filesFor(version));
}

StatusOr<const CublasLt *> CublasLt::open() {
  static const StatusOr<CublasLt> blas = openBlas();
  QLORA_RETURN_IF_ERROR(blas.status());
  return &blas.value();
}

static std::string_view blasStatusName(cublasStatus_t status) {
  switch (status) {
    QLORA_CUBLAS_STATUSES(QLORA_RETURN_NAME)
  default:
    return "unknown status";
  }
}

Status CublasLt::check(cublasStatus_t status, const char *what) const {
  if (status == 0)
    return Status::ok();
  StatusCode code = StatusCode::kInternal;
  if (status == kCublasAllocationFailed)
    code = StatusCode::kResourceExhausted;
  if (status == kCublasNotSupported || status == kCublasArchMismatch)
    code = StatusCode::kUnavailable;
  return Status::error(code, "{}: {} ({})", what, blasStatusName(status),
                       status);
}

StatusOr<Cudnn> Cudnn::openFile(const char *file) {
  static constexpr const char *kRemedy =
      "install cuDNN 9 (the package cudnn9-cuda-13, or nvidia-cudnn-cu13 of "
      "PyPI) and name its folder in LD_LIBRARY_PATH";
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return unavailable("no cuDNN here: {}; {}", dlerror(), kRemedy);
  Cudnn cudnn{};
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "cudnnGetVersion", cudnn.getVersion));
  // Check the version first: an old cuDNN lacks some of the symbols below.
  if (const size_t version = cudnn.getVersion(); version < kMinCudnnVersion)
    return unavailable("{} is cuDNN {}.{}, but {}.{} is needed; {}", file,
                       version / 10000, version % 10000 / 100,
                       kMinCudnnVersion / 10000, kMinCudnnVersion % 10000 / 100,
                       kRemedy);
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, "cudnnGetLastErrorString",
                                   cudnn.getLastErrorString));
#define QLORA_CUDNN(Name, Symbol, Parameters)                                  \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, cudnn.Name));
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return cudnn;
}

StatusOr<const Cudnn *> Cudnn::open() {
  static const StatusOr<Cudnn> cudnn = openFile(kCudnnFile);
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
