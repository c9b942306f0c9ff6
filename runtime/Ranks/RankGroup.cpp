// SPDX-License-Identifier: MIT

// Connects the ranks, sums host values, and shares memory within a machine.

#include "runtime/Ranks/RankGroup.h"

#include <algorithm>
#include <vector>

#include "runtime/Ranks/RendezvousServer.h"
#include "runtime/Ranks/RingCollectives.h"
#include "runtime/Ranks/Socket.h"

namespace qlora {

/// Opens shared memory for collectives if the whole group is on one machine.
static Status openWindow(const LocalRanks &local, RingCollectives &group) {
  if (local.size() != group.size())
    return Status::ok();
  LocalRanks::Shared shared;
  if (local.rank() == 0) {
    QLORA_ASSIGN_OR_RETURN(shared.memory, SharedWindow::create(local.size()));
  }
  QLORA_ASSIGN_OR_RETURN(shared,
                         local.share(group, "sums", std::move(shared),
                                     SharedWindow::bytesFor(local.size())));
  QLORA_ASSIGN_OR_RETURN(SharedWindow window,
                         SharedWindow::map(shared.memory, local.rank(),
                                           local.size()));
  group.useWindow(std::move(window));
  return Status::ok();
}

namespace {
/// The group of all ranks, and the address of this rank.
struct World {
  std::unique_ptr<RingCollectives> group;
  std::string address;
};
} // namespace

static bool hasOwnLauncher(const RankEnvironment &env) {
  return env.launcher == kOwnLauncher;
}

/// Starts the server on rank 0; returns null on other ranks.
static StatusOr<std::unique_ptr<RendezvousServer>>
serveRendezvous(const RankEnvironment &env, FileDescriptor listening,
                std::chrono::milliseconds patience) {
  if (!env.isMain())
    return std::unique_ptr<RendezvousServer>();
  const std::string place =
      fmt::format("{}:{}", env.masterAddress, env.masterPort);
  if (!listening.isOpen()) {
    auto own = listenOn(env.masterAddress, env.masterPort);
    if (own.status().code() == StatusCode::kResourceExhausted)
      return portTaken(place);
    QLORA_RETURN_IF_ERROR(own.status().withContext(
        "rank 0 cannot serve MASTER_ADDR:MASTER_PORT"));
    listening = std::move(*own);
  }
  RendezvousServer::Terms terms;
  terms.secret = env.secret;
  terms.ranks = env.worldSize;
  terms.version = QLORA_VERSION;
  terms.place = place;
  terms.patience = patience;
  terms.limits = env.limits;
  return RendezvousServer::start(
      std::move(listening), std::move(terms), [](const std::string &text) {
        fmt::print(stderr, "qlora-run: warning: {}\n", text);
      });
}

/// Returns the job's time limits. The heartbeat's `settle` and `word` are 0
/// under the built-in launcher, which receives every rank's error and chooses
/// one.
static RankTimeLimits limitsOf(const RankEnvironment &env) {
  RankTimeLimits limits = env.limits;
  if (hasOwnLauncher(env))
    limits.heartbeat.settle = limits.heartbeat.word = {};
  return limits;
}

static std::string ownName(const RankEnvironment &env) {
  return fmt::format("rank {} ({})", env.rank, hostName());
}

/// Reports this rank's error to the rendezvous, before the ring exists.
static Status refuse(Rendezvous &rendezvous, const RankEnvironment &env,
                     const Status &own, std::chrono::milliseconds patience) {
  const Status shown =
      rendezvous.exchange(own.withContext(ownName(env)), patience).status();
  return hasOwnLauncher(env) ? own : Status(own.code(), shown.message());
}

static StatusOr<World> meetAll(const RankEnvironment &env,
                               FileDescriptor listening,
                               std::chrono::milliseconds timeout,
                               const Status &own) {
  const auto patience =
      std::min<std::chrono::milliseconds>(timeout, env.patience);
  QLORA_ASSIGN_OR_RETURN(const std::unique_ptr<RendezvousServer> server,
                         serveRendezvous(env, std::move(listening), patience));
  // Rank 0's client waits longer than its server, so that the server's error
  // comes first: it names the missing ranks.
  QLORA_ASSIGN_OR_RETURN(
      Rendezvous rendezvous,
      Rendezvous::connect(env.masterAddress, env.masterPort, env.secret,
                          {env.rank, env.worldSize, hostName(), QLORA_VERSION},
                          server ? patience + env.limits.longer : patience,
                          env.limits));
  auto ring = own.isOk() ? Ring::connect(rendezvous, env.secret, patience,
                                         timeout, limitsOf(env))
                         : refuse(rendezvous, env, own, patience);
  if (!ring.isOk())
    rendezvous.close(); // so that the server informs other ranks
  if (server)
    server->waitUntilTold(env.limits.telling);
  QLORA_RETURN_IF_ERROR(ring.status());
  World world;
  world.group = std::make_unique<RingCollectives>(std::move(*ring));
  world.address = rendezvous.localAddress();
  QLORA_ASSIGN_OR_RETURN(std::vector<std::string> hosts,
                         world.group->allGather(hostName()));
  // Host names are not needed if all ranks are on one machine.
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) !=
      hosts.end())
    world.group->heartbeat()->nameHosts(std::move(hosts));
  return world;
}

