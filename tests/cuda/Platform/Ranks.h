// SPDX-License-Identifier: MIT

// Ranks of the NCCL look-alike, each in its own process.

#ifndef QLORA_TESTS_CUDA_PLATFORM_RANKS_H
#define QLORA_TESTS_CUDA_PLATFORM_RANKS_H

#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/cuda/Nccl/Communicator.h"
#include "tests/cuda/Platform/Platform.h"

namespace qlora::platform {

using Values = std::vector<float>;

/// A rank's GPU and communicator. After construction, the communicator is still
/// in creation.
struct RankClient {
  RankClient(const ncclUniqueId &id, int rank, int size, int gpu)
      : rank(rank), client(gpu), data(client.allocate(64)) {
    ncclConfig_t config;
    config.blocking = 0;
    Client::require(ncclCommInitRankConfig(&group, size, id, rank, &config) -
                        kNcclInProgress,
                    "init");
  }

  /// Polls until the call in progress has ended; returns the communicator's
  /// state.
  ncclResult_t ask() { return ask(group); }
  static ncclResult_t ask(ncclComm_t communicator) {
    for (;;) {
      ncclResult_t state = 0;
      Client::require(ncclCommGetAsyncError(communicator, &state), "ask");
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
  bool leave() { return leave(group); }
  static bool leave(ncclComm_t communicator) {
    return ncclCommFinalize(communicator) == kNcclInProgress &&
           ask(communicator) == kNcclSuccess &&
           ncclCommDestroy(communicator) == kNcclSuccess;
  }

  int rank;
  Client client;
  CUdeviceptr data;
  ncclComm_t group = nullptr;
};

/// Runs the body on each of up to four ranks; returns whether all succeed.
inline bool onRanks(int size, const std::function<bool(RankClient &)> &body,
                    Environment environment = {}, std::string *errors = nullptr,
                    bool haveOneGpu = false) {
  environment.push_back(
      {"QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64,sm_90:64,sm_90:64"});
  return inProcess(
      environment,
      [&] {
        ncclUniqueId id;
        Client::require(ncclGetUniqueId(&id), "id");
        std::vector<pid_t> others;
        int rank = 0;
        for (int other = 1; other < size && rank == 0; ++other) {
          others.push_back(fork());
          rank = others.back() == 0 ? other : 0;
        }
        RankClient client(id, rank, size, haveOneGpu ? 0 : rank);
        bool isFine = body(client);
        if (rank > 0)
          std::exit(isFine ? 0 : 1);
        for (pid_t other : others) {
          int status = -1;
          waitpid(other, &status, 0);
          isFine = isFine && status == 0;
        }
        return isFine;
      },
      errors);
}

inline bool onTwoRanks(const std::function<bool(RankClient &)> &body,
                       Environment environment = {},
                       std::string *errors = nullptr, bool haveOneGpu = false) {
  return onRanks(2, body, std::move(environment), errors, haveOneGpu);
}

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_PLATFORM_RANKS_H
