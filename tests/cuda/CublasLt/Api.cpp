// SPDX-License-Identifier: MIT

// The functions of libcublasLt.so.13: every argument is checked, more strictly
// than NVIDIA documents where a looser caller would depend on luck:
//
//   pointers are aligned to 16 bytes and their matrices inside of one live
//   allocation; an algorithm is used for the very product that it was found
//   for, with at least its workspace; the workspace is filled with NaN when
//   the product runs, so that another use at the same time shows.
//
// Known: float32 and bf16, float32 sums, host scalars, no epilogue.

#include "tests/cuda/CublasLt/Objects.h"

#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>

namespace qlora {

using namespace platform;

static cublasStatus_t refuse(const char *symbol, cublasStatus_t status,
                             std::string_view why) {
  explain(fmt::format("{}: {}", symbol, why));
  return status;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (const int code = countAndInject("cublasLtCreate"))
    return code;
  const int device = currentDevice();
  if (device < 0)
    return refuse("cublasLtCreate", kBlasNotInitialized,
                  "no context is current");
  *handle = new cublasLtContext{device};
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
  if (attribute != kCublasPreferenceMaxWorkspace)
    return refuse(kSymbol, kBlasNotSupported,
                  fmt::format("attribute {}", attribute));
  if (bytes != sizeof(uint64_t))
    return refuse(kSymbol, kBlasInvalidValue, "the value is a uint64");
  std::memcpy(&preference->maxWorkspace, value, bytes);
  return kBlasSuccess;
}

/// The product of these layouts, or why there is none.
static std::optional<Product>
makeProduct(const char *symbol, cublasLtMatmulDesc_t description,
            cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  if (!description || !a || !b || !c || !d) {
    explain(fmt::format("{}: a description or layout is null", symbol));
    return std::nullopt;
  }
  Product product = {*description, *a, *b, *c, *d};
  const bool isAT = description->transposeA == kCublasOpT;
  const bool isBT = description->transposeB == kCublasOpT;
  product.m = int64_t(isAT ? a->columns : a->rows);
  product.k = int64_t(isAT ? a->rows : a->columns);
  product.n = int64_t(isBT ? b->rows : b->columns);
  const int64_t otherK = int64_t(isBT ? b->columns : b->rows);
  const auto isResult = [&](const cublasLtMatrixLayoutOpaque &layout) {
    return int64_t(layout.rows) == product.m &&
           int64_t(layout.columns) == product.n;
  };
  const bool isTyped = a->type == b->type && c->type == d->type &&
                       (a->type == kCudaR16BF || d->type == kCudaR32F);
  if (otherK == product.k && isResult(*c) && isResult(*d) && isTyped)
    return product;
  explain(fmt::format("{}: op(A) {} x {}, op(B) {} x {}, C {} x {}, D {} x {}, "
                      "types {} {} {} {}",
                      symbol, product.m, product.k, otherK, product.n, c->rows,
                      c->columns, d->rows, d->columns, a->type, b->type,
                      c->type, d->type));
  return std::nullopt;
}

/// An algorithm's words: a mark, the product's shape, its workspace.
static cublasLtMatmulAlgo_t algorithmOf(const Product &product,
                                        uint64_t workspace) {
  const auto pair = [](uint64_t high, uint64_t low) {
    return high << 32 ^ low;
  };
  const uint64_t flags =
      uint64_t(product.description.transposeA) << 1 |
      uint64_t(product.description.transposeB);
  return {{0x716c6f7261626c61u, pair(uint64_t(product.m), uint64_t(product.n)),
           uint64_t(product.k), flags,
           pair(uint64_t(product.a.leading), uint64_t(product.b.leading)),
           pair(uint64_t(product.c.leading), uint64_t(product.d.leading)),
           pair(uint64_t(product.a.type), uint64_t(product.d.type)),
           workspace}};
}

/// What the found algorithm asks for: a split sum where the caller allows it.
static uint64_t workspaceOf(const Product &product, uint64_t most) {
  const uint64_t wanted = uint64_t(product.m * product.n) * 4;
  return wanted <= most ? wanted : 0;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted,
    cublasLtMatmulHeuristicResult_t *results, int *found) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoGetHeuristic";
  *found = 0;
  if (const int code = countAndInject(kSymbol))
    return code;
  if (!handle)
    return refuse(kSymbol, kBlasNotInitialized, "no handle");
  const std::optional<Product> product =
      makeProduct(kSymbol, description, a, b, c, d);
  if (!product || !preference || wanted < 1)
    return refuse(kSymbol, kBlasInvalidValue, "no product or no preference");
  // With a workspace first, then without, as a library that knows more than
  // one algorithm does.
  const uint64_t workspace = workspaceOf(*product, preference->maxWorkspace);
  const uint64_t sizes[2] = {workspace, 0};
  const int count = workspace ? 2 : 1;
  for (int i = 0; i < count && i < wanted; ++i) {
    results[i] = {};
    results[i].algo = algorithmOf(*product, sizes[i]);
    results[i].workspaceSize = sizes[i];
    results[i].wavesCount = 1.0f;
    ++*found;
  }
  return kBlasSuccess;
}

