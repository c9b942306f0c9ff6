// SPDX-License-Identifier: MIT

// Two ranks of the NCCL look-alike as two processes.

#ifndef QLORA_TESTS_CUDA_PLATFORM_RANKS_H
#define QLORA_TESTS_CUDA_PLATFORM_RANKS_H

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/cuda/Nccl/Communicator.h"
#include "tests/cuda/Platform/Platform.h"

namespace qlora::platform {

using Values = std::vector<float>;

/// A rank's card and communicator, which is still being made.
struct RankClient {
  RankClient(const ncclUniqueId &id, int rank, int card)
      : rank(rank), client(card), data(client.allocate(64)) {
    ncclConfig_t config;
    config.blocking = 0;
    Client::require(ncclCommInitRankConfig(&group, 2, id, rank, &config) -
                        kNcclInProgress,
                    "init");
  }

  /// Asks until the call in progress is over; the communicator's state.
  ncclResult_t ask() {
    for (;;) {
      ncclResult_t state = 0;
      Client::require(ncclCommGetAsyncError(group, &state), "ask");
      if (state != kNcclInProgress)
        return state;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  ncclResult_t call(size_t count = 64, int type = kNcclFloat32,
                    int operation = kNcclSum) {
    auto *at = reinterpret_cast<void *>(data);
    return ncclAllReduce(at, at, count, type, operation, group, client.stream);
  }
  bool sum() { return call() == kNcclInProgress && ask() == kNcclSuccess; }
  bool leave() {
    return ncclCommFinalize(group) == kNcclInProgress &&
           ask() == kNcclSuccess && ncclCommDestroy(group) == kNcclSuccess;
  }

  int rank;
  Client client;
  CUdeviceptr data;
  ncclComm_t group = nullptr;
};

/// Runs the body on both ranks; whether both succeed.
inline bool onTwoRanks(const std::function<bool(RankClient &)> &body,
                Environment environment = {}, std::string *errors = nullptr,
                bool haveOneCard = false) {
  environment.push_back({"QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64"});
  return inProcess(
      environment,
      [&] {
        ncclUniqueId id;
        Client::require(ncclGetUniqueId(&id), "id");
        const pid_t other = fork();
        const int rank = other == 0;
        RankClient client(id, rank, haveOneCard ? 0 : rank);
        const bool isFine = body(client);
        if (rank == 1)
          std::exit(isFine ? 0 : 1);
        int status = -1;
        waitpid(other, &status, 0);
        return isFine && status == 0;
      },
      errors);
}

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_PLATFORM_RANKS_H
