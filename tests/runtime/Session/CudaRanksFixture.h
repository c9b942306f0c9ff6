// SPDX-License-Identifier: MIT

// Several ranks, each with a GPU, on the software platform.

#ifndef QLORA_TESTS_RUNTIME_SESSION_CUDARANKSFIXTURE_H
#define QLORA_TESTS_RUNTIME_SESSION_CUDARANKSFIXTURE_H

#include "tests/runtime/Session/CudaSessionFixture.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

namespace qlora {

class CudaRanks : public CudaSession {
protected:
  CudaRanks() {
    set("QLORA_TEST_CUDA_DEVICES", "sm_90:64,sm_90:64,sm_90:64,sm_90:64");
    // Orphaned processes of a launcher become children of this process.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~CudaRanks() override { EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1); }

  /// Returns the error line of a run on two ranks that must fail within
  /// seconds.
  std::string failure(std::vector<std::string> flags = {}, int exitCode = 1) {
    const auto start = std::chrono::steady_clock::now();
    flags.insert(flags.end(), {"--gpus", "2", "--max-steps", "4"});
    const std::string line = refusal(std::move(flags), exitCode);
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(20))
        << line;
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << line;
    return line;
  }
  /// Returns failure() with one environment variable set.
  std::string failureWith(const char *name, const std::string &value,
                          std::vector<std::string> flags = {},
                          int exitCode = 1) {
    set(name, value);
    const std::string line = failure(std::move(flags), exitCode);
    unsetenv(name);
    return name + ("=" + value) + ": " + line;
  }

  /// Starts two ranks without our launcher, each with its own flags.
  std::vector<ProcessOutput> runBoth(const std::vector<std::string> &ofFirst,
                                     const std::vector<std::string> &ofSecond,
                                     const char *gpuOfSecond = "1") {
    std::vector<ProcessOutput> outputs(2);
    std::vector<std::thread> threads;
    // The port is below the system's ephemeral ports, which start at 32768.
    const std::string port =
        "MASTER_PORT=" + std::to_string(20000 + getpid() % 12000);
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        std::vector<std::string> flags = rank ? ofSecond : ofFirst;
        flags.insert(flags.end(), {"--train-file", at("tokens.safetensors"),
                                   "--output-dir", at("out"), "--max-steps",
                                   "4", "--overwrite-output-dir"});
        auto words = command(std::move(flags));
        words.insert(words.begin(),
                     {"/usr/bin/env", "RANK=" + std::to_string(rank),
                      "WORLD_SIZE=2",
                      std::string("LOCAL_RANK=") + (rank ? gpuOfSecond : "0"),
                      "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port});
        outputs[rank] = std::move(runProgram(words)).value();
      });
    for (std::thread &thread : threads)
      thread.join();
    return outputs;
  }

  /// Returns the CUDA calls of each process, for a run of `steps` steps on two
  /// ranks.
  std::vector<nlohmann::json> calls(const char *steps,
                                    std::vector<std::string> flags = {}) {
    const std::filesystem::path reports = folder / "reports" / steps;
    std::filesystem::create_directories(reports);
    set("QLORA_TEST_CUDA_REPORT", reports / "{pid}");
    flags.insert(flags.end(), {"--gpus", "2", "--max-steps", steps,
                               "--overwrite-output-dir"});
    train("out", std::move(flags));
    unsetenv("QLORA_TEST_CUDA_REPORT");
    std::vector<nlohmann::json> found;
    for (const auto &entry : std::filesystem::directory_iterator(reports))
      found.push_back(nlohmann::json::parse(contents(entry.path())));
    return found;
  }
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_SESSION_CUDARANKSFIXTURE_H
