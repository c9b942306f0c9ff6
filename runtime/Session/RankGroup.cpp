// SPDX-License-Identifier: MIT

// Rendezvous, sums and the shared base.

#include "runtime/Session/RankGroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/Device/Cpu/GlooCollectives.h"

namespace qlora {

namespace {

constexpr auto kJoinTimeout = std::chrono::minutes(5);

/// What the memory of a machine's ranks is when it is published.
constexpr const char *kFilled = "filled";
constexpr const char *kEmpty = "empty";

/// Integers travel as f32 digits of 12 bits, so that 4,096 of them add up
/// without rounding.
constexpr int kDigitBits = 12;
constexpr int kDigits = 5;

} // namespace

StatusOr<RankGroup> RankGroup::join(const RankEnvironment &env,
                                    FileDescriptor listening,
                                    std::chrono::milliseconds timeout) {
  RankGroup joined;
  joined.timeout = timeout;
  if (env.worldSize == 1) {
    joined.group = std::make_unique<SingleRank>();
    return joined;
  }
  if (env.isMain()) {
    if (!listening.isOpen()) {
      auto socket = listenOn(env.masterAddress, env.masterPort);
      if (!socket.isOk())
        return socket.status().withContext(
            "rank 0 cannot serve MASTER_ADDR:MASTER_PORT; choose a free port");
      listening = std::move(*socket);
    }
    QLORA_ASSIGN_OR_RETURN(
        joined.server, TcpStoreServer::start(std::move(listening), env.secret));
  }
  QLORA_ASSIGN_OR_RETURN(joined.store,
                         TcpStore::connect(env.masterAddress, env.masterPort,
                                           env.secret, kJoinTimeout));
  QLORA_ASSIGN_OR_RETURN(joined.group,
                         GlooCollectives::connect(*joined.store, env.rank,
                                                  env.worldSize, timeout));
  return joined;
}

Status RankGroup::sum(std::span<int64_t> values) {
  std::vector<float> digits(values.size() * kDigits);
  constexpr int64_t kMask = (1 << kDigitBits) - 1;
  for (size_t i = 0; i < values.size(); ++i)
    for (int d = 0; d < kDigits; ++d)
      digits[i * kDigits + d] =
          static_cast<float>(values[i] >> (d * kDigitBits) & kMask);
  QLORA_RETURN_IF_ERROR(
      group->allReduceSum(digits.data(), static_cast<int64_t>(digits.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (int d = 0; d < kDigits; ++d)
      values[i] += static_cast<int64_t>(digits[i * kDigits + d])
                   << (d * kDigitBits);
  }
  return Status::ok();
}

Status RankGroup::sum(std::span<double> values) {
  std::vector<float> rounded(values.begin(), values.end());
  QLORA_RETURN_IF_ERROR(group->allReduceSum(
      rounded.data(), static_cast<int64_t>(rounded.size())));
  // A group of one keeps all the digits it has.
  if (size() > 1)
    std::copy(rounded.begin(), rounded.end(), values.begin());
  return Status::ok();
}

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

/// Which rank this is of those on its machine.
Status RankGroup::findShare(FillShare &share) {
  QLORA_ASSIGN_OR_RETURN(machine, machineName());
  QLORA_RETURN_IF_ERROR(store->set(fmt::format("machine/{}", rank()), machine));
  share = {0, 0};
  for (int other = 0; other < size(); ++other) {
    QLORA_ASSIGN_OR_RETURN(
        std::string name,
        store->get(fmt::format("machine/{}", other), kJoinTimeout));
    share.rank += name == machine && other < rank();
    share.size += name == machine;
  }
  return Status::ok();
}

/// The memory has no name, and the file may lose its: the others find both as
/// a descriptor of this process. A word says which of the two it is.
Status RankGroup::publish(FileDescriptor &memory, bool isFilled,
                          uint64_t bytes) {
  if (!isFilled) {
    QLORA_ASSIGN_OR_RETURN(int fd, FrozenArena::createShared(bytes));
    memory = FileDescriptor(fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return store->set("frozen/" + machine,
                    fmt::format("{} /proc/{}/fd/{}",
                                isFilled ? kFilled : kEmpty, getpid(),
                                memory.get()));
}

StatusOr<FileDescriptor> RankGroup::openPublished(bool &isFilled) {
  // The first rank may be reading the whole of a large file.
  QLORA_ASSIGN_OR_RETURN(std::string found,
                         store->get("frozen/" + machine, timeout));
  const size_t space = found.find(' ');
  isFilled = found.substr(0, space) == kFilled;
  const std::string path = found.substr(space + 1);
  FileDescriptor memory(
      open(path.c_str(), (isFilled ? O_RDONLY : O_RDWR) | O_CLOEXEC));
  if (!memory.isOpen())
    return Status::error(StatusCode::kUnavailable,
                         "cannot open the base that another rank of this "
                         "machine holds ({}): {}",
                         path, std::strerror(errno));
  return memory;
}

static StatusOr<FrozenArena> mapArena(const FileDescriptor &memory,
                                      bool isFilled, uint64_t bytes) {
  if (!memory.isOpen())
    return FrozenArena::anonymous(bytes);
  return isFilled ? FrozenArena::filled(memory.get(), bytes)
                  : FrozenArena::fromDescriptor(memory.get(), bytes);
}

StatusOr<FrozenArena> RankGroup::shareFrozenArena(uint64_t bytes,
                                                  const OpenFilled &openFilled,
                                                  FillShare &share) {
  share = {};
  if (size() > 1)
    QLORA_RETURN_IF_ERROR(findShare(share));
  FileDescriptor memory;
  bool isFilled = false;
  if (share.rank > 0) {
    QLORA_ASSIGN_OR_RETURN(memory, openPublished(isFilled));
  } else {
    memory = openFilled();
    isFilled = memory.isOpen();
    if (share.size > 1)
      QLORA_RETURN_IF_ERROR(publish(memory, isFilled, bytes));
  }
  QLORA_ASSIGN_OR_RETURN(FrozenArena arena, mapArena(memory, isFilled, bytes));
  // Nobody closes before all have opened. All ranks of the job meet here, also
  // one that is alone on its machine.
  if (size() > 1)
    QLORA_RETURN_IF_ERROR(group->barrier());
  return arena;
}

} // namespace qlora