/// Connects this rank's group of `axis`, which is smaller than the world.
static StatusOr<std::unique_ptr<Collectives>>
meetPart(World &world, const RankEnvironment &env, qlora_group axis,
         const GroupSizes &sizes, std::chrono::milliseconds timeout) {
  const Ring::Members members = {static_cast<int>(sizes.number(axis, env.rank)),
                                 static_cast<int>(sizes[axis]),
                                 static_cast<int>(sizes.first(axis, env.rank)),
                                 static_cast<int>(sizes.stride(axis))};
  const auto tellNext = [&](const std::string &own) -> StatusOr<std::string> {
    QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           world.group->allGather(own));
    return all[static_cast<size_t>(
        members.first + (members.rank + 1) % members.size * members.stride)];
  };
  QLORA_ASSIGN_OR_RETURN(
      std::unique_ptr<Ring> ring,
      Ring::connect(
          world.address, tellNext, [&] { return world.group->checkOthers(); },
          env.secret, members,
          std::min<std::chrono::milliseconds>(timeout, env.patience), timeout,
          env.limits));
  auto group = std::make_unique<RingCollectives>(std::move(ring));
  QLORA_ASSIGN_OR_RETURN(const LocalRanks local, LocalRanks::find(*group));
  QLORA_RETURN_IF_ERROR(openWindow(local, *group));
  world.group->bind(*group);
  return std::unique_ptr<Collectives>(std::move(group));
}

StatusOr<RankGroup> RankGroup::join(const RankEnvironment &env,
                                    FileDescriptor listening,
                                    std::chrono::milliseconds timeout,
                                    const GroupSizes &mesh, const Status &own) {
  RankGroup joined;
  joined.sizes = mesh.on(env.worldSize);
  joined.isSupervised = hasOwnLauncher(env);
  if (env.worldSize == 1) {
    QLORA_RETURN_IF_ERROR(own);
    joined.group = std::make_unique<SingleRank>();
    return joined;
  }
  raiseDescriptorLimit();
  QLORA_ASSIGN_OR_RETURN(World world,
                         meetAll(env, std::move(listening), timeout, own));
  QLORA_ASSIGN_OR_RETURN(joined.local, LocalRanks::find(*world.group));
  QLORA_RETURN_IF_ERROR(openWindow(joined.local, *world.group));
  joined.sharers = joined.local;
  if (joined.sizes[QLORA_GROUP_PP] > 1) {
    const int64_t stage = joined.sizes.number(QLORA_GROUP_PP, env.rank);
    QLORA_ASSIGN_OR_RETURN(
        joined.sharers,
        LocalRanks::find(*world.group, fmt::format("stage {}", stage)));
  }
  for (unsigned axis = 0; axis < QLORA_GROUP_COUNT; ++axis) {
    if (joined.sizes[axis] == env.worldSize)
      continue;
    joined.parts[axis] = std::make_unique<SingleRank>();
    if (joined.sizes[axis] > 1) {
      QLORA_ASSIGN_OR_RETURN(joined.parts[axis],
                             meetPart(world, env,
                                      static_cast<qlora_group>(axis),
                                      joined.sizes, timeout));
    }
  }
  // Wait for all ranks: if this rank ended now, ranks that are still connecting
  // would report it as lost.
  if (std::ranges::any_of(joined.parts, [](const auto &part) {
        return part && part->size() > 1;
      }))
    QLORA_RETURN_IF_ERROR(world.group->barrier());
  joined.heartbeat = world.group->heartbeat();
  joined.group = std::move(world.group);
  return joined;
}

