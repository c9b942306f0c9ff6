// SPDX-License-Identifier: MIT

// Tests which folders a run may use for output, and that no two runs use the
// same folder.

#include "runtime/Session/OutputFolder.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "runtime/Ranks/Socket.h"
#include "tests/runtime/Faults.h"
#include "tests/runtime/Session/SessionFixture.h"
#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;
namespace fs = std::filesystem;

namespace {

class Output : public testing::Test {
protected:
  Options options(bool mayOverwrite = false) {
    Options options;
    OptionSetting settings[] = {
        {findOption(optionTable(), "output_dir"), out, "--output-dir"},
        {findOption(optionTable(), "overwrite_output_dir"),
         mayOverwrite ? "true" : "false", "--overwrite-output-dir"}};
    EXPECT_TRUE(options.applySettings(settings).isOk());
    return options;
  }
  void put(const std::string &name) {
    fs::create_directories(fs::path(out) / fs::path(name).parent_path());
    std::ofstream(fs::path(out) / name) << name;
  }
  std::string refusal() { return checkOutputFolder(options()).message(); }

  TemporaryFolder folder;
  const std::string out =
      fs::path(folder.path("out")).lexically_normal().string();
};

} // namespace

TEST_F(Output, WhatAnUnfinishedRunLeftMayBeUsed) {
  for (const char *name :
       {"config.resolved.yaml", "metrics.jsonl", "report.html",
        "gemm_table.json", "gemm_table.json.part.123",
        "checkpoint-3.part.new/adapter_config.json", ".lock",
        ".staging/adapter_config.json"})
    put(name);
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(OutputFolder::claim(options()).isOk());
}

TEST_F(Output, PartsOfAKilledRunGo) {
  for (const char *name : {"trainer_log.jsonl.part.e9419e75", "notes.part.1",
                           "notes.part.e9419e75x", "a.part.e9419e75/file"})
    put(name);
  OptionSetting overwrite{findOption(optionTable(), "overwrite_output_dir"),
                          "true", "--overwrite-output-dir"};
  Options all = options();
  ASSERT_TRUE(all.applySettings({&overwrite, 1}).isOk());
  EXPECT_TRUE(OutputFolder::claim(all).isOk());
  EXPECT_FALSE(fs::exists(out + "/trainer_log.jsonl.part.e9419e75"));
  for (const char *name : {"notes.part.1", "notes.part.e9419e75x",
                           "a.part.e9419e75/file"})
    EXPECT_TRUE(fs::exists(out + "/" + name)) << name;
}

TEST_F(Output, WorkIsNotWrittenOver) {
  const std::string remedy =
      ". Fix: choose another --output-dir, overwrite it with "
      "--overwrite-output-dir";
  const std::string resume = ", or resume with --resume-from-checkpoint latest";
  put("notes.txt");
  EXPECT_EQ(refusal(), "the output folder '" + out +
                           "' is not empty (notes.txt)" + remedy);
  put("checkpoint-10/adapter_config.json");
  EXPECT_EQ(refusal(), "the output folder '" + out +
                           "' holds an adapter (checkpoint-10, notes.txt)" +
                           remedy + resume);
  put("adapter_config.json");
  put("adapter_model.safetensors");
  const std::string all =
      "the output folder '" + out +
      "' holds an adapter (adapter_config.json, adapter_model.safetensors, "
      "checkpoint-10 and 1 more)" +
      remedy + resume;
  EXPECT_EQ(refusal(), all);
  EXPECT_EQ(OutputFolder::claim(options()).status().message(), all);
  // A rejected folder is unchanged.
  EXPECT_FALSE(fs::exists(out + "/.lock"));
  EXPECT_TRUE(OutputFolder::claim(options(/*mayOverwrite=*/true)).isOk());
  EXPECT_TRUE(fs::exists(out + "/notes.txt"));
}

TEST_F(Output, AnAdapterThatCouldNotBePutInPlaceIsWork) {
  put(".staging/adapter_model.safetensors.reserve");
  EXPECT_EQ(refusal(), "");
  put(".staging/adapter_model.safetensors");
  EXPECT_EQ(refusal(), "the output folder '" + out +
                           "' holds an adapter (.staging). Fix: choose another "
                           "--output-dir, overwrite it with "
                           "--overwrite-output-dir");
}

