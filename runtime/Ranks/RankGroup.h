// SPDX-License-Identifier: MIT

// The ranks of a job once they have found each other: collectives of each group
// (ABI/Enums.def), sums of host numbers, and what the ranks of a machine
// share: one copy of the frozen base, and, where all of a group are on one
// machine, the memory that its sums and pieces go through.
//
// The group of all is a ring of all. Any other of several ranks, but not of all,
// is a ring too, which was found through the first; a rank that is lost to one
// ends all (Ring::bind).

#ifndef QLORA_RUNTIME_RANKS_RANKGROUP_H
#define QLORA_RUNTIME_RANKS_RANKGROUP_H

#include <array>
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
  /// waits for the slowest rank; that may be in an evaluation. The ranks
  /// are a multiple of what the groups of `mesh` have together (checkMesh).
  ///
  /// A rank that cannot take part comes too, and says why (`own`): all then
  /// return the first such error.
  static StatusOr<RankGroup> join(const RankEnvironment &env,
                                  FileDescriptor listening,
                                  std::chrono::milliseconds timeout,
                                  const GroupSizes &mesh = {},
                                  const Status &own = {});
  /// This rank ends for `error`: tells the others, and returns what all ranks
  /// of the job show, which may be another rank's error.
  Status end(const Status &error);

  /// Of all ranks.
  Collectives &collectives() { return *group; }
  /// Of the ranks of `axis` that this one is of; the same object where these
  /// are all.
  Collectives &collectives(qlora_group axis) {
    return parts[axis] ? *parts[axis] : *group;
  }
  /// Those of every axis, for a device.
  GroupCollectives groups() {
    GroupCollectives all;
    for (unsigned axis = 0; axis < QLORA_GROUP_COUNT; ++axis)
      all[axis] = &collectives(static_cast<qlora_group>(axis));
    return all;
  }
  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  /// Of the ranks with rows of their own, where those of a group TP, CP or PP
  /// are one: how many there are, and which this rank is or is a part of.
  int dataRanks() const { return static_cast<int>(sizes.dataRanks()); }
  int dataRank() const { return static_cast<int>(sizes.dataRank(rank())); }
  /// Of the ranks with the same rows one counts them for all: number 0 of each
  /// group, of the last stage, which knows what comes of them.
  bool countsRows() const {
    return countsSums() && number(QLORA_GROUP_CP) == 0;
  }
  /// So what a group TP has computed of them, which is the same on all; a rank
  /// of a group CP has that of its own tokens.
  bool countsSums() const {
    return number(QLORA_GROUP_TP) == 0 &&
           number(QLORA_GROUP_PP) == sizes[QLORA_GROUP_PP] - 1;
  }
  const GroupSizes &mesh() const { return sizes; }
  int64_t number(qlora_group axis) const { return sizes.number(axis, rank()); }
  /// Each machine has one such rank.
  bool isFirstOfMachine() const { return local.rank() == 0; }
  /// Of this rank's machine: another number for each.
  int firstOfMachine() const { return local.first(); }

  /// values[i] := its sum over all ranks, in their order.
  Status sum(std::span<int64_t> values);
  Status sum(std::span<double> values);

  /// A file that FrozenArena::filled() takes, or a closed descriptor.
  using OpenFilled = std::function<FileDescriptor()>;

  /// Memory for the frozen weights: one copy for all ranks of this machine that
  /// are of one stage. The first of them asks `openFilled` for a file that has
  /// them already. Without one, `share` says which part of the memory this rank
  /// has to fill. All ranks call it; afterwards they meet in a barrier and
  /// protect() it.
  StatusOr<FrozenArena> shareFrozenArena(uint64_t bytes,
                                         const OpenFilled &openFilled,
                                         FillShare &share);

private:
  LocalRanks local;
  LocalRanks sharers; ///< of this machine, those of this stage
  GroupSizes sizes;
  /// By axis; null: all ranks are.
  std::array<std::unique_ptr<Collectives>, QLORA_GROUP_COUNT> parts;
  /// Ends first: its heartbeat closes the connections of all.
  std::unique_ptr<Collectives> group;
  Heartbeat *heartbeat = nullptr; ///< of the group; null: it is one rank
  bool isSupervised = false;      ///< our launcher shows one error of all
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKGROUP_H
