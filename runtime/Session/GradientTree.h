// SPDX-License-Identifier: MIT

// --reproducible-reductions: the same bits of gradients on 1, 2, 4, ... ranks.
//
// On N ranks, a step has G = K N micro-batches; micro-batch k N + r is the k-th
// of rank r. The sum is a tree. For the n micro-batches with index c modulo m,
//
//   sum(c, m) = sum(c, 2 m) + sum(c + m, 2 m)     if n is even
//             = the n values, one after the other if n is odd
//
// starting from sum(0, 1). If N is a power of two, sum(c, N) is the sum of rank
// c's micro-batches. So each rank computes this part of the tree alone, and the
// ranks compute the rest together, with the same tree for every N. A rank runs
// its micro-batches in bit-reversed order of k, so that at most log2(K) partial
// sums are pending at a time.
//
// The cost: micro-batches run in this order, and no gradient is sent before the
// last one has ended. Pending sums need host memory, at most pendingBytes().

#ifndef QLORA_RUNTIME_SESSION_GRADIENTTREE_H
#define QLORA_RUNTIME_SESSION_GRADIENTTREE_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// Checks that a run of `ranks` ranks supports --reproducible-reductions, if
/// the options request it.
Status checkReproducible(const Options &options, const LoadedModule &module,
                         int ranks);

/// Returns the order in which a rank runs its `count` micro-batches: the index
/// k of each turn. Each leaf is the sum of leafLength(count) consecutive turns.
std::vector<int64_t> turnsOf(int64_t count);
/// Returns the largest odd divisor of `count`.
int64_t leafLength(int64_t count);

/// Sums a step's gradients. Used by the session's thread, between entries.
class GradientTree {
public:
  /// `count`: K, the turns of a step. All arguments must outlive this object.
  GradientTree(int64_t count, const LoadedModule &module, Device &device,
               RankGroup &group);

  /// Returns kInvalidArgument if `ranks` is not a power of two, if the module
  /// shards the base or gradients, or if several ranks share rows or experts.
  static Status check(const LoadedModule &module, int ranks);
  /// Returns the host bytes that pending sums need in addition to the plan.
  static uint64_t pendingBytes(int64_t count, const LoadedModule &module,
                               int ranks);

  /// Call it after each turn, even if the turn had no micro-batch.
  Status endTurn();
  /// After the last turn: writes the total into every rank's gradient arena.
  Status finish();

private:
  struct Sum {
    int64_t leaves;
    std::vector<float> values;
  };
  Status take(std::vector<float> &values);
  Status put(std::span<const float> values);
  Status sumOverRanks(std::vector<float> &values);

  const int64_t count, leaf;
  Device &device;
  Collectives &ranks;
  const uint32_t arena;
  const size_t elements;
  int64_t turns = 0;
  std::vector<Sum> pending; ///< sorted from the largest to the smallest
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_GRADIENTTREE_H