Status RankGroup::end(const Status &error) {
  if (!heartbeat)
    return error;
  // kAborted is another rank's error, so do not prefix this rank's name.
  const bool isOthers = error.code() == StatusCode::kAborted;
  const std::string text =
      isOthers
          ? error.message()
          : fmt::format("{}: {}", heartbeat->nameOf(rank()), error.message());
  const Cause shown = heartbeat->conclude({rank(), isOthers, text}, isOthers);
  return isSupervised ? error : Status(error.code(), shown.text);
}

/// Sums each rank's values in rank order.
template <typename T>
static Status sumOverRanks(Collectives &group, std::span<T> values) {
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::vector<T>> all,
                         group.allGatherValues(std::span<const T>(values)));
  for (const std::vector<T> &each : all)
    if (each.size() != values.size())
      return Status::error(StatusCode::kInternal,
                           "ranks add up {} and {} values", values.size(),
                           each.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = all[0][i];
    for (size_t rank = 1; rank < all.size(); ++rank)
      values[i] += all[rank][i];
  }
  return Status::ok();
}

Status RankGroup::sum(std::span<int64_t> values) {
  return sumOverRanks(*group, values);
}

Status RankGroup::sum(std::span<double> values) {
  return sumOverRanks(*group, values);
}

Status RankGroup::workWhileOthersWait(const Work &work) {
  const auto someWork = [&](int64_t thisWorks) -> StatusOr<bool> {
    QLORA_RETURN_IF_ERROR(sum(std::span(&thisWorks, 1)));
    return thisWorks > 0;
  };
  // All ranks call someWork() together. The ranks that work call it twice a
  // second, so a waiting rank never waits for long.
  using Clock = std::chrono::steady_clock;
  constexpr auto kPause = std::chrono::milliseconds(500);
  auto last = Clock::now();
  const auto often = [&] {
    if (Clock::now() - last < kPause)
      return Status::ok();
    last = Clock::now();
    return someWork(1).status();
  };
  if (work)
    QLORA_RETURN_IF_ERROR(work(often));
  for (bool waits = true; waits;) {
    QLORA_ASSIGN_OR_RETURN(waits, someWork(0));
  }
  return Status::ok();
}

StatusOr<FileDescriptor> RankGroup::shareForReading(std::string_view name,
                                                    FileDescriptor own,
                                                    uint64_t bytes) {
  QLORA_ASSIGN_OR_RETURN(
      LocalRanks::Shared shared,
      local.share(*group, name, {std::move(own), LocalRanks::Access::kRead},
                  bytes));
  return std::move(shared.memory);
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
  using Access = LocalRanks::Access;
  share = {static_cast<unsigned>(sharers.rank()),
           static_cast<unsigned>(sharers.size())};
  LocalRanks::Shared own;
  if (share.rank == 0) {
    own.memory = openFilled();
    own.access = own.memory.isOpen() ? Access::kRead : Access::kReadWrite;
    if (!own.memory.isOpen() && share.size > 1) {
      QLORA_ASSIGN_OR_RETURN(int fd,
                             HostMemory::createShared("qlora-frozen", bytes));
      own.memory = FileDescriptor(fd);
    }
  }
  // This may block while the machine's first rank reads a large file.
  QLORA_ASSIGN_OR_RETURN(
      own, sharers.share(*group, "frozen", std::move(own), bytes));
  return mapArena(own.memory, own.access == Access::kRead, bytes);
}

} // namespace qlora
