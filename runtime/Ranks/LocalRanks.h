// SPDX-License-Identifier: MIT

// The ranks of one machine, and how they share unnamed memory: through the
// descriptor of a process that holds it open (/proc/PID/fd/N).

#ifndef QLORA_RUNTIME_RANKS_LOCALRANKS_H
#define QLORA_RUNTIME_RANKS_LOCALRANKS_H

#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"

namespace qlora {

/// Copyable. Used by one thread.
class LocalRanks {
public:
  /// Makes a machine with only this rank.
  LocalRanks() = default;
  /// Finds the ranks of this machine. All ranks of the group call it. Ranks
  /// with different values of `part` are treated as on different machines.
  static StatusOr<LocalRanks> find(Collectives &group,
                                   std::string_view part = {});

  /// Return this rank's index on the machine, and the machine's rank count.
  int rank() const { return localRank; }
  int size() const { return localSize; }
  /// Returns the rank, in the group, of the machine's first rank.
  int first() const { return firstRank; }

  /// How the other ranks may access a rank's memory.
  enum class Access : uint64_t { kRead, kReadWrite };
  struct Shared {
    FileDescriptor memory;
    Access access = Access::kReadWrite;
  };
  /// Opens the memory of the machine's first rank; that rank gets `own` back.
  /// All ranks of the group call it; when it returns, all have opened the
  /// memory. The received descriptor must be a file of the expected size, or
  /// larger if it is only read. Writable memory must belong to this user.
  /// `name` is for error messages.
  StatusOr<Shared> share(Collectives &group, std::string_view name,
                         Shared own, uint64_t bytes) const;

private:
  int firstRank = 0; ///< index in the group
  int localRank = 0;
  int localSize = 1;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_LOCALRANKS_H
