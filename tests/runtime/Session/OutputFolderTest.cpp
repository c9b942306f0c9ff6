// SPDX-License-Identifier: MIT

// Which folders a run may write into, and that it is alone there.

#include "runtime/Session/OutputFolder.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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
       {"config.resolved.yaml", "metrics.jsonl", "gemm_table.json",
        "gemm_table.json.123", ".lock", ".staging/adapter_config.json"})
    put(name);
  EXPECT_EQ(refusal(), "");
  EXPECT_TRUE(OutputFolder::claim(options()).isOk());
}

TEST_F(Output, WorkIsNotWrittenOver) {
  const std::string remedy =
      "; choose another --output-dir, or write over it with "
      "--overwrite-output-dir";
  put("notes.txt");
  EXPECT_EQ(refusal(), "the output folder '" + out +
                           "' is not empty (notes.txt)" + remedy);
  put("checkpoint-10/adapter_config.json");
  EXPECT_EQ(refusal(), "the output folder '" + out +
                           "' holds an adapter (checkpoint-10, notes.txt)" +
                           remedy);
  put("adapter_config.json");
  put("adapter_model.safetensors");
  const std::string all =
      "the output folder '" + out +
      "' holds an adapter (adapter_config.json, adapter_model.safetensors, "
      "checkpoint-10 and 1 more)" +
      remedy;
  EXPECT_EQ(refusal(), all);
  EXPECT_EQ(OutputFolder::claim(options()).status().message(), all);
  // A folder that is refused is not touched.
  EXPECT_FALSE(fs::exists(out + "/.lock"));
  EXPECT_TRUE(OutputFolder::claim(options(/*mayOverwrite=*/true)).isOk());
  EXPECT_TRUE(fs::exists(out + "/notes.txt"));
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
  // A run that wrote nothing leaves nothing.
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
  // Before anything is looked at: neither the model nor the data is there.
  fs::rename(folder / "model", folder / "gone");
  for (const char *gpus : {"1", "2"}) {
    ProcessOutput output = run({"--train-file", "/nonexistent", "--output-dir",
                                at("out"), "--gpus", gpus});
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_EQ(output.errors,
              "qlora-run: error: the output folder '" + at("out") +
                  "' holds an adapter (adapter_config.json, "
                  "adapter_model.safetensors, tokenizer.json); choose another "
                  "--output-dir, or write over it with "
                  "--overwrite-output-dir\n");
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

TEST_F(Runs, AKilledRunsFolderCanBeUsedAndOneRunIsAlone) {
  auto words =
      command({"--train-file", at("tokens.safetensors"), "--output-dir",
               at("out"), "--max-steps", "1000000000", "--gpus", "2"});
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
  for (int i = 0; i < 1000 && metrics("out").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ProcessOutput second =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--overwrite-output-dir"});
  EXPECT_EQ(second.exitCode, 1);
  EXPECT_EQ(second.errors.rfind("qlora-run: error: another run (process ", 0),
            0u)
      << second.errors;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder / "out/.staging/adapter_model.safetensors"));
  EXPECT_TRUE(adapter("out").empty());
  // Its ranks end with it, but not at once.
  ProcessOutput third;
  for (int i = 0; i < 100; ++i) {
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
  // No file may have more than 300 bytes, and the adapter has more.
  words.insert(
      words.begin(),
      {"/bin/sh", "-c", "trap '' XFSZ; exec prlimit --fsize=300 \"$@\"", "sh"});
  ProcessOutput output = std::move(runProgram(words)).value();
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_NE(output.errors.find("error: cannot reserve "), std::string::npos)
      << output.errors;
  EXPECT_NE(output.errors.find("bytes for '" + at("out") +
                               "/.staging/"
                               "adapter_model.safetensors': File too large"),
            std::string::npos)
      << output.errors;
  EXPECT_FALSE(fs::exists(folder / "out/metrics.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "out/.staging"));
}

TEST_F(Runs, ThreadsWaitBusilyForAMomentOnly) {
  const auto spins = [&](const char *setting) {
    ProcessOutput output = std::move(runProgram({"/usr/bin/env", setting,
                                                 "OMP_DISPLAY_ENV="
                                                 "verbose",
                                                 QLORA_RUN, module, "--print"}))
                               .value();
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    // The last start is the one that counts.
    const std::string name = "GOMP_SPINCOUNT = '";
    const size_t at = output.errors.rfind(name);
    return at == std::string::npos
               ? std::string("no OpenMP")
               : output.errors.substr(
                     at + name.size(),
                     output.errors.find('\'', at + name.size()) - at -
                         name.size());
  };
#ifdef _OPENMP
  EXPECT_EQ(spins("UNRELATED=1"), "1000");
  EXPECT_EQ(spins("GOMP_SPINCOUNT=77"), "77");
  EXPECT_EQ(spins("OMP_WAIT_POLICY=passive"), "0");
#else
  EXPECT_EQ(spins("UNRELATED=1"), "no OpenMP");
#endif
}
