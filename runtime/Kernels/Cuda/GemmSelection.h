// SPDX-License-Identifier: MIT

// The algorithm of every matrix product that is prepared on one card. Products
// of the same signature share one choice, which is cuBLASLt's first one, or a
// pinned table's; the device may change it after all kernels are prepared and
// before the first one runs (Device/Cuda/GemmTuner.h).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_GEMMSELECTION_H
#define QLORA_RUNTIME_KERNELS_CUDA_GEMMSELECTION_H

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/Kernels/Cuda/GemmTable.h"

namespace qlora {

struct GemmChoice {
  /// What runs; nothing where there is none for operands so aligned.
  std::optional<GemmAlgorithm> algorithm;
  double microseconds = 0; ///< 0: not measured
  /// What there is to choose from, cuBLASLt's first choice first.
  std::vector<GemmAlgorithm> candidates;
  std::shared_ptr<const GemmDescription> description;
};

class GemmSelection {
public:
  /// Operands of the planner are at multiples of so many bytes; the choice for
  /// others is never measured.
  static constexpr uint32_t kAlignment = 16;

  /// From here on only what `table` has for this kind of card is used; `file`
  /// is its name. An error where that is nothing.
  Status pin(GemmTable table, std::string file, const CardKind &kind);
  /// From here on products of aligned operands have so many candidates.
  void setCandidates(size_t count) { candidateCount = count; }

  /// The choice for a product; it lives as long as this, at one address.
  /// kInvalidArgument where a pinned table lacks it, or cuBLASLt refuses what
  /// the table says.
  StatusOr<const GemmChoice *>
  choose(const GemmSignature &signature,
         std::shared_ptr<const GemmDescription> description);

  /// Takes the algorithm of a table's entry; false where cuBLASLt refuses it.
  static StatusOr<bool> adopt(const GemmSignature &signature,
                              const GemmEntry &entry, GemmChoice &choice);

  /// All choices as entries of a table.
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
