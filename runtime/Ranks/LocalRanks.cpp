// SPDX-License-Identifier: MIT

// Who is on this machine, and their descriptors.

#include "runtime/Ranks/LocalRanks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

namespace qlora {

/// As an Access is published.
static constexpr const char *kRead = "read";
static constexpr const char *kReadWrite = "read-write";

/// The same text on all processes that see each other's /proc, and no others:
/// the boot of the kernel and the process namespace.
static StatusOr<std::string> machineName() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  char space[PATH_MAX];
  ssize_t bytes = readlink("/proc/self/ns/pid", space, sizeof space);
  if (!std::getline(file, boot) || bytes < 0)
    return Status::error(StatusCode::kUnavailable,
                         "cannot read /proc to tell this machine from others");
  return boot + " " + std::string(space, static_cast<size_t>(bytes));
}

StatusOr<LocalRanks> LocalRanks::find(TcpStore &store, int rank, int size,
                                      std::chrono::milliseconds timeout) {
  LocalRanks ranks;
  ranks.store = &store;
  ranks.localSize = 0;
  QLORA_ASSIGN_OR_RETURN(ranks.machine, machineName());
  QLORA_RETURN_IF_ERROR(
      store.set(fmt::format("machine/{}", rank), ranks.machine));
  for (int other = 0; other < size; ++other) {
    QLORA_ASSIGN_OR_RETURN(
        std::string name, store.get(fmt::format("machine/{}", other), timeout));
    ranks.localRank += name == ranks.machine && other < rank;
    ranks.localSize += name == ranks.machine;
  }
  return ranks;
}

std::string LocalRanks::keyOf(std::string_view name) const {
  return fmt::format("{}/{}", name, machine);
}

Status LocalRanks::publish(std::string_view name, const FileDescriptor &memory,
                           Access access) {
  return store->set(keyOf(name),
                    fmt::format("{} /proc/{}/fd/{}",
                                access == Access::kRead ? kRead : kReadWrite,
                                getpid(), memory.get()));
}

StatusOr<LocalRanks::Published>
LocalRanks::open(std::string_view name, std::chrono::milliseconds timeout) {
  QLORA_ASSIGN_OR_RETURN(std::string found, store->get(keyOf(name), timeout));
  const size_t space = found.find(' ');
  const bool isRead = found.substr(0, space) == kRead;
  const std::string path = found.substr(space + 1);
  FileDescriptor memory(
      ::open(path.c_str(), (isRead ? O_RDONLY : O_RDWR) | O_CLOEXEC));
  if (!memory.isOpen())
    return Status::error(StatusCode::kUnavailable,
                         "cannot open the memory that another rank of this "
                         "machine shares ({}, {}): {}",
                         name, path, std::strerror(errno));
  return Published{std::move(memory),
                   isRead ? Access::kRead : Access::kReadWrite};
}

} // namespace qlora
