// SPDX-License-Identifier: MIT

// Chooses GEMM algorithms from cuBLASLt's heuristic or from a table.

#include "runtime/Kernels/Cuda/GemmSelection.h"

namespace qlora {

Status GemmSelection::pin(GemmTable table, std::string file,
                          const GpuKind &kind) {
  const GemmTable::Products *products = table.find(kind);
  if (!products) {
    std::string others;
    for (const auto &[other, ignored] : table.gpus)
      others += (others.empty() ? "" : ", ") + other.text();
    return Status::invalid("--gemm-table '{}' is not for {}, only for {}; "
                           "remove --gemm-table to measure here",
                           file, kind.text(),
                           others.empty() ? "no GPU" : others);
  }
  pinned = *products;
  pinnedFile = std::move(file);
  return Status::ok();
}

StatusOr<bool> GemmSelection::adopt(const GemmSignature &signature,
                                    const GemmEntry &entry,
                                    GemmChoice &choice) {
  std::optional<GemmAlgorithm> algorithm;
  if (entry.algorithm) {
    QLORA_ASSIGN_OR_RETURN(
        algorithm, choice.description->restore(entry.algorithm->choice,
                                               signature.scratchLimit));
    if (!algorithm)
      return false;
  }
  choice.algorithm = std::move(algorithm);
  choice.microseconds = entry.microseconds;
  return true;
}

Status GemmSelection::choosePinned(const GemmSignature &signature,
                                   GemmChoice &choice) {
  const auto entry = pinned->find(signature);
  if (entry == pinned->end())
    return Status::invalid(
        "--gemm-table '{}' has no GEMM {}; remove --gemm-table to measure it",
        pinnedFile, signature.text());
  QLORA_ASSIGN_OR_RETURN(const bool isTaken,
                         adopt(signature, entry->second, choice));
  if (isTaken)
    return Status::ok();
  return Status::invalid("--gemm-table '{}': cuBLASLt rejects the algorithm "
                         "for GEMM {}; remove --gemm-table to measure it",
                         pinnedFile, signature.text());
}

StatusOr<const GemmChoice *>
GemmSelection::choose(const GemmSignature &signature,
                      std::shared_ptr<const GemmDescription> description) {
  if (const auto found = choices.find(signature); found != choices.end())
    return &found->second;
  GemmChoice choice;
  choice.description = std::move(description);
  if (pinned) {
    QLORA_RETURN_IF_ERROR(choosePinned(signature, choice));
  } else {
    const bool isMeasured = signature.alignment >= kAlignment;
    QLORA_ASSIGN_OR_RETURN(choice.candidates,
                           choice.description->candidates(
                               signature, isMeasured ? candidateCount : 1));
    if (!choice.candidates.empty())
      choice.algorithm = choice.candidates.front();
  }
  return &choices.emplace(signature, std::move(choice)).first->second;
}

GemmTable::Products GemmSelection::entries() const {
  GemmTable::Products products;
  for (const auto &[signature, choice] : choices)
    products.emplace(signature,
                     GemmEntry{choice.algorithm, choice.microseconds});
  return products;
}

} // namespace qlora