TEST_F(Output, AnEvaluationMayUseAnyFolder) {
  put("adapter_model.safetensors");
  Options evaluation = options();
  OptionSetting none[] = {
      {findOption(optionTable(), "num_train_epochs"), "0", "flag"}};
  ASSERT_TRUE(evaluation.applySettings(none).isOk());
  EXPECT_TRUE(checkOutputFolder(evaluation).isOk());
  EXPECT_TRUE(OutputFolder::claim(evaluation).isOk());
  OptionSetting some[] = {
      {findOption(optionTable(), "max_steps"), "1", "flag"}};
  ASSERT_TRUE(evaluation.applySettings(some).isOk());
  EXPECT_FALSE(checkOutputFolder(evaluation).isOk());
}

TEST_F(Output, WithoutLocksThereIsAWarningAndNothingIsLeft) {
  FaultSweep none({.calls = kChanges,
                   .error = ENOLCK,
                   .how = FaultPlan::How::kOnwards,
                   .only = "flock"});
  ASSERT_TRUE(none.next());
  for (const bool isNew : {true, false}) {
    none.run([&] {
      auto claimed = OutputFolder::claim(options());
      ASSERT_TRUE(claimed.isOk()) << claimed.status().message();
      EXPECT_EQ(claimed->remark(),
                "cannot lock '" + out +
                    "/.lock' (No locks available): a second run into the same "
                    "folder would not be detected");
    });
    EXPECT_FALSE(fs::exists(out + "/.lock"));
    EXPECT_EQ(fs::exists(out), !isNew);
    put("metrics.jsonl");
  }
}

TEST_F(Output, AFileIsNoFolder) {
  std::ofstream(out) << "a file";
  EXPECT_EQ(refusal(),
            "cannot use '" + out + "' as the output folder: Not a directory");
}

TEST_F(Output, OneRunAtATime) {
  {
    auto first = OutputFolder::claim(options());
    ASSERT_TRUE(first.isOk()) << first.status().message();
    const std::string message =
        OutputFolder::claim(options(/*mayOverwrite=*/true)).status().message();
    EXPECT_EQ(
        message.rfind("another run (process " + std::to_string(getpid()), 0),
        0u)
        << message;
    EXPECT_NE(message.find(") is writing into '" + out +
                           "'; wait for its end, "
                           "or choose another --output-dir"),
              std::string::npos)
        << message;
  }
  // A run that has written nothing removes its folder.
  EXPECT_FALSE(fs::exists(out));
  EXPECT_TRUE(OutputFolder::claim(options()).isOk());
}

TEST_F(Output, AKilledRunLetsGo) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto claimed = OutputFolder::claim(options());
    (void)!write(ready[1], claimed.isOk() ? "y" : "n", 1);
    pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(OutputFolder::claim(options()).isOk());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(out + "/.lock"));
  EXPECT_TRUE(OutputFolder::claim(options()).isOk());
}

using Runs = SessionFixture;

