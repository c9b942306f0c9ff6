// SPDX-License-Identifier: MIT

// Programs whose entries all have collectives (UNIGRAM_SHARDS): ranks run the
// same entries at the same time whatever their data, ends and signals are, and
// compute what they did alone. CudaRanksTest.cpp has the same on cards.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using testing::HasSubstr;

namespace {

/// Metrics that do not depend on the clock.
std::vector<nlohmann::json> lossesOf(const std::vector<nlohmann::json> &lines) {
  std::vector<nlohmann::json> losses;
  for (const nlohmann::json &line : lines) {
    nlohmann::json kept;
    for (const char *name : {"step", "loss", "grad_norm", "eval_loss",
                             "eval_rows", "eval_token_accuracy"})
      if (line.contains(name))
        kept[name] = line[name];
    losses.push_back(kept);
  }
  return losses;
}

class Shards : public SessionFixture {
protected:
  /// Nine rows, of which short and long ones share a step: three micro-batches
  /// of evaluation are long, two short.
  void writeMixed() {
    std::vector<int32_t> ids;
    std::vector<int64_t> offsets = {0};
    for (int64_t size : {3, 8, 2, 4, 7, 3, 2, 2, 6}) {
      for (int64_t t = 0; t < size; ++t)
        ids.push_back(static_cast<int32_t>(3 * size + t) % 13);
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
    const int64_t tokens = offsets.back();
    save("mixed.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {tokens}),
          item("labels", SafetensorsDtype::kI32, ids, {tokens}),
          item("row_offsets", SafetensorsDtype::kI64, offsets, {10})});
  }
  std::vector<std::string> mixed(const char *out, const char *gpus,
                                 std::vector<std::string> flags = {}) {
    flags.insert(flags.end(),
                 {"--train-file", at("mixed.safetensors"), "--validation-file",
                  at("mixed.safetensors"), "--eval-steps", "2", "--max-steps",
                  "4", "--gradient-accumulation-steps", "2", "--output-dir",
                  at(out), "--lr", "0.05", "--gpus", gpus});
    return flags;
  }
  std::vector<nlohmann::json> trainMixed(const char *program, const char *out,
                                         const char *gpus) {
    module = program;
    const ProcessOutput output = run(mixed(out, gpus));
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    return metrics(out);
  }
};

TEST_F(Shards, AreInLockstepWhateverTheirData) {
  writeMixed();
  for (const char *gpus : {"2", "4"}) {
    const auto whole = trainMixed(QLORA_UNIGRAM_MODULE, "whole", gpus);
    const auto divided =
        trainMixed(QLORA_UNIGRAM_SHARDS_MODULE, "divided", gpus);
    EXPECT_EQ(lossesOf(whole), lossesOf(divided)) << gpus;
    EXPECT_EQ(adapter("whole"), adapter("divided")) << gpus;
    std::filesystem::remove_all(folder / "whole");
    std::filesystem::remove_all(folder / "divided");
  }
}

TEST_F(Shards, AreRefusedWhereTheyAreNoGroups) {
  module = QLORA_UNIGRAM_SHARDS_MODULE;
  const auto refusal = [&](const char *gpus, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--gpus", gpus});
    const ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 1) << output.out;
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    EXPECT_EQ(std::ranges::count(output.errors, '\n'), 1) << output.errors;
    return output.errors;
  };
  const std::vector<std::string> training = {
      "--train-file", at("tokens.safetensors"), "--output-dir", at("out")};
  EXPECT_THAT(refusal("3", training),
              HasSubstr("divides its base among 2 ranks, but 3 were started; "
                        "start a multiple of 2, or compile with another "
                        "--parallel fsdp=N"));
  EXPECT_THAT(refusal("1", training), HasSubstr("but 1 was started"));
  EXPECT_THAT(refusal("3", {"--device", "null"}),
              HasSubstr("but 3 were started; start a multiple of 2"));
  const ProcessOutput output = run({"--device", "null", "--gpus", "6"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
}

/// A signal that one rank alone has, in the middle of whatever they do.
TEST_F(Shards, StopTogether) {
  module = QLORA_UNIGRAM_SHARDS_MODULE;
  writeMixed();
  const std::string port = std::to_string(20000 + getpid() % 12000);
  std::vector<pid_t> ranks;
  for (const char *rank : {"0", "1"}) {
    auto words = command(mixed("out", rank));
    words.resize(words.size() - 2); // who starts them says how many they are
    std::ranges::replace(words, "4", "1000000");
    std::vector<char *> arguments;
    for (std::string &word : words)
      arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ranks.push_back(fork());
    if (ranks.back() != 0)
      continue;
    for (const auto &[name, value] : {std::pair("RANK", rank),
                                      {"LOCAL_RANK", rank},
                                      {"WORLD_SIZE", "2"},
                                      {"LOCAL_WORLD_SIZE", "2"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port.c_str()}})
      setenv(name, value, 1);
    freopen("/dev/null", "w", stdout);
    freopen("/dev/null", "w", stderr);
    execv(arguments[0], arguments.data());
    _exit(99);
  }
  for (int i = 0; i < 3000 && metrics("out").size() < 6; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  kill(ranks[1], SIGTERM);
  for (pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  }
  EXPECT_FALSE(adapter("out").empty());
}

} // namespace
