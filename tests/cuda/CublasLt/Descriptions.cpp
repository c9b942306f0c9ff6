// SPDX-License-Identifier: MIT

// Handles, descriptions, layouts and preferences of libcublasLt.so.13.
// Supported: float32 and bf16, float32 sums, host scalars, no epilogue.

#include "tests/cuda/CublasLt/Objects.h"

#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace qlora {

using namespace platform;

cublasStatus_t platform::refuse(const char *symbol, cublasStatus_t status,
                                std::string_view why) {
  explain(fmt::format("{}: {}", symbol, why));
  return status;
}

extern "C" size_t cublasLtGetVersion() {
  return size_t(settings().blasVersion);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (const int code = countAndInject("cublasLtCreate"))
    return code;
  const int device = currentDevice();
  if (device < 0)
    return refuse("cublasLtCreate", kBlasNotInitialized,
                  "no context is current");
  *handle = new cublasLtContext{device, {}};
  return kBlasSuccess;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (const int code = countAndInject("cublasLtDestroy"))
    return code;
  delete handle;
  return kBlasSuccess;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description,
                                        int compute, int scale) {
  if (const int code = countAndInject("cublasLtMatmulDescCreate"))
    return code;
  if (compute != kCublasCompute32F || scale != kCudaR32F)
    return refuse("cublasLtMatmulDescCreate", kBlasNotSupported,
                  "only float32 sums and scalars");
  *description = new cublasLtMatmulDescOpaque;
  return kBlasSuccess;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  if (const int code = countAndInject("cublasLtMatmulDescDestroy"))
    return code;
  delete description;
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, int attribute,
                               const void *value, size_t bytes) {
  constexpr const char *kSymbol = "cublasLtMatmulDescSetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (attribute != kCublasDescTransposeA && attribute != kCublasDescTransposeB)
    return refuse(kSymbol, kBlasNotSupported,
                  fmt::format("attribute {}", attribute));
  int32_t operation = -1;
  if (bytes != sizeof(operation))
    return refuse(kSymbol, kBlasInvalidValue, "the value is an int32");
  std::memcpy(&operation, value, bytes);
  if (operation != kCublasOpN && operation != kCublasOpT)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("operation {}", operation));
  (attribute == kCublasDescTransposeA ? description->transposeA
                                      : description->transposeB) = operation;
  return kBlasSuccess;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                          int type, uint64_t rows,
                                          uint64_t columns, int64_t leading) {
  constexpr const char *kSymbol = "cublasLtMatrixLayoutCreate";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (type != kCudaR32F && type != kCudaR16BF)
    return refuse(kSymbol, kBlasNotSupported, fmt::format("type {}", type));
  if (!rows || !columns || leading < 0 || uint64_t(leading) < rows)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("{} x {} with leading dimension {}", rows,
                              columns, leading));
  *layout = new cublasLtMatrixLayoutOpaque{type, rows, columns, leading};
  return kBlasSuccess;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  if (const int code = countAndInject("cublasLtMatrixLayoutDestroy"))
    return code;
  delete layout;
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  if (const int code = countAndInject("cublasLtMatmulPreferenceCreate"))
    return code;
  *preference = new cublasLtMatmulPreferenceOpaque;
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  if (const int code = countAndInject("cublasLtMatmulPreferenceDestroy"))
    return code;
  delete preference;
  return kBlasSuccess;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                     int attribute, const void *value,
                                     size_t bytes) {
  constexpr const char *kSymbol = "cublasLtMatmulPreferenceSetAttribute";
  if (const int code = countAndInject(kSymbol))
    return code;
  const int matrix = attribute - kCublasPreferenceMinAlignmentA;
  if (matrix >= 0 && matrix < 4) {
    uint32_t &alignment = preference->alignments[matrix];
    if (bytes != sizeof(alignment))
      return refuse(kSymbol, kBlasInvalidValue, "the value is a uint32");
    std::memcpy(&alignment, value, bytes);
    return std::has_single_bit(alignment)
               ? int(kBlasSuccess)
               : refuse(kSymbol, kBlasInvalidValue, "not a power of two");
  }
  if (attribute == kCublasPreferenceReductionMask) {
    if (bytes != sizeof(preference->reductions))
      return refuse(kSymbol, kBlasInvalidValue, "the value is a uint32");
    std::memcpy(&preference->reductions, value, bytes);
    return preference->reductions <= 7
               ? int(kBlasSuccess)
               : refuse(kSymbol, kBlasInvalidValue, "no reduction scheme");
  }
  if (attribute != kCublasPreferenceMaxWorkspace)
    return refuse(kSymbol, kBlasNotSupported,
                  fmt::format("attribute {}", attribute));
  if (bytes != sizeof(uint64_t))
    return refuse(kSymbol, kBlasInvalidValue, "the value is a uint64");
  std::memcpy(&preference->maxWorkspace, value, bytes);
  return kBlasSuccess;
}

} // namespace qlora
