// SPDX-License-Identifier: MIT

// The ranks of a job once they have found each other: collectives, sums of
// host numbers, and what the ranks of a machine share: one copy of the frozen
// base, and, where all are on one machine, the memory that sums go through.

#ifndef QLORA_RUNTIME_RANKS_RANKGROUP_H
#define QLORA_RUNTIME_RANKS_RANKGROUP_H

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"
#include "runtime/Device/FrozenArena.h"
#include "runtime/Ranks/LocalRanks.h"
#include "runtime/Ranks/RankEnvironment.h"

namespace qlora {

/// Movable. One per process; used by the session's thread between entries.
class RankGroup {
public:
  /// Meets the other ranks; blocks until all are there. `listening`: the
  /// inherited socket of rank 0, or closed: rank 0 then opens its own, on
  /// loopback unless env.masterAddress is another host's or interface's.
  /// A group of one needs no network. `timeout`: of every later call, which
  /// waits for the slowest rank; that may be in an evaluation.
  static StatusOr<RankGroup> join(const RankEnvironment &env,
                                  FileDescriptor listening,
                                  std::chrono::milliseconds timeout);

  Collectives &collectives() { return *group; }
  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  /// Each machine has one such rank.
  bool isFirstOfMachine() const { return local.rank() == 0; }
  /// Of this rank's machine: another number for each.
  int firstOfMachine() const { return local.first(); }

  /// values[i] := its sum over all ranks, in their order.
  Status sum(std::span<int64_t> values);
  Status sum(std::span<double> values);

  /// A file that FrozenArena::filled() takes, or a closed descriptor.
  using OpenFilled = std::function<FileDescriptor()>;

  /// Memory for the frozen weights: one copy for all ranks of this machine.
  /// The first of them asks `openFilled` for a file that has them already.
  /// Without one, `share` says which part of the memory this rank has to fill.
  /// All ranks call it; afterwards they meet in a barrier and protect() it.
  StatusOr<FrozenArena> shareFrozenArena(uint64_t bytes,
                                         const OpenFilled &openFilled,
                                         FillShare &share);

private:
  LocalRanks local;
  std::unique_ptr<Collectives> group;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKGROUP_H
