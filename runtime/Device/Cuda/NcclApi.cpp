// SPDX-License-Identifier: MIT

// Opens NCCL, checks its version, and describes its errors.

#include "runtime/Device/Cuda/NcclApi.h"

#include "runtime/Kernels/Cuda/CudaApi.h"

#include <string_view>

namespace qlora {

static constexpr const char *kNcclFile = "libnccl.so.2";
/// Versions are 10000 * major + 100 * minor + patch; NCCL up to 2.8 reports
/// 1000 * major + 100 * minor + patch.
static constexpr int kMinVersion = 21400;
static constexpr int kFirstLongVersion = 10000;

static Status tooOld(const char *file, int version) {
  const int unit = version < kFirstLongVersion ? 1000 : 10000;
  return Status::unavailable(
      "{} is NCCL {}.{}.{}, but {}.{} or later is needed; "
      "update it, or use --gpus 1",
      file, version / unit, version % unit / 100, version % 100,
      kMinVersion / 10000, kMinVersion % 10000 / 100);
}

StatusOr<Nccl> Nccl::openFile(const char *file) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::unavailable(
        "more than one GPU needs NCCL, but {} cannot be "
        "opened ({}); install libnccl2 2.14 or later and "
        "name its folder in LD_LIBRARY_PATH, or use --gpus 1",
        file, dlerror());
  Nccl nccl{};
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "ncclGetVersion", nccl.getVersion));
  int version = 0;
  if (ncclResult_t result = nccl.getVersion(&version))
    return Status::unavailable(
        "{}: ncclGetVersion fails with error {}; install "
        "libnccl2 again, or use --gpus 1",
        file, result);
  // Check before the other symbols: an old library lacks some of them.
  if (version < kMinVersion)
    return tooOld(file, version);
  nccl.version = version;
  QLORA_RETURN_IF_ERROR(
      findSymbol(library, file, "ncclGetLastError", nccl.getLastError));
  nccl.commSplit = reinterpret_cast<decltype(nccl.commSplit)>(
      dlsym(library, "ncclCommSplit"));
#define QLORA_NCCL(Name, Symbol, Parameters)                                   \
  QLORA_RETURN_IF_ERROR(findSymbol(library, file, #Symbol, nccl.Name));
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
  return nccl;
}

StatusOr<const Nccl *> Nccl::open() {
  static const StatusOr<Nccl> nccl = openFile(kNcclFile);
  QLORA_RETURN_IF_ERROR(nccl.status());
  return &nccl.value();
}

static std::string_view resultName(ncclResult_t result) {
  switch (result) {
    QLORA_NCCL_RESULTS(QLORA_RETURN_NAME)
  default:
    return "unknown error";
  }
}

/// Returns the library's error text on one line, to be appended to a message.
static std::string lastError(const Nccl &nccl) {
  const char *words = nccl.getLastError(nullptr);
  std::string text = words ? words : "";
  text.resize(text.find_last_not_of(" \n") + 1);
  for (char &letter : text)
    if (letter == '\n')
      letter = ' ';
  return text.empty() ? "; set NCCL_DEBUG=WARN for details" : ": " + text;
}

Status Nccl::check(ncclResult_t result, const char *what) const {
  if (result == 0 || result == kNcclInProgress)
    return Status::ok();
  return Status::error(result == kNcclRemoteError ? StatusCode::kAborted
                                                  : StatusCode::kUnavailable,
                       "{}: {} ({}){}", what, resultName(result), result,
                       lastError(*this));
}

} // namespace qlora
