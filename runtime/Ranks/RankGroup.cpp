// SPDX-License-Identifier: MIT

// Rendezvous, sums, and the memory that ranks of a machine share.

#include "runtime/Ranks/RankGroup.h"

#include <algorithm>
#include <vector>

#include "runtime/Ranks/GlooCollectives.h"

namespace qlora {

namespace {

/// At most, where --ddp-timeout allows as much.
constexpr std::chrono::milliseconds kJoinTimeout = std::chrono::minutes(5);

/// Integers travel as f32 digits of 12 bits, so that 4,096 of them add up
/// without rounding.
constexpr int kDigitBits = 12;
constexpr int kDigits = 5;

} // namespace

/// None where some rank is on another machine.
static StatusOr<std::optional<SharedWindow>>
openWindow(LocalRanks &local, int worldSize,
           std::chrono::milliseconds patience) {
  if (local.size() != worldSize)
    return std::optional<SharedWindow>();
  FileDescriptor memory;
  if (local.rank() == 0) {
    QLORA_ASSIGN_OR_RETURN(memory, SharedWindow::create(worldSize));
    QLORA_RETURN_IF_ERROR(
        local.publish("sums", memory, LocalRanks::Access::kReadWrite));
  } else {
    QLORA_ASSIGN_OR_RETURN(LocalRanks::Published published,
                           local.open("sums", patience));
    memory = std::move(published.memory);
  }
  QLORA_ASSIGN_OR_RETURN(
      SharedWindow window,
      SharedWindow::map(std::move(memory), local.rank(), local.size()));
  return std::optional<SharedWindow>(std::move(window));
}

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
  const auto patience = std::min(timeout, kJoinTimeout);
  QLORA_ASSIGN_OR_RETURN(joined.store,
                         TcpStore::connect(env.masterAddress, env.masterPort,
                                           env.secret, patience));
  auto local =
      LocalRanks::find(*joined.store, env.rank, env.worldSize, patience);
  if (!local.isOk())
    return local.status().withContext(fmt::format(
        "not all of the {} ranks have started", env.worldSize));
  joined.local = std::move(*local);
  QLORA_ASSIGN_OR_RETURN(std::optional<SharedWindow> window,
                         openWindow(joined.local, env.worldSize, patience));
  QLORA_ASSIGN_OR_RETURN(joined.group,
                         GlooCollectives::connect(*joined.store, env.rank,
                                                  env.worldSize, timeout,
                                                  std::move(window)));
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

/// The file that has the weights, or empty memory.
Status RankGroup::publish(FileDescriptor &memory, bool isFilled,
                          uint64_t bytes) {
  if (!isFilled) {
    QLORA_ASSIGN_OR_RETURN(int fd,
                           HostMemory::createShared("qlora-frozen", bytes));
    memory = FileDescriptor(fd);
  }
  return local.publish("frozen", memory,
                       isFilled ? LocalRanks::Access::kRead
                                : LocalRanks::Access::kReadWrite);
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
  share = {static_cast<unsigned>(local.rank()),
           static_cast<unsigned>(local.size())};
  FileDescriptor memory;
  bool isFilled = false;
  if (share.rank > 0) {
    // The first rank may be reading the whole of a large file.
    QLORA_ASSIGN_OR_RETURN(LocalRanks::Published published,
                           local.open("frozen", timeout));
    memory = std::move(published.memory);
    isFilled = published.access == LocalRanks::Access::kRead;
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
