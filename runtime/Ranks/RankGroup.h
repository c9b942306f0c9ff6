// SPDX-License-Identifier: MIT

// The connected ranks of a job: collectives of each group (ABI/Enums.def), sums
// of host values, and memory that the ranks of a machine share: one copy of the
// frozen base and, for each group that is on one machine, the memory for
// reductions and all-gathers.
//
// The world group is a ring. Every smaller group of several ranks is a ring
// too; its ranks meet through the first ring. If one ring loses a rank, all
// rings end (Ring::bind).

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
  /// Connects to the other ranks; blocks until all are connected. `listening`
  /// is rank 0's inherited socket. If it is closed, rank 0 opens one, on
  /// loopback unless env.masterAddress is another interface. A single rank
  /// needs no network. `timeout` bounds every later call, including its wait
  /// for the slowest rank, for example during an evaluation. The number of
  /// ranks must be a multiple of the size of `mesh` (checkMesh).
  ///
  /// A rank that cannot take part also calls this, with its error in `own`. All
  /// ranks then return the first error.
  static StatusOr<RankGroup> join(const RankEnvironment &env,
                                  FileDescriptor listening,
                                  std::chrono::milliseconds timeout,
                                  const GroupSizes &mesh = {},
                                  const Status &own = {});
  /// Ends this rank because of `error`: informs the others, and returns the
  /// error that all ranks show, which may be another rank's.
  Status end(const Status &error);

  /// Returns the collectives of all ranks.
  Collectives &collectives() { return *group; }
  /// Returns the collectives of this rank's group of `axis`, which may be all
  /// ranks.
  Collectives &collectives(qlora_group axis) {
    return parts[axis] ? *parts[axis] : *group;
  }
  /// Returns the collectives of all axes, for a device.
  GroupCollectives groups() {
    GroupCollectives all;
    for (unsigned axis = 0; axis < QLORA_GROUP_COUNT; ++axis)
      all[axis] = &collectives(static_cast<qlora_group>(axis));
    return all;
  }
  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  /// Return the number of data-parallel ranks, and this rank's index among
  /// them. Ranks of one TP, CP or PP group have the same rows and count as one.
  int dataRanks() const { return static_cast<int>(sizes.dataRanks()); }
  int dataRank() const { return static_cast<int>(sizes.dataRank(rank())); }
  /// Whether this rank counts rows for all ranks with the same rows: it has
  /// index 0 in TP and CP, and is on the last stage, which has the results.
  bool countsRows() const {
    return countsSums() && number(QLORA_GROUP_CP) == 0;
  }
  /// Whether this rank's sums over rows count in totals over all ranks. Ranks
  /// of a TP group have equal sums, so one of them counts. Ranks of a CP group
  /// have sums of their own tokens, so each counts.
  bool countsSums() const {
    return number(QLORA_GROUP_TP) == 0 &&
           number(QLORA_GROUP_PP) == sizes[QLORA_GROUP_PP] - 1;
  }
  const GroupSizes &mesh() const { return sizes; }
  int64_t number(qlora_group axis) const { return sizes.number(axis, rank()); }
  /// Whether this rank is its machine's first.
  bool isFirstOfMachine() const { return local.rank() == 0; }
  /// Returns the first rank of this machine, which identifies the machine.
  int firstOfMachine() const { return local.first(); }

  /// Set values[i] to its sum over all ranks, added in rank order.
  Status sum(std::span<int64_t> values);
  Status sum(std::span<double> values);

  /// Long work of a rank. It must call its argument at least every second, and
  /// end with the argument's error.
  using Work = std::function<Status(const std::function<Status()> &often)>;

  /// Runs `work`, which may be null, and returns when no rank works any more.
  /// Waiting for work has no time limit. Fails if a rank has died. All ranks
  /// call this.
  Status workWhileOthersWait(const Work &work);

  /// Returns the memory that this machine's first rank gives in `own`, for
  /// reading; it must have at least `bytes` bytes. All ranks call this.
  StatusOr<FileDescriptor> shareForReading(std::string_view name,
                                           FileDescriptor own, uint64_t bytes);

  /// Returns a file that has the frozen weights, or a closed descriptor.
  using OpenFilled = std::function<FileDescriptor()>;

  /// Returns memory for the frozen weights: one copy for all ranks of one stage
  /// on this machine. The first of these ranks calls `openFilled`. If it
  /// returns no file, `share` is set to the parameters that this rank must
  /// fill. All ranks call this. When all have filled their shares and met in a
  /// barrier, each calls protect().
  StatusOr<FrozenArena> shareFrozenArena(uint64_t bytes,
                                         const OpenFilled &openFilled,
                                         FillShare &share);

private:
  LocalRanks local;
  LocalRanks sharers; ///< ranks that share this rank's base memory
  GroupSizes sizes;
  /// Collectives by axis; null: the group is all ranks.
  std::array<std::unique_ptr<Collectives>, QLORA_GROUP_COUNT> parts;
  /// Destroyed before `parts`: its heartbeat closes all groups' connections.
  std::unique_ptr<Collectives> group;
  Heartbeat *heartbeat = nullptr; ///< owned by `group`; null: a single rank
  bool isSupervised = false; ///< the built-in launcher shows a single error
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKGROUP_H
