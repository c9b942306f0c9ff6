// SPDX-License-Identifier: MIT

// The ranks of one machine, and how they hand each other memory that has no
// name: as a descriptor of a process that holds it open (/proc/PID/fd/N).

#ifndef QLORA_RUNTIME_RANKS_LOCALRANKS_H
#define QLORA_RUNTIME_RANKS_LOCALRANKS_H

#include <string_view>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Collectives.h"

namespace qlora {

/// Copyable. One thread.
class LocalRanks {
public:
  /// A machine of one.
  LocalRanks() = default;
  /// Asks all ranks of the job where they are. All call it. `part`: ranks of
  /// one machine are those that say the same.
  static StatusOr<LocalRanks> find(Collectives &group,
                                   std::string_view part = {});

  /// Which of this machine's ranks this one is, and how many they are.
  int rank() const { return localRank; }
  int size() const { return localSize; }
  /// The rank in the job of the first of them.
  int first() const { return firstRank; }

  /// What the other ranks may do with a rank's memory.
  enum class Access : uint64_t { kRead, kReadWrite };
  struct Shared {
    FileDescriptor memory;
    Access access = Access::kReadWrite;
  };
  /// Opens what the first rank of this machine has, which gives it back there.
  /// All ranks of the job call it, and have opened it when it returns to the
  /// first. The numbers that come from there are not trusted: what they lead to
  /// is a file with the size that this rank expects (at least that where it is
  /// read), and memory that is written belongs to this user. `name`: for errors.
  StatusOr<Shared> share(Collectives &group, std::string_view name,
                         Shared own, uint64_t bytes) const;

private:
  int firstRank = 0; ///< in the job
  int localRank = 0;
  int localSize = 1;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_LOCALRANKS_H
