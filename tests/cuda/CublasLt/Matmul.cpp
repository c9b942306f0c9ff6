// SPDX-License-Identifier: MIT

// The matmuls of libcublasLt.so.13. Checks every argument. Also requires what
// NVIDIA does not document, but without which a GPU's result is correct only by
// chance:
//
// * Each matrix is inside one live allocation, and D overlaps neither A nor B.
// * Matrices have the alignment that the preference stated when the algorithm
//   was found (256 bytes by default), or 16 bytes if no algorithm is given.
// * An algorithm is used only for the matmul and with the version that it was
//   found for, and only after this handle has found or checked it.
// * The workspace is large enough. Its address is a multiple of 256 bytes, even
//   if it is not used.
//
// When a matmul runs, its workspace is filled with NaN, which exposes
// concurrent uses.

#include "tests/cuda/CublasLt/Algorithms.h"

#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace qlora {

using namespace platform;

/// Returns the matmul with these layouts. If they do not fit, explains why on
/// stderr and returns nothing.
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

/// Returns whether a preference allows an algorithm.
static bool isAllowed(const Algorithm &algorithm, const Product &product,
                      const cublasLtMatmulPreferenceOpaque &preference) {
  const uint32_t *least = std::min_element(std::begin(preference.alignments),
                                           std::end(preference.alignments));
  const uint32_t scheme = algorithm.reduction;
  return *least >= alignmentOf(algorithm, product.a.type) &&
         (scheme & preference.reductions) == scheme &&
         workspaceOf(algorithm, product) <= preference.maxWorkspace;
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
  for (Algorithm algorithm : algorithmsFor(*product)) {
    if (*found == wanted || !isAllowed(algorithm, *product, *preference))
      continue;
    cublasLtMatmulHeuristicResult_t &result = results[(*found)++];
    algorithm.alignments = packAlignments(preference->alignments);
    result = {};
    result.algo = algorithm.bytes();
    result.workspaceSize = workspaceOf(algorithm, *product);
    result.wavesCount = 1.0f;
    handle->known.insert(hashOf(algorithm));
  }
  return *found ? kBlasSuccess : kBlasNotSupported;
}

cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    const cublasLtMatmulAlgo_t *bytes,
    cublasLtMatmulHeuristicResult_t *result) {
  constexpr const char *kSymbol = "cublasLtMatmulAlgoCheck";
  if (const int code = countAndInject(kSymbol))
    return code;
  if (!handle)
    return refuse(kSymbol, kBlasNotInitialized, "no handle");
  const std::optional<Product> product =
      makeProduct(kSymbol, description, a, b, c, d);
  const std::optional<Algorithm> algorithm = Algorithm::read(bytes);
  if (!product || !algorithm || !result)
    return refuse(kSymbol, kBlasInvalidValue,
                  "no product, or no algorithm of this version");
  if (algorithm->product != hashOf(*product))
    return refuse(kSymbol, kBlasInvalidValue,
                  "the algorithm is for another product");
  if (!refusalOf(*algorithm, *product).empty())
    return kBlasNotSupported;
  handle->known.insert(hashOf(*algorithm));
  result->workspaceSize = workspaceOf(*algorithm, *product);
  result->state = kBlasSuccess;
  result->wavesCount = 1.0f;
  return kBlasSuccess;
}

/// Returns what is wrong with a matrix in memory; empty if nothing is.
static std::string checkMatrix(const char *name, const void *data,
                               const cublasLtMatrixLayoutOpaque &layout,
                               uint64_t alignment, int device) {
  if (reinterpret_cast<uintptr_t>(data) % alignment)
    return fmt::format("{} is not aligned to {} bytes", name, alignment);
  const std::string wrong = checkDeviceRange(data, bytesOf(layout), device);
  return wrong.empty() ? "" : fmt::format("{}: {}", name, wrong);
}

namespace {
/// Addresses and scalars of one call.
struct Operands {
  const void *a, *b, *c;
  void *d, *workspace;
  float alpha, beta;
  uint64_t workspaceBytes; ///< bytes that the algorithm uses
  uint64_t alignments;     ///< as packAlignments returns them

  uint64_t alignment(int matrix) const {
    return uint64_t{1} << (alignments >> (8 * matrix) & 0xff);
  }
};
} // namespace

static bool overlap(const void *a, const cublasLtMatrixLayoutOpaque &layoutA,
                    const void *b, const cublasLtMatrixLayoutOpaque &layoutB) {
  const auto beginA = reinterpret_cast<uintptr_t>(a);
  const auto beginB = reinterpret_cast<uintptr_t>(b);
  return beginA < beginB + bytesOf(layoutB) &&
         beginB < beginA + bytesOf(layoutA);
}

