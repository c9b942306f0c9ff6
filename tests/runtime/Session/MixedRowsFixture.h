// SPDX-License-Identifier: MIT

// Runs with short and long rows in the same step.

#ifndef QLORA_TESTS_RUNTIME_SESSION_MIXEDROWSFIXTURE_H
#define QLORA_TESTS_RUNTIME_SESSION_MIXEDROWSFIXTURE_H

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "runtime/Base/Manifest.h"
#include "tests/runtime/Session/SessionFixture.h"

namespace qlora {

/// Returns the metrics that do not depend on the clock.
inline std::vector<nlohmann::json>
lossesOf(const std::vector<nlohmann::json> &lines) {
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

class MixedRows : public SessionFixture {
protected:
  /// Writes nine rows, short and long ones in each step. Three micro-batches of
  /// the evaluation are long, two are short.
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
  /// Compares metrics within rounding, because more ranks sum in another order.
  void expectSame(const std::vector<nlohmann::json> &one,
                  const std::vector<nlohmann::json> &other) {
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      for (const char *name : {"loss", "grad_norm", "eval_loss"})
        EXPECT_NEAR(one[i].value(name, 0.0), other[i].value(name, 0.0), 1e-6)
            << name << " of line " << i;
      for (const char *name : {"eval_token_accuracy", "eval_exact_match",
                               "num_input_tokens_seen", "eval_rows"})
        EXPECT_EQ(one[i].value(name, 0.0), other[i].value(name, 0.0))
            << name << " of line " << i;
    }
  }
  /// Returns a checkpoint's sums over the steps since the last log line.
  nlohmann::json windowOf(const char *program, const char *out,
                          const char *gpus) {
    module = program;
    train(out, {"--max-steps", "4", "--save-steps", "2", "--logging-steps", "3",
                "--gpus", gpus});
    return stateOf(out)["log"]["window"];
  }
  void stopOneOfTwo(const char *program);
  /// Returns the training state in the checkpoint of step 2.
  nlohmann::json stateOf(const char *out) {
    const auto file = SafetensorsFile::open(
        (folder / out / "checkpoint-2/state.safetensors").string());
    EXPECT_TRUE(file.isOk()) << file.status().message();
    return nlohmann::json::parse(file.value().metadata().at("state"));
  }
  /// Returns the metadata in the manifest of the same checkpoint.
  nlohmann::json factsOf(const char *out) {
    return nlohmann::json::parse(
        contents(folder / out / "checkpoint-2" / kManifestFile))["facts"];
  }
  /// Expects errors for a program that needs pairs of ranks with the same rows.
  /// `what` is the part of the message about the pair, such as "shards its
  /// matmuls"; `axis` is the axis of --parallel, such as "tp".
  void refuseOtherRuns(const char *program, const std::string &what,
                       const std::string &axis);
  /// Returns the one error line of a run that fails.
  std::string refusal(std::vector<std::string> flags) {
    flags.insert(flags.end(),
                 {"--train-file", at("tokens.safetensors"), "--output-dir",
                  at("out"), "--log-format", "json"});
    const ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 1) << output.out;
    EXPECT_EQ(std::ranges::count(output.errors, '\n'), 1) << output.errors;
    return output.errors;
  }
};

/// Rejected runs: three ranks, reproducible reductions, and a sweep.
inline void MixedRows::refuseOtherRuns(const char *program,
                                       const std::string &what,
                                       const std::string &axis) {
  using testing::HasSubstr;
  module = program;
  EXPECT_THAT(refusal({"--gpus", "3"}),
              HasSubstr(what + " over 2 ranks, but 3 were started; start a "
                               "multiple of 2, or compile with another "
                               "--parallel " +
                        axis + "=N"));
  EXPECT_THAT(refusal({"--gpus", "2", "--reproducible-reductions", "true"}),
              HasSubstr("was compiled with --parallel " + axis + "=2"));
  EXPECT_THAT(refusal({"--sweep", "lr=0.1,0.2"}),
              HasSubstr("was compiled for 2 ranks, but --sweep runs on one"));
}

/// A signal to one of two ranks at any time during a step stops both ranks.
inline void MixedRows::stopOneOfTwo(const char *program) {
  module = program;
  writeMixed();
  const std::string port = std::to_string(20000 + getpid() % 12000);
  std::vector<pid_t> ranks;
  for (const char *rank : {"0", "1"}) {
    auto words = command(mixed("out", rank));
    words.resize(words.size() - 2); // the number of ranks is in the environment
    std::ranges::replace(words, "4", "1000000");
    // With 24 micro-batches per step, the signal mostly arrives before the last
    // one.
    *std::next(std::ranges::find(words, "--gradient-accumulation-steps")) =
        "24";
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

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_SESSION_MIXEDROWSFIXTURE_H
