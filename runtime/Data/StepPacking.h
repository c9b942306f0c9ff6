// SPDX-License-Identifier: MIT

// Which rows of a step share a micro-batch, so that a step trains on the rows
// that it has without their padding.
//
// A step of K micro-batches of B rows on N ranks has its rows, whatever their
// lengths. The loss is a mean over the step's labelled tokens, and attention
// stays inside a row, so they may be dealt to micro-batches in any way:
// gradients, losses and the schedule are those of padded rows, to the last
// rounding. Packed, a micro-batch is one line of rows, one segment each, of a
// *token bucket*: one of a few compiled lengths up to B x the longest row.
//
// The plan is the cheapest of those with m <= K micro-batches a rank. For each
// m the rows, the dearest first, go to the micro-batch that has cost least so
// far and has room (longest processing time first, Graham 1969), and the
// micro-batches to ranks in the same way. Where ranks have other speeds, those of
// each rank have room for its share of the rows. The plan depends on the
// arguments alone, so that all ranks find the same one.

#ifndef QLORA_RUNTIME_DATA_STEPPACKING_H
#define QLORA_RUNTIME_DATA_STEPPACKING_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Data/Deal.h"
#include "runtime/Module/CompiledVariants.h"

namespace qlora {

/// What is compiled, and what the user asked for.
struct PackingShape {
  std::vector<int64_t> buckets; ///< tokens, ascending; not empty
  int64_t rows = 1;             ///< B: the last bucket holds any B rows
  int64_t accumulation = 1;     ///< K
  int64_t ranks = 1;            ///< N
  PackingCosts costs;
  std::vector<double> speeds = {}; ///< of ranks (Deal.h); none: all are equal
};

/// The rows of each micro-batch, ascending, by the numbers of Deal. A multiple of N
/// micro-batches, at least N; some may have no row.
using StepPlan = std::vector<std::vector<int64_t>>;

/// `lengths`: tokens of the step's rows, at most B K N of them.
StepPlan packStep(std::span<const int64_t> lengths, const PackingShape &shape);

/// The smallest bucket for so many tokens; they fit into the last.
int64_t bucketFor(int64_t tokens, std::span<const int64_t> buckets);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_STEPPACKING_H
