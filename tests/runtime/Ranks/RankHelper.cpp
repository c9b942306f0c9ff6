// SPDX-License-Identifier: MIT

// A rank process for SupervisorTest: joins the other ranks, then behaves as
// argv[1] specifies.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "runtime/Ranks/RankEnvironment.h"
#include "runtime/Ranks/RankGroup.h"

using namespace qlora;

static Status play(const std::string &scene, const std::string &file,
                   RankGroup &group) {
  int rank = group.rank();
  if (scene == "sum") {
    int64_t counts[] = {rank + 1, int64_t(1) << 40};
    QLORA_RETURN_IF_ERROR(group.sum(counts));
    FillShare share;
    QLORA_ASSIGN_OR_RETURN(
        FrozenArena arena,
        group.shareFrozenArena(
            1 << 20, [] { return FileDescriptor(); }, share));
    arena.bytes()[share.rank] = static_cast<uint8_t>(10 + rank);
    QLORA_RETURN_IF_ERROR(group.collectives().barrier());
    QLORA_RETURN_IF_ERROR(arena.protect());
    if (rank == 0)
      std::ofstream(file) << counts[0] << " " << counts[1] << " " << share.size
                          << " " << int(arena.bytes()[1]) << " "
                          << getenv("MASTER_ADDR");
    return group.collectives().barrier();
  }
  if (scene == "fail" && rank == 1)
    return Status::invalid("the weights are missing");
  if (scene == "kill" && rank == 1)
    raise(SIGKILL);
  if (scene == "exit" && rank == 1)
    _exit(3);
  if (scene == "hang") {
    if (rank == 1)
      return Status::invalid("only this rank ends by itself");
    sleep(600);
  }
  if (scene == "wait") {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, nullptr);
    std::ofstream(file + std::to_string(rank)) << getpid() << std::endl;
    int signal = 0;
    sigwait(&mask, &signal);
    _exit(128 + signal);
  }
  return group.collectives().barrier();
}

int main(int argc, char **argv) {
  auto env = readRankEnvironment(getenv);
  if (!env.isOk() || argc < 3)
    return 10;
  auto channel = RankChannel::open(*env);
  if (!channel.isOk() || !*channel)
    return 11;
  Status status = [&]() -> Status {
    QLORA_ASSIGN_OR_RETURN(
        RankGroup group,
        RankGroup::join(*env, (*channel)->takeListeningSocket(),
                        std::chrono::minutes(1)));
    return play(argv[1], argv[2], group);
  }();
  if (status.isOk())
    return 0;
  (*channel)->reportError(status);
  return 1;
}
