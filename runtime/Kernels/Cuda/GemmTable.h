// SPDX-License-Identifier: MIT

// File format for the algorithms of GEMMs. An algorithm is valid for one
// GpuKind (GPU, cuBLASLt, driver); a file may have several GpuKinds. JSON:
//
//   {"format": 2, "cards": [
//     {"name": "NVIDIA H200", "compute_capability": 90,
//      "multiprocessors": 132, "cublaslt": 130000, "driver": 13000,
//      "products": [
//        {"m": 4096, "n": 64, "k": 4096, "lda": 4096, "ldb": 4096,
//         "ldc": 64, "transpose_a": false, "transpose_b": true,
//         "adds": false, "type": "bf16", "result": "f32", "alignment": 16,
//         "scratch_limit": 33554432,
//         "algorithm": "0000001400000042...", "scratch": 0,
//         "microseconds": 21.4}]}]}
//
// `type` is the type of both operands. `algorithm` is a cublasLtMatmulAlgo_t, 8
// words of 16 hexadecimal digits, valid only for the cuBLASLt version that made
// it; null if there is none. `microseconds` is null if not measured. GEMMs and
// GPUs are sorted, so equal tables give equal files.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMMTABLE_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMMTABLE_H

#include <map>
#include <string>
#include <string_view>

#include "runtime/Kernels/Cuda/GemmAlgorithm.h"

namespace qlora {

/// The properties that determine the time and the result bits of an algorithm.
struct GpuKind {
  std::string name;        ///< "NVIDIA H200"
  uint32_t arch = 0;       ///< 10 * major + minor
  int multiprocessors = 0; ///< smaller for a MIG instance
  uint64_t cublasLt = 0;   ///< 10000 * major + 100 * minor + patch
  int driver = 0;          ///< CUDA version: 1000 * major + 10 * minor

  /// Returns "NVIDIA H200 (9.0, 132 multiprocessors, cuBLASLt 13.0.0, driver of
  /// CUDA 13.0)".
  std::string text() const;
  auto operator<=>(const GpuKind &) const = default;
};

struct GemmEntry {
  std::optional<GemmAlgorithm> algorithm; ///< empty: cuBLASLt has none
  double microseconds = 0;                ///< 0: not measured
  bool operator==(const GemmEntry &) const = default;
};

struct GemmTable {
  using Products = std::map<GemmSignature, GemmEntry>;

  /// Parses a table's JSON. Returns kDataLoss if the text is invalid; the
  /// message is one line and names the position.
  static StatusOr<GemmTable> parse(std::string_view text);
  /// Reads a file. Returns kNotFound, or parse()'s error with the file name.
  static StatusOr<GemmTable> read(const std::string &path);
  std::string text() const;

  /// Adds the entries of `other`, which replace entries of the same GEMM.
  void merge(const GemmTable &other);
  /// Returns null if the table has no entry for this kind of GPU.
  const Products *find(const GpuKind &kind) const;

  std::map<GpuKind, Products> gpus;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMMTABLE_H
