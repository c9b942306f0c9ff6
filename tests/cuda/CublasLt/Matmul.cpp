// SPDX-License-Identifier: MIT

// The products of libcublasLt.so.13: every argument is checked, more strictly
// than NVIDIA documents where a looser caller would depend on luck:
//
//   matrices are inside of one live allocation, and aligned as the preference
//   said when the algorithm was found (256 bytes if it said nothing; 16 where
//   no algorithm is given); D overlaps neither A nor B; an algorithm is used
//   for the very product that it was found for, with at least its workspace;
//   the workspace is filled with NaN when the product runs, so that another
//   use at the same time shows.

#include "tests/cuda/CublasLt/Objects.h"

#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <memory>
#include <optional>

namespace qlora {

using namespace platform;

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

/// An algorithm's words: a mark, the product's shape, types with alignments,
/// its workspace.
static cublasLtMatmulAlgo_t algorithmOf(const Product &product,
                                        uint64_t alignments,
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
           pair(alignments, uint64_t(product.a.type) << 8 |
                                uint64_t(product.d.type)),
           workspace}};
}

/// Four logarithms in a byte each, A's the lowest; the high half of word 6.
static uint64_t packAlignments(const uint32_t (&alignments)[4]) {
  uint64_t packed = 0;
  for (int i = 0; i < 4; ++i)
    packed |= uint64_t(std::countr_zero(alignments[i])) << (8 * i);
  return packed;
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
    results[i].algo =
        algorithmOf(*product, packAlignments(preference->alignments), sizes[i]);
    results[i].workspaceSize = sizes[i];
    results[i].wavesCount = 1.0f;
    ++*found;
  }
  return kBlasSuccess;
}

/// What is wrong with a matrix in memory, or empty.
static std::string checkMatrix(const char *name, const void *data,
                               const cublasLtMatrixLayoutOpaque &layout,
                               uint64_t alignment, int device) {
  if (reinterpret_cast<uintptr_t>(data) % alignment)
    return fmt::format("{} is not aligned to {} bytes", name, alignment);
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
  uint64_t alignments;     ///< packed

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
  std::string wrong = checkMatrix("A", of.a, product.a, of.alignment(0), device);
  if (wrong.empty())
    wrong = checkMatrix("B", of.b, product.b, of.alignment(1), device);
  if (wrong.empty() && of.beta != 0)
    wrong = checkMatrix("C", of.c, product.c, of.alignment(2), device);
  if (wrong.empty())
    wrong = checkMatrix("D", of.d, product.d, of.alignment(3), device);
  if (wrong.empty() && (overlap(of.d, product.d, of.a, product.a) ||
                        overlap(of.d, product.d, of.b, product.b)))
    wrong = "D overlaps A or B";
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
  const uint64_t alignments =
      algorithm ? algorithm->data[6] >> 32 : packAlignments({16, 16, 16, 16});
  if (algorithm) {
    const cublasLtMatmulAlgo_t expected =
        algorithmOf(*product, alignments, used);
    if (std::memcmp(&expected, algorithm, sizeof(expected)) != 0)
      return refuse(kSymbol, kBlasInvalidValue,
                    "the algorithm was found for another product");
  }
  if (used > workspaceBytes)
    return refuse(kSymbol, kBlasInvalidValue,
                  fmt::format("the algorithm needs {} bytes of workspace, got "
                              "{}",
                              used, workspaceBytes));
  Operands of = {a, b, c, d, workspace, 0, 0, used, alignments};
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