TEST_F(Runs, AFinishedAdapterIsNotWrittenOver) {
  train("out", {"--max-steps", "2"});
  const std::string before = adapter("out");
  const std::string numbers = contents(folder / "out/metrics.jsonl");
  // The folder is rejected before anything is read: neither the model nor the
  // data exists.
  fs::rename(folder / "model", folder / "gone");
  for (const char *gpus : {"1", "2"}) {
    ProcessOutput output = run({"--train-file", "/nonexistent", "--output-dir",
                                at("out"), "--gpus", gpus});
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_EQ(output.errors,
              "qlora-run: error: the output folder '" + at("out") +
                  "' holds an adapter (README.md, adapter_config.json, "
                  "adapter_model.safetensors and 2 more). Fix: choose "
                  "another --output-dir, overwrite it with "
                  "--overwrite-output-dir, or resume with "
                  "--resume-from-checkpoint latest\n");
  }
  fs::rename(folder / "gone", folder / "model");
  EXPECT_EQ(adapter("out"), before);
  EXPECT_EQ(contents(folder / "out/metrics.jsonl"), numbers);
  std::ofstream(folder / "out/notes.txt") << "mine";
  std::ofstream(folder / "out/merges.txt") << "of another tokenizer";
  train("out", {"--max-steps", "3", "--overwrite-output-dir"});
  EXPECT_NE(adapter("out"), before);
  EXPECT_EQ(contents(folder / "out/notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(folder / "out/merges.txt"));
  EXPECT_FALSE(fs::exists(folder / "out/.lock"));
}

TEST_F(Runs, AnEvaluationAddsToTheMetricsOfATraining) {
  train("out", {"--max-steps", "2"});
  const std::string numbers = contents(folder / "out/metrics.jsonl");
  const std::string settings = contents(folder / "out/config.resolved.yaml");
  const std::string before = adapter("out");
  for (const char *gpus : {"1", "2"}) {
    ProcessOutput output =
        run({"--num-train-epochs", "0", "--validation-file",
             at("rows.safetensors"), "--output-dir", at("out"),
             "--adapter-name-or-path", at("out"), "--gpus", gpus});
    EXPECT_EQ(output.exitCode, 0) << output.errors;
  }
  EXPECT_EQ(contents(folder / "out/metrics.jsonl").rfind(numbers, 0), 0u);
  const auto lines = metrics("out");
  ASSERT_EQ(lines.size(), 3u + 2);
  EXPECT_NEAR(lines[3]["eval_loss"], lines[4]["eval_loss"], 1e-7);
  EXPECT_EQ(contents(folder / "out/config.resolved.yaml"), settings);
  EXPECT_EQ(adapter("out"), before);
}

TEST_F(Runs, ARefusedFolderEndsRanksThatWereStartedByHand) {
  train("out", {"--max-steps", "1"});
  auto listening = listenOn("127.0.0.1", 0);
  ASSERT_TRUE(listening.isOk());
  const int port = portOf(*listening).value();
  *listening = FileDescriptor();
  const auto start = [&](int rank) {
    auto words = command(
        {"--train-file", at("tokens.safetensors"), "--output-dir", at("out")});
    words.insert(words.begin(),
                 {"/usr/bin/env", fmt::format("RANK={}", rank),
                  fmt::format("LOCAL_RANK={}", rank), "WORLD_SIZE=2",
                  "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                  fmt::format("MASTER_PORT={}", port)});
    return std::move(runProgram(words)).value();
  };
  const auto begin = std::chrono::steady_clock::now();
  auto other = std::async(std::launch::async, start, 1);
  const ProcessOutput main = start(0);
  const ProcessOutput second = other.get();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_EQ(main.exitCode, 1);
  EXPECT_EQ(
      main.errors.rfind("qlora-run: error: rank 0: the output folder '", 0), 0u)
      << main.errors;
  EXPECT_EQ(second.exitCode, 1);
  EXPECT_EQ(second.errors, main.errors);
}

TEST_F(Runs, AKilledRunsFolderCanBeUsedAndOneRunIsAlone) {
  auto words =
      command({"--train-file", at("tokens.safetensors"), "--output-dir",
               at("out"), "--max-steps", "1000000000", "--gpus", "2",
               "--save-strategy", "no"});
  std::vector<char *> arguments;
  for (std::string &word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    freopen("/dev/null", "w", stdout);
    execv(arguments[0], arguments.data());
    _exit(99);
  }
  // Up to two minutes: a start takes long under a sanitizer on a busy machine.
  for (int i = 0; i < 12000 && metrics("out").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(metrics("out").empty());
  ProcessOutput second =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--overwrite-output-dir"});
  EXPECT_EQ(second.exitCode, 1);
  EXPECT_EQ(second.errors.rfind("qlora-run: error: another run (process ", 0),
            0u)
      << second.errors;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  bool hasSpace = false;
  for (const auto &entry : fs::directory_iterator(folder / "out/.staging"))
    hasSpace |= entry.path().filename().string().starts_with(
        "adapter_model.safetensors.part.");
  EXPECT_TRUE(hasSpace);
  EXPECT_TRUE(adapter("out").empty());
  // The ranks that the launcher started end shortly after it.
  ProcessOutput third;
  for (int i = 0; i < 300; ++i) {
    third = run({"--train-file", at("tokens.safetensors"), "--output-dir",
                 at("out"), "--max-steps", "2"});
    if (third.exitCode == 0)
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(third.exitCode, 0) << third.errors;
  EXPECT_FALSE(adapter("out").empty());
  EXPECT_FALSE(fs::exists(folder / "out/.staging"));
}

TEST_F(Runs, ADiskWithoutRoomIsKnownBeforeTheFirstStep) {
  auto words = command({"--train-file", at("tokens.safetensors"),
                        "--output-dir", at("out"), "--max-steps", "2"});
  // Files are limited to 300 bytes, fewer than the adapter needs.
  words.insert(
      words.begin(),
      {"/bin/sh", "-c", "trap '' XFSZ; exec prlimit --fsize=300 \"$@\"", "sh"});
  ProcessOutput output = std::move(runProgram(words)).value();
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_NE(
      output.errors.find("error: no space for the adapter: cannot reserve "),
      std::string::npos)
      << output.errors;
  EXPECT_NE(output.errors.find(
                "bytes for '" + at("out") +
                "/.staging/adapter_model.safetensors': File too large. Fix: "
                "free space there, or choose an --output-dir on another "
                "disk\n"),
            std::string::npos)
      << output.errors;
  EXPECT_FALSE(fs::exists(folder / "out/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "out/.staging"));
}