static std::string checkOperands(const Product &product, const Operands &of,
                                 int device) {
  std::string wrong =
      checkMatrix("A", of.a, product.a, of.alignment(0), device);
  if (wrong.empty())
    wrong = checkMatrix("B", of.b, product.b, of.alignment(1), device);
  if (wrong.empty() && of.beta != 0)
    wrong = checkMatrix("C", of.c, product.c, of.alignment(2), device);
  if (wrong.empty())
    wrong = checkMatrix("D", of.d, product.d, of.alignment(3), device);
  if (wrong.empty() && (overlap(of.d, product.d, of.a, product.a) ||
                        overlap(of.d, product.d, of.b, product.b)))
    wrong = "D overlaps A or B";
  if (wrong.empty() && reinterpret_cast<uintptr_t>(of.workspace) % 256)
    wrong = "the workspace is not aligned to 256 bytes";
  if (!wrong.empty() || !of.workspaceBytes)
    return wrong;
  wrong = checkDeviceRange(of.workspace, of.workspaceBytes, device);
  return wrong.empty() ? "" : "the workspace: " + wrong;
}

/// Returns the ranges of k that are summed separately. Each range of a split
/// consists of one or two steps, depending on the tile. Kernels of id 66 have
/// more steps. The scheme "in place" adds the ranges in any order.
static std::vector<Part> partsOf(const Algorithm &of, int64_t k) {
  const int64_t steps =
      of.kernel ? int64_t(of.kernel) + 3 : of.split * (of.tile % 2 + 1);
  const int64_t each = (k + steps - 1) / steps;
  std::vector<Part> parts;
  for (int64_t begin = 0; begin < k; begin += each)
    parts.push_back({begin, std::min(begin + each, k),
                     of.reduction == kCublasReductionOutputType});
  for (size_t i = parts.size(); i > 1; --i)
    if (of.reduction == kCublasReductionInPlace)
      std::swap(parts[i - 1], parts[nextRandom() % i]);
  return parts;
}

/// Checks the operands and computes the matmul. Runs when the stream reaches
/// the call. Returns a CUresult.
static int runProduct(const Product &product, const Algorithm &algorithm,
                      const Operands &of, int device) {
  const std::string wrong = checkOperands(product, of, device);
  if (!wrong.empty()) {
    explain("cublasLtMatmul runs: " + wrong);
    return 700; // CUDA_ERROR_ILLEGAL_ADDRESS
  }
  if (of.workspaceBytes)
    std::memset(of.workspace, 0xff, of.workspaceBytes);
  const auto time = timeOf(algorithm, product);
  spendTime(time);
  countEvent("nanoseconds of products", uint64_t(time.count()));
  multiply(product, partsOf(algorithm, product.k), of.alpha, of.a, of.b,
           of.beta, of.c, of.d);
  return 0;
}

/// Returns the algorithm in a call, with its required alignments. Returns
/// nothing if the call must not use it for this matmul.
static std::optional<Algorithm>
algorithmFor(const cublasLtContext &handle, const Product &product,
             const cublasLtMatmulAlgo_t *bytes, std::string &unusable) {
  if (!bytes) {
    // Without an algorithm, use the best one that needs no workspace.
    for (Algorithm &algorithm : algorithmsFor(product))
      if (workspaceOf(algorithm, product) == 0 && algorithm.kernel == 0) {
        algorithm.alignments = packAlignments({16, 16, 16, 16});
        return algorithm;
      }
  }
  const std::optional<Algorithm> algorithm = Algorithm::read(bytes);
  if (!algorithm)
    unusable = "no algorithm of this version";
  else if (algorithm->product != hashOf(product))
    unusable = "the algorithm was found for another product";
  else if (!handle.known.contains(hashOf(*algorithm)))
    unusable = "the algorithm was not checked";
  else
    return algorithm;
  return std::nullopt;
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
  std::string unusable;
  const std::optional<Algorithm> chosen =
      algorithmFor(*handle, *product, algorithm, unusable);
  if (!chosen)
    return refuse(kSymbol, kBlasInvalidValue, unusable);
  if (chosen->kernel == kUnsupportedKernel)
    return kBlasNotSupported;
  const uint64_t used = workspaceOf(*chosen, *product);
  if (workspaceBytes && !workspace)
    return refuse(kSymbol, kBlasInvalidValue, "no workspace, but its size");
  if (used > workspaceBytes)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("the algorithm needs {} bytes of workspace, got "
                              "{}",
                              used, workspaceBytes));
  Operands of = {a, b, c, d, workspace, 0, 0, used, chosen->alignments};
  std::memcpy(&of.alpha, alpha, sizeof(float));
  std::memcpy(&of.beta, beta, sizeof(float));
  const int device = handle->device;
  const std::string wrong = checkOperands(*product, of, device);
  if (!wrong.empty())
    return refuse(kSymbol, kBlasInvalidValue, wrong);
  if (!mayUse(stream, fmt::format("algorithm {:x} for matmul {:x} on GPU {}",
                                  hashOf(*chosen), hashOf(*product), device)))
    return kBlasExecutionFailed;
  // Free memory, which invalidates a capture.
  if (chosen->kernel == kUncapturedKernel && cuMemFree_v2(0))
    return kBlasExecutionFailed;
  const int code = enqueueLibraryWork(stream, kSymbol, [=] {
    return runProduct(*product, *chosen, of, device);
  });
  return code ? kBlasExecutionFailed : kBlasSuccess;
}

} // namespace qlora
