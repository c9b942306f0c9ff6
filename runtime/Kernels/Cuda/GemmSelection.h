// SPDX-License-Identifier: MIT

// The current algorithms of all GEMMs that are prepared on one GPU. GEMMs with
// the same signature share one choice. It starts as the first algorithm of
// cuBLASLt's heuristic, or that of a pinned table. With --gemm-table measure,
// Device/Cuda/GemmTuner.h chooses later, before the first kernel runs.

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMMSELECTION_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMMSELECTION_H

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/Kernels/Cuda/GemmTable.h"

namespace qlora {

struct GemmChoice {
  /// Empty if cuBLASLt has no algorithm for this alignment.
  std::optional<GemmAlgorithm> algorithm;
  double microseconds = 0; ///< 0: not measured
  /// In cuBLASLt's order, best first.
  std::vector<GemmAlgorithm> candidates;
  std::shared_ptr<const GemmDescription> description;
};

class GemmSelection {
public:
  /// Byte alignment of planned operands. Only this alignment is measured.
  static constexpr uint32_t kAlignment = 16;

  /// Makes choose() use only the entries of `table` for this kind of GPU.
  /// Returns an error if there are none. `file` is the table's name.
  Status pin(GemmTable table, std::string file, const GpuKind &kind);
  /// Sets the number of candidates that choose() requests for aligned GEMMs.
  void setCandidates(size_t count) { candidateCount = count; }

  /// Returns the choice for a GEMM, valid as long as this object. Returns
  /// kInvalidArgument if a pinned table lacks the GEMM, or if cuBLASLt refuses
  /// the table's algorithm.
  StatusOr<const GemmChoice *>
  choose(const GemmSignature &signature,
         std::shared_ptr<const GemmDescription> description);

  /// Sets `choice` to a table entry's algorithm; false if cuBLASLt refuses it.
  static StatusOr<bool> adopt(const GemmSignature &signature,
                              const GemmEntry &entry, GemmChoice &choice);

  /// Returns all choices as table entries.
  GemmTable::Products entries() const;

  std::map<GemmSignature, GemmChoice> choices;

private:
  Status choosePinned(const GemmSignature &signature, GemmChoice &choice);

  std::optional<GemmTable::Products> pinned;
  std::string pinnedFile;
  size_t candidateCount = 1;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_GEMMSELECTION_H