/// What is wrong with a matrix in memory, or empty.
static std::string checkMatrix(const char *name, const void *data,
                               const cublasLtMatrixLayoutOpaque &layout,
                               int device) {
  if (reinterpret_cast<uintptr_t>(data) % 16)
    return fmt::format("{} is not aligned to 16 bytes", name);
  const std::string wrong = checkDeviceRange(data, bytesOf(layout), device);
  return wrong.empty() ? "" : fmt::format("{}: {}", name, wrong);
}

namespace {
/// One call's memory.
struct Operands {
  const void *a, *b, *c;
  void *d, *workspace;
  float alpha, beta;
  uint64_t workspaceBytes; ///< that the algorithm uses
};
} // namespace

static std::string checkOperands(const Product &product, const Operands &of,
                                 int device) {
  std::string wrong = checkMatrix("A", of.a, product.a, device);
  if (wrong.empty())
    wrong = checkMatrix("B", of.b, product.b, device);
  if (wrong.empty() && of.beta != 0)
    wrong = checkMatrix("C", of.c, product.c, device);
  if (wrong.empty())
    wrong = checkMatrix("D", of.d, product.d, device);
  if (!wrong.empty() || !of.workspaceBytes)
    return wrong;
  if (reinterpret_cast<uintptr_t>(of.workspace) % 16)
    return "the workspace is not aligned to 16 bytes";
  wrong = checkDeviceRange(of.workspace, of.workspaceBytes, device);
  return wrong.empty() ? "" : "the workspace: " + wrong;
}

/// When the stream comes to it.
static int runProduct(const Product &product, const Operands &of, int device) {
  const std::string wrong = checkOperands(product, of, device);
  if (!wrong.empty()) {
    explain("cublasLtMatmul runs: " + wrong);
    return 700; // CUDA_ERROR_ILLEGAL_ADDRESS
  }
  if (of.workspaceBytes)
    std::memset(of.workspace, 0xff, of.workspaceBytes);
  multiply(product, of.alpha, of.a, of.b, of.beta, of.c, of.d);
  return 0;
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
               const void *alpha, const void *a, cublasLtMatrixLayout_t layoutA,
               const void *b, cublasLtMatrixLayout_t layoutB, const void *beta,
               const void *c, cublasLtMatrixLayout_t layoutC, void *d,
               cublasLtMatrixLayout_t layoutD,
               const cublasLtMatmulAlgo_t *algorithm, void *workspace,
               size_t workspaceBytes, CUstream stream) {
  constexpr const char *kSymbol = "cublasLtMatmul";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (!handle || handle->device != currentDevice())
    return refuse(kSymbol, kBlasNotInitialized,
                  "no handle of the current context");
  const auto product =
      makeProduct(kSymbol, description, layoutA, layoutB, layoutC, layoutD);
  if (!product || !alpha || !beta)
    return refuse(kSymbol, kBlasInvalidValue, "no product or no scalars");
  const uint64_t used = algorithm ? algorithm->data[7] : 0;
  if (algorithm) {
    const cublasLtMatmulAlgo_t expected = algorithmOf(*product, used);
    if (std::memcmp(&expected, algorithm, sizeof(expected)) != 0)
      return refuse(kSymbol, kBlasInvalidValue,
                    "the algorithm was found for another product");
  }
  if (used > workspaceBytes)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("the algorithm needs {} bytes of workspace, got "
                              "{}",
                              used, workspaceBytes));
  Operands of = {a, b, c, d, workspace, 0, 0, used};
  std::memcpy(&of.alpha, alpha, sizeof(float));
  std::memcpy(&of.beta, beta, sizeof(float));
  const int device = handle->device;
  const std::string wrong = checkOperands(*product, of, device);
  if (!wrong.empty())
    return refuse(kSymbol, kBlasInvalidValue, wrong);
  const int code = enqueueLibraryWork(
      stream, kSymbol, [=] { return runProduct(*product, of, device); });
  return code ? kBlasExecutionFailed : kBlasSuccess;
}

} // namespace qlora
