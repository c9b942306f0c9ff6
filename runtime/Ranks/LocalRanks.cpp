// SPDX-License-Identifier: MIT

// Finds the ranks of this machine and opens their memory.

#include "runtime/Ranks/LocalRanks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>

namespace qlora {

namespace {
/// Process id and descriptor of a rank's memory.
struct Offer {
  int64_t process = 0, descriptor = 0;
  LocalRanks::Access access = LocalRanks::Access::kReadWrite;
};
} // namespace

/// Returns a text that is equal only for processes that see each other's /proc:
/// the kernel's boot id and the pid namespace.
static StatusOr<std::string> machineName() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  char space[PATH_MAX];
  ssize_t bytes = readlink("/proc/self/ns/pid", space, sizeof space);
  if (!std::getline(file, boot) || bytes < 0)
    return Status::unavailable(
        "cannot identify this machine: /proc is not readable. Fix: mount it");
  return boot + " " + std::string(space, static_cast<size_t>(bytes));
}

StatusOr<LocalRanks> LocalRanks::find(Collectives &group,
                                      std::string_view part) {
  QLORA_ASSIGN_OR_RETURN(std::string machine, machineName());
  machine += fmt::format(" {}", part);
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> machines,
                         group.allGather(machine));
  LocalRanks ranks;
  ranks.localSize = 0;
  for (int other = group.size() - 1; other >= 0; --other) {
    if (machines[static_cast<size_t>(other)] != machine)
      continue;
    ranks.firstRank = other;
    ranks.localRank += other < group.rank();
    ++ranks.localSize;
  }
  return ranks;
}

/// Returns why `memory` cannot be the offered memory of `bytes` bytes, or "".
static std::string objectionTo(const FileDescriptor &memory,
                               LocalRanks::Access access, uint64_t bytes) {
  struct stat info {};
  if (!memory.isOpen() || fstat(memory.get(), &info) != 0)
    return std::strerror(errno);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode))
    return "it is not a file";
  if (access == LocalRanks::Access::kRead ? size < bytes : size != bytes)
    return fmt::format("it has {} bytes instead of {}", size, bytes);
  if (access == LocalRanks::Access::kReadWrite && info.st_uid != geteuid())
    return "it belongs to another user";
  return "";
}

static StatusOr<FileDescriptor> open(const Offer &offer, std::string_view name,
                                     uint64_t bytes) {
  const std::string path =
      fmt::format("/proc/{}/fd/{}", offer.process, offer.descriptor);
  const int mode =
      offer.access == LocalRanks::Access::kRead ? O_RDONLY : O_RDWR;
  FileDescriptor memory(::open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK));
  const std::string wrong = objectionTo(memory, offer.access, bytes);
  if (wrong.empty())
    return memory;
  return Status::unavailable("cannot open memory that another rank of this "
                             "machine shares ({}, {}): {}",
                             name, path, wrong);
}

StatusOr<LocalRanks::Shared> LocalRanks::share(Collectives &group,
                                               std::string_view name,
                                               Shared own,
                                               uint64_t bytes) const {
  const Offer mine = {getpid(), own.memory.get(), own.access};
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<Offer>> offers,
      group.allGatherValues(std::span(&mine, localRank == 0 ? 1 : 0)));
  const std::vector<Offer> &first = offers[static_cast<size_t>(firstRank)];
  if (localRank > 0) {
    if (first.empty())
      return Status::error(StatusCode::kInternal, "no rank shares {}", name);
    own.access = first[0].access;
    QLORA_ASSIGN_OR_RETURN(own.memory, open(first[0], name, bytes));
  }
  // The owner must not close its descriptor before all ranks have opened it. A
  // rank that is alone on its machine must call the barrier too.
  QLORA_RETURN_IF_ERROR(group.barrier());
  return own;
}

} // namespace qlora
