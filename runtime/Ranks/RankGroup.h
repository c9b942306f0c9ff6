// SPDX-License-Identifier: MIT

// The ranks of a job once they have found each other: collectives of each group
// (ABI/collective.h), sums of host numbers, and what the ranks of a machine
// share: one copy of the frozen base, and, where all of a group are on one
// machine, the memory that its sums and pieces go through.
//
// The group of all is a ring of all. Where the base is divided among fewer,
// those who share one are a second ring, which was found through the first; a
// rank that is lost to either ends both (Ring::bind).

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

class Heartbeat;

/// Movable. One per process; used by the session's thread between entries.
class RankGroup {
public:
  /// Meets the other ranks; blocks until all are there. `listening`: the
  /// inherited socket of rank 0, or closed: rank 0 then opens its own, on
  /// loopback unless env.masterAddress is another host's or interface's.
  /// A group of one needs no network. `timeout`: of every later call, which
  /// waits for the slowest rank; that may be in an evaluation. `shards`: of the
  /// module; the ranks are a multiple of it (checkShards).
  ///
  /// A rank that cannot take part comes too, and says why (`own`): all then
  /// return the first such error.
  static StatusOr<RankGroup> join(const RankEnvironment &env,
                                  FileDescriptor listening,
                                  std::chrono::milliseconds timeout,
                                  int shards = 1, const Status &own = {});
  /// This rank ends for `error`: tells the others, and returns what all ranks
  /// of the job show, which may be another rank's error.
  Status end(const Status &error);

  /// Of all ranks.
  Collectives &collectives() { return *group; }
  /// Of the ranks of `axis` that this one is of; the same object where these
  /// are all.
  Collectives &collectives(qlora_group axis) {
    return axis == QLORA_GROUP_FSDP && shards ? *shards : *group;
  }
  /// Those of every axis, for a device.
  GroupCollectives groups() {
    return {&collectives(QLORA_GROUP_DP), &collectives(QLORA_GROUP_FSDP)};
  }
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
  std::unique_ptr<Collectives> shards; ///< null: all ranks are
  /// Ends first: its heartbeat closes the connections of both.
  std::unique_ptr<Collectives> group;
  Heartbeat *heartbeat = nullptr; ///< of the group; null: it is one rank
  bool isSupervised = false;      ///< our launcher shows one error of all
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKGROUP_H
