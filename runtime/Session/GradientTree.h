// SPDX-License-Identifier: MIT

// --reproducible-reductions: sums of gradients whose bits do not depend on how
// many ranks there are.
//
// A step has G = K N micro-batches, of which number k N + r is the k-th of rank r.
// What is summed is a tree over G: of a residue class c modulo m, with n members,
//
//   sum(c, m) = sum(c, 2 m) + sum(c + m, 2 m)     where n is even
//             = its members, one after the other  where n is odd
//
// from sum(0, 1) on. With N a power of two, the members of c modulo N are those of
// rank c: each rank sums its own and the ranks sum the rest, whatever N is. A rank
// runs its micro-batches in an order in which only log2(K) sums wait at a time:
// the classes of k by their bits from the last to the first, a class at a time.
//
// That order, and that nothing is sent before the last micro-batch has ended, is
// the price. Sums that wait are in the memory of the host, at most pendingBytes().

#ifndef QLORA_RUNTIME_SESSION_GRADIENTTREE_H
#define QLORA_RUNTIME_SESSION_GRADIENTTREE_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Ranks/RankGroup.h"

namespace qlora {

/// The k of each of `count` turns. Blocks of turns that sum into one leaf have
/// leafLength(count) members.
std::vector<int64_t> turnsOf(int64_t count);
/// The largest odd divisor.
int64_t leafLength(int64_t count);

/// Of one step of one rank. Used by the session's thread, between entries.
class GradientTree {
public:
  /// `count`: K. All outlive it.
  GradientTree(int64_t count, const LoadedModule &module, Device &device,
               RankGroup &group);

  /// kInvalidArgument where so many ranks, or what they hold together, have no
  /// such tree.
  static Status check(const LoadedModule &module, int ranks);
  /// Of the host, beside the plan.
  static uint64_t pendingBytes(int64_t count, const LoadedModule &module,
                               int ranks);

  /// After each turn, whether it has run a micro-batch or there was none.
  Status endTurn();
  /// After the last: the gradient arena of every rank := the sum of all.
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
  std::vector<Sum> pending; ///< from the largest to the smallest
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_GRADIENTTREE_H
