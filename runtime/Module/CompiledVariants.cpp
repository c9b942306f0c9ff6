// SPDX-License-Identifier: MIT

// Collects the batches and lengths of the entries.

#include "runtime/Module/CompiledVariants.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/Module/CommandWork.h"

namespace qlora {

/// Returns FLOPs per token, and attention FLOPs per pair of tokens.
static PackingCosts costsOf(const LoadedModule &module,
                            const qlora_entry &entry) {
  const EntryFlops flops = flopsOf(module, entry);
  const double length = static_cast<double>(entry.length);
  // Without matmuls, only tokens count.
  if (flops.others == 0)
    return PackingCosts();
  return {flops.others / length, flops.attention / (length * (length + 1) / 2)};
}

bool trains(const LoadedModule &module) {
  return std::ranges::any_of(module.entries(), [](const qlora_entry &entry) {
    return entry.kind == QLORA_ENTRY_ACCUMULATE_LAST ||
           entry.kind == QLORA_ENTRY_UPDATE;
  });
}

StatusOr<CompiledVariants> CompiledVariants::of(const LoadedModule &module) {
  std::set<std::pair<int64_t, int64_t>> shapes; ///< batch, length
  for (const qlora_entry &entry : module.entries())
    if (entry.kind == QLORA_ENTRY_ACCUMULATE_LAST)
      shapes.insert({entry.batch, entry.length});
  bool isWhole = !shapes.empty() && module.entry(QLORA_ENTRY_UPDATE);
  for (const auto &[batch, length] : shapes)
    for (qlora_entry_kind kind :
         {QLORA_ENTRY_ACCUMULATE, QLORA_ENTRY_ACCUMULATE_LAST,
          QLORA_ENTRY_EVALUATE})
      isWhole = isWhole && module.entry(kind, batch, length);
  if (!trains(module))
    return Status::invalid("'{}' was compiled with --entries generate and "
                           "does not train. Fix: add --generate, or compile "
                           "it with --entries both",
                           module.path());
  CompiledVariants variants;
  for (const auto &[batch, length] : shapes) {
    if (batch == 1)
      variants.buckets.push_back(length);
    if (batch == shapes.rbegin()->first)
      variants.lengths.push_back(length);
  }
  if (isWhole && !variants.buckets.empty())
    variants.costs = costsOf(module, *module.entry(QLORA_ENTRY_ACCUMULATE_LAST,
                                                   1, variants.buckets.back()));
  if (!shapes.empty())
    variants.batch = shapes.rbegin()->first;
  if (!isWhole)
    return Status::dataLoss(
        "'{}' lacks an entry of a training program. Fix: compile it again",
        module.path());
  return variants;
}

} // namespace qlora
