// SPDX-License-Identifier: MIT

// Determines which rows of a step share a micro-batch, so that a step trains on
// its rows without padding them to one length.
//
// A step of K micro-batches of B rows on N ranks keeps its rows, whatever their
// lengths. The loss is a mean over the step's labelled tokens, and attention
// stays inside a row, so rows can be in any micro-batch. Gradients, losses and
// the schedule are those of padded rows, up to rounding. A packed micro-batch
// is one sequence with one segment per row. Its length is a *token bucket*: one
// of a few compiled lengths up to B x the longest row.
//
// The plan is the cheapest one with m <= K micro-batches per rank. For each m,
// the rows, the most expensive first, go to the cheapest micro-batch with
// enough space (longest processing time first, Graham 1969). Micro-batches go
// to ranks in the same way. If ranks have different speeds, their micro-batches
// are filled in proportion to the speeds. The plan depends only on the
// arguments, so all ranks compute the same plan.

#ifndef QLORA_RUNTIME_DATA_STEPPACKING_H
#define QLORA_RUNTIME_DATA_STEPPACKING_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Data/MicroBatchAssignment.h"
#include "runtime/Module/CompiledVariants.h"

namespace qlora {

/// The compiled sizes, and the user's options for packing.
struct PackingShape {
  std::vector<int64_t> buckets; ///< tokens, ascending; not empty
  int64_t rows = 1;             ///< B: the longest bucket holds any B rows
  int64_t accumulation = 1;     ///< K: micro-batches of a rank
  int64_t ranks = 1;            ///< N: ranks with different rows
  PackingCosts costs;
  std::vector<double> speeds =
      {}; ///< relative speeds of ranks (MicroBatchAssignment.h); empty: equal
};

/// The rows of each micro-batch, ascending, indexed by MicroBatchAssignment's
/// numbers. A plan has a multiple of N micro-batches; some may have no row.
using StepPlan = std::vector<std::vector<int64_t>>;

/// Plans a step. `lengths`: tokens of each of its rows, at most B K N rows.
StepPlan packStep(std::span<const int64_t> lengths, const PackingShape &shape);

/// Returns the smallest bucket that holds `tokens`. The largest must hold them.
int64_t bucketFor(int64_t tokens, std::span<const int64_t> buckets);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_STEPPACKING_H
