// SPDX-License-Identifier: MIT

// The ranks of one machine, and how they hand each other memory that has no
// name: as a descriptor of a process that holds it open (/proc/PID/fd/N).

#ifndef QLORA_RUNTIME_RANKS_LOCALRANKS_H
#define QLORA_RUNTIME_RANKS_LOCALRANKS_H

#include <chrono>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/TcpStore.h"

namespace qlora {

/// Copyable; the store outlives it. One thread.
class LocalRanks {
public:
  /// A machine of one.
  LocalRanks() = default;
  /// Asks all ranks of the job where they are. All call it, once in a job.
  static StatusOr<LocalRanks> find(TcpStore &store, int rank, int size,
                                   std::chrono::milliseconds timeout);

  /// Which of this machine's ranks this one is, and how many they are.
  int rank() const { return localRank; }
  int size() const { return localSize; }

  /// What the other ranks may do with a rank's memory.
  enum class Access { kRead, kReadWrite };
  struct Published {
    FileDescriptor memory;
    Access access;
  };
  /// Lets the others of this machine open `memory`, which stays open here until
  /// they have. `name`: once in a job.
  Status publish(std::string_view name, const FileDescriptor &memory,
                 Access access);
  /// Waits until it is published.
  StatusOr<Published> open(std::string_view name,
                           std::chrono::milliseconds timeout);

private:
  std::string keyOf(std::string_view name) const;

  TcpStore *store = nullptr;
  std::string machine;
  int localRank = 0;
  int localSize = 1;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_LOCALRANKS_H
