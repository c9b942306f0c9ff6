// SPDX-License-Identifier: MIT

// The structs behind the handles of the cuBLASLt look-alike, and the constants
// of cublasLt.h that it supports.

#ifndef QLORA_TESTS_CUDA_CUBLASLT_OBJECTS_H
#define QLORA_TESTS_CUDA_CUBLASLT_OBJECTS_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <set>
#include <span>
#include <string_view>

namespace qlora {
extern "C" {
#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  cublasStatus_t Symbol Parameters;
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
}

struct cublasLtContext {
  int device;
  std::set<uint64_t> known; ///< hashes of algorithms found or checked
};

struct cublasLtMatmulDescOpaque {
  int32_t transposeA = kCublasOpN;
  int32_t transposeB = kCublasOpN;
};

/// Column-major: element (r, c) is at c * leading + r.
struct cublasLtMatrixLayoutOpaque {
  int type;
  uint64_t rows, columns;
  int64_t leading;
};

struct cublasLtMatmulPreferenceOpaque {
  uint64_t maxWorkspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256}; ///< minimum bytes of A, B, C,
                                                 ///< D
  uint32_t reductions = 7; ///< allowed schemes, a bit each
};

namespace platform {

enum BlasStatus : int {
  kBlasSuccess = 0,
  kBlasNotInitialized = kCublasNotInitialized,
  kBlasInvalidValue = kCublasInvalidValue,
  kBlasExecutionFailed = kCublasExecutionFailed,
  kBlasNotSupported = kCublasNotSupported
};

/// A checked matmul: D = alpha op(A) op(B) + beta C, with op(A) m x k and op(B)
/// k x n.
struct Product {
  cublasLtMatmulDescOpaque description;
  cublasLtMatrixLayoutOpaque a, b, c, d;
  int64_t m = 0, n = 0, k = 0;
};

/// A range of the depth k, and whether its partial sum is rounded to D's type.
struct Part {
  int64_t begin, end;
  bool isRounded;
};

/// Computes a matmul in float32. A, B and C have the types and layouts of
/// `product`. The partial sums of the ranges are added in the order of `parts`,
/// and the sum is rounded once to D's type.
void multiply(const Product &product, std::span<const Part> parts, float alpha,
              const void *a, const void *b, float beta, const void *c,
              void *d);

/// Explains the error on stderr and returns `status`.
cublasStatus_t refuse(const char *symbol, cublasStatus_t status,
                      std::string_view why);

/// Returns the bytes from the matrix's first element to the end of its last.
uint64_t bytesOf(const cublasLtMatrixLayoutOpaque &layout);

} // namespace platform
} // namespace qlora

#endif // QLORA_TESTS_CUDA_CUBLASLT_OBJECTS_H
