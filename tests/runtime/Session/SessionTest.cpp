// SPDX-License-Identifier: MIT

// qlora-run from the command line to the adapter, with a program written by
// hand (UnigramModule.c). Its model consists of scores of 16 tokens, so every
// value can be computed by the test.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/Base/Subprocess.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/Safetensors.h"
#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using nlohmann::json;
namespace fs = std::filesystem;
using Session = SessionFixture;

TEST_F(Session, TrainsEvaluatesAndWritesEverything) {
  auto lines = train("out", {"--max-steps", "40", "--validation-file",
                             at("rows.safetensors"), "--eval-steps", "20"});
  ASSERT_EQ(lines.size(), 40u + 3 + 1); // before, at 20, at 40, at the end
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_EQ(lines[0]["eval_exact_match"], 0.0);
  EXPECT_EQ(lines[0]["eval_rows"], 5);
  EXPECT_DOUBLE_EQ(lines[0]["eval_perplexity"].get<double>(),
                   std::exp(lines[0]["eval_loss"].get<double>()));
  EXPECT_EQ(lines[1]["learning_rate"], 0.05);
  EXPECT_DOUBLE_EQ(lines[1]["epoch"], 1 / 8.0);
  EXPECT_EQ(lines[1]["num_input_tokens_seen"], 16);
  EXPECT_LT(lines[40]["loss"], 0.1 * lines[1]["loss"].get<double>());
  EXPECT_GT(lines[42]["eval_token_accuracy"], lines[0]["eval_token_accuracy"]);
  EXPECT_EQ(lines[43]["planned_bytes"], 64 + 4 * 128 + 8 + 256 + 76);
  // Only a lower bound, because sanitizers use more memory. bench/cpu.py --fast
  // checks how accurate the prediction is.
  EXPECT_GT(lines[43]["predicted_peak_memory_bytes"],
            lines[43]["planned_bytes"]);
  for (const char *name :
       {"adapter_config.json", "tokenizer.json", "config.resolved.yaml"})
    EXPECT_TRUE(fs::exists(folder / "out" / name)) << name;
}

TEST_F(Session, TheSameRunGivesTheSameBytes) {
  for (const char *out : {"a", "b"})
    train(out, {"--max-steps", "5", "--gpus", "2"});
  EXPECT_EQ(adapter("a"), adapter("b"));
  for (const char *out : {"c", "d"})
    train(out, {"--max-steps", "5", "--seed", "1"});
  EXPECT_EQ(adapter("c"), adapter("d"));
  EXPECT_NE(adapter("a"), adapter("c"));
}

TEST_F(Session, RanksAndAccumulationAreTheSameStep) {
  auto one =
      train("one", {"--max-steps", "6", "--gradient-accumulation-steps", "4"});
  auto two = train("two", {"--max-steps", "6", "--gpus", "2",
                           "--gradient-accumulation-steps", "2"});
  auto four = train("four", {"--max-steps", "6", "--gpus", "4"});
  for (size_t i = 0; i < 6; ++i)
    for (const auto &other : {two, four}) {
      EXPECT_NEAR(one[i]["loss"], other[i]["loss"], 1e-6);
      EXPECT_NEAR(one[i]["grad_norm"], other[i]["grad_norm"], 1e-6);
      EXPECT_EQ(one[i]["epoch"], other[i]["epoch"]);
    }
}

TEST_F(Session, EvaluationDoesNotDependOnTheRanks) {
  std::vector<std::string> flags = {
      "--num-train-epochs", "0", "--validation-file", at("rows.safetensors")};
  train("one", flags);
  flags.insert(flags.end(), {"--gpus", "3"});
  train("three", flags);
  json one = metrics("one").at(0), three = metrics("three").at(0);
  EXPECT_NEAR(one["eval_loss"], three["eval_loss"], 1e-7);
  for (const char *key : {"eval_rows", "eval_token_accuracy"})
    EXPECT_EQ(one[key], three[key]);
  EXPECT_FALSE(fs::exists(folder / "one/adapter_model.safetensors"));
}

TEST_F(Session, APartialStepEndsAnEpoch) {
  ProcessOutput output =
      run({"--train-file", at("rows.safetensors"), "--output-dir", at("out"),
           "--num-train-epochs", "2", "--gradient-accumulation-steps", "2"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
  auto lines = metrics("out");
  // 5 rows are 3 micro-batches: 2 in an epoch's first step, 1 in its second.
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_NEAR(lines[0]["epoch"], 2 / 3.0, 1e-12);
  EXPECT_EQ(lines[1]["epoch"], 1.0);
  EXPECT_EQ(lines[3]["epoch"], 2.0);
  EXPECT_EQ(lines[3]["num_input_tokens_seen"], 2 * (3 + 8 + 5 + 2 + 7));
}

TEST_F(Session, TheFirstStepCanBeLogged) {
  const auto stepsOf = [&](const char *out, const char *first,
                           const char *every) {
    std::vector<int> steps;
    for (const json &line :
         train(out, {"--max-steps", "5", "--gpus", "2", "--logging-steps",
                     every, "--logging-first-step", first}))
      if (line.contains("loss"))
        steps.push_back(line["step"]);
    return steps;
  };
  EXPECT_EQ(stepsOf("one", "true", "1"), (std::vector{1, 2, 3, 4, 5}));
  EXPECT_EQ(stepsOf("off", "false", "2"), (std::vector{2, 4, 5}));
  EXPECT_EQ(stepsOf("on", "true", "2"), (std::vector{1, 2, 4, 5}));
  const auto one = metrics("one"), on = metrics("on");
  // A line has the mean of the steps since the line before.
  EXPECT_EQ(on[0]["loss"], one[0]["loss"]);
  EXPECT_EQ(on[1]["loss"], one[1]["loss"]);
  EXPECT_NEAR(on[2]["loss"],
              (one[2]["loss"].get<double>() + one[3]["loss"].get<double>()) / 2,
              1e-12);
  EXPECT_EQ(adapter("on"), adapter("off"));
}

TEST_F(Session, AnAdapterCanBeContinued) {
  auto first = train("first", {"--max-steps", "20"});
  auto second = train(
      "second", {"--max-steps", "1", "--adapter_name_or_path", at("first")});
  EXPECT_LT(second[0]["loss"], 0.2 * first[0]["loss"].get<double>());
}

TEST_F(Session, DumpHasTheFirstGradients) {
  train("out", {"--max-steps", "1", "--dump", at("dump.safetensors")});
  auto file = SafetensorsFile::open(at("dump.safetensors"));
  ASSERT_TRUE(file.isOk()) << file.status().message();
  auto *gradient =
      file->find("grad.base_model.model.model.scores.lora_A.weight");
  ASSERT_TRUE(gradient);
  EXPECT_EQ(gradient->shape, (std::vector<int64_t>{1, 16}));
  std::array<float, 16> values;
  ASSERT_TRUE(
      file->read(*gradient, 0,
                 {reinterpret_cast<uint8_t *>(values.data()), sizeof(values)})
          .isOk());
  double squares = 0; // b has the same gradient as a
  for (float value : values)
    squares += 2.0 * value * value;
  EXPECT_NEAR(std::sqrt(squares), metrics("out")[0]["grad_norm"], 1e-6);
}

TEST_F(Session, AnInfiniteLossWritesNothing) {
  train("out", {"--max-steps", "2"});
  std::string before = adapter("out");
  ProcessOutput output =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--max-steps", "9", "--lr", "1e38", "--overwrite-output-dir"});
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_NE(output.errors.find("error: the loss of step "), std::string::npos)
      << output.errors;
  EXPECT_EQ(adapter("out"), before);
}

TEST_F(Session, AFirstSignalEndsAfterTheStep) {
  for (const char *gpus : {"1", "2"}) {
    auto words =
        command({"--train-file", at("tokens.safetensors"), "--output-dir",
                 at(gpus), "--max-steps", "1000000000", "--gpus", gpus,
                 "--save-total-limit", "1"});
    std::vector<char *> arguments;
    for (std::string &word : words)
      arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
      freopen("/dev/null", "w", stdout);
      execv(arguments[0], arguments.data());
      _exit(99);
    }
    for (int i = 0; i < 12000 && metrics(gpus).size() < 3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kill(pid, SIGTERM);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
    EXPECT_FALSE(adapter(gpus).empty());
  }
}

TEST_F(Session, PrintsAndCountsWithoutWeights) {
  ProcessOutput print =
      std::move(runProgram({QLORA_RUN, QLORA_UNIGRAM_MODULE, "--print"}))
          .value();
  EXPECT_EQ(print.out.find("program by written by hand\nentry "), 0u);
  EXPECT_NE(print.out.find("entry accumulate_last 2 x 8: 6 commands\n"),
            std::string::npos);
  EXPECT_NE(
      print.out.find("all_reduce bucket 0 over dp  update gradient+0x0 [136 "
                     "f32]"),
      std::string::npos);
  ProcessOutput count =
      std::move(runProgram({QLORA_RUN, QLORA_UNIGRAM_MODULE, "--device", "null",
                            "--gpus", "8"}))
          .value();
  EXPECT_NE(count.out.find("a step of 8 ranks: 8 micro-batches, 1 collectives"),
            std::string::npos)
      << count.out << count.errors;
}

TEST_F(Session, PredictsAStepOfAGpu) {
  std::vector<std::string> words = {QLORA_RUN,
                                    QLORA_UNIGRAM_CUDA_MODULE,
                                    "--simulate",
                                    "h200",
                                    "--gpus",
                                    "64",
                                    "--gradient-accumulation-steps",
                                    "4"};
  ProcessOutput text = std::move(runProgram(words)).value();
  ASSERT_EQ(text.exitCode, 0) << text.errors;
  // The output has one prediction per length, then the device's rates.
  for (const char *part :
       {"a step of 64 x 4 micro-batches of 2 x 4 on NVIDIA H200 SXM",
        "a step of 64 x 4 micro-batches of 2 x 8 on NVIDIA H200 SXM",
        "tokens per second on 64 ranks", "1 x all_reduce over dp: 136 B",
        "GEMM 790 TFLOP/s in bf16, 50 in f32; memory 4300 GB/s",
        "cuDNN's attention in bf16, 2,048 and 8,192 tokens: 480 and 610 "
        "TFLOP/s forward, 370 and 510 backward",
        "our own attention in bf16, 2,048 and 8,192 tokens: 210 and 225",
        "low: GEMM and attention at 0.9 of these rates, memory at 0.85",
        "share   ms, low\n",
        "370 GB/s inside a node of 8, 48 GB/s per GPU between nodes"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << text.out;
  words.insert(words.end(), {"--log-format", "json"});
  ProcessOutput first = std::move(runProgram(words)).value();
  const auto report = nlohmann::json::parse(first.out);
  ASSERT_EQ(report["predictions"].size(), 2u);
  EXPECT_EQ(report["assumed"]["gpu"]["gpus_per_node"], 8);
  EXPECT_EQ(report["memory_bytes"]["gradient"], 136);
  const auto &step = report["predictions"][1];
  // A micro-batch has four kernels and the update two. On 64 ranks, a step has
  // 64 * 4 * 2 * 8 tokens.
  EXPECT_EQ(step["total"]["kernels"], 6);
  for (const auto &figure : {step, step["low"]})
    EXPECT_DOUBLE_EQ(figure["tokens_per_second"].get<double>() *
                         figure["step_seconds"].get<double>(),
                     64 * 4 * 2 * 8);
  EXPECT_LT(step["low"]["tokens_per_second"], step["tokens_per_second"]);
  EXPECT_GT(step["exposed_communication_seconds"], 0);
  EXPECT_EQ(first.out, std::move(runProgram(words)).value().out);
  // A program for the CPU cannot be predicted on this GPU.
  words[1] = QLORA_UNIGRAM_MODULE;
  ProcessOutput cpu = std::move(runProgram(words)).value();
  EXPECT_EQ(cpu.exitCode, 1);
  EXPECT_EQ(cpu.errors,
            std::string("qlora-run: error: '") + QLORA_UNIGRAM_MODULE +
                "' was compiled for cpu, but NVIDIA H200 SXM is a GPU; compile "
                "it with --target cuda\n");
}

TEST_F(Session, MistakesAreOneLine) {
  struct {
    std::vector<std::string> flags;
    const char *message;
  } cases[] = {
      {{"--trainfile", "x"},
       "unknown option '--trainfile'; did you mean '--train-file'?"},
      {{}, "no train_file is given. Fix: --train-file FILE"},
      {{"--train-file", "/nonexistent"},
       "--train-file: there is no file '/nonexistent'"},
      {{"--lora-r", "8"},
       "--lora-r: the program was compiled with 1 and cannot run with 8; "
       "compile it again with --lora-r 8, or run it with --lora-r 1"},
      {{"--gpus", "0"}, "--gpus: expects a number from 1 to 4096, but got 0"},
      {{"--optim", "sgd"},
       "--optim: 'sgd' is not supported; choose from: adamw_torch, "
       "adamw_bnb_8bit, lion, adafactor, schedule_free_adamw, muon, rmsprop"},
      {{"--device", "gpu"},
       "--device: 'gpu' is not supported; choose from: auto, cpu, cuda, null. "
       "To predict a step: --simulate with one of a100-40, a100, h100, h200, "
       "b200, rtx3090, a10, l4, l40s, rtx4090, rtx5090, rtxpro6000, or a "
       "device.json"},
      {{"--simulate", "h201"},
       "--simulate h201: 'h201' is neither a known GPU (a100-40, a100, h100, "
       "h200, b200, rtx3090, a10, l4, l40s, rtx4090, rtx5090, rtxpro6000) nor "
       "a readable file; write one for this machine with "
       "qlora-run --calibrate"},
      {{"--train-file", "/nonexistent:2", "--train-file", "b.jsonl:x"},
       "--train-file: the weight 'x' is not a number above 0 and up to 1000"},
      {{"--train-file", "/nonexistent:2"},
       "--train-file: there is no file '/nonexistent'"},
      {{"second.so"},
       "expects one program, but got '" QLORA_UNIGRAM_MODULE
       "' and 'second.so': only programs for GPUs of different memory sizes "
       "can be given together, and '" QLORA_UNIGRAM_MODULE "' is for CPUs"},
  };
  for (auto &c : cases) {
    auto flags = c.flags;
    flags.insert(flags.end(), {"--output-dir", at("out")});
    ProcessOutput output = run(flags);
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_EQ(output.errors,
              std::string("qlora-run: error: ") + c.message + "\n");
  }
}

TEST_F(Session, AMistakeLeavesAnEarlierRunAlone) {
  train("out", {"--max-steps", "2"});
  std::string before = contents(folder / "out/metrics.jsonl");
  ProcessOutput output =
      run({"--train-file", at("rows.safetensors"), "--output-dir", at("out"),
           "--adapter_name_or_path", at("none"), "--overwrite-output-dir"});
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_EQ(contents(folder / "out/metrics.jsonl"), before);
}

/// std::bad_alloc ends the rank with a message and an exit code. The header of
/// the file claims 100 MB, which exceeds the memory limit.
TEST_F(Session, MemoryThatRunsOutIsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory is above the limit";
#endif
  const uint64_t headerBytes = 100'000'000;
  std::ofstream(at("huge.safetensors"), std::ios::binary)
      .write(reinterpret_cast<const char *>(&headerBytes), sizeof headerBytes);
  std::filesystem::resize_file(at("huge.safetensors"), headerBytes + 100);
  auto words = command({"--train-file", at("huge.safetensors"), "--output-dir",
                        at("out"), "--threads", "1"});
  words.insert(words.begin(), {"/bin/sh", "-c",
                               "ulimit -d 65536; exec \"$@\"", "sh"});
  ProcessOutput output = std::move(runProgram(words)).value();
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_EQ(output.errors, "qlora-run: error: rank 0: out of memory; free some "
                           "memory, or start fewer ranks\n");
}

TEST_F(Session, ARanksMistakeIsShownOnce) {
  ProcessOutput output =
      run({"--train-file", at("model/tokenizer.json"), "--gpus", "3",
           "--output-dir", at("out"), "--model", at("none")});
  EXPECT_EQ(output.exitCode, 1);
  EXPECT_EQ(std::count(output.errors.begin(), output.errors.end(), '\n'), 1)
      << output.errors;
}

/// A run may read and write files whose names are not UTF-8. The names in its
/// records open the same files again.
TEST_F(Session, FilesMayHaveAnyNames) {
  const std::string data = at("tok\xff.safetensors");
  const std::string output = at("out\xff");
  fs::copy(folder / "tokens.safetensors", data);
  const auto runTo = [&](const char *steps, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--max-steps", steps, "--save-steps", "2"});
    return run(std::move(flags));
  };
  const std::vector<std::string> named = {
      "--train-file", data, "--output-dir", output, "--gpus", "2"};
  ProcessOutput first = runTo("4", named);
  ASSERT_EQ(first.exitCode, 0) << first.errors;
  EXPECT_EQ(metrics("out\xff").size(), 5u); // four steps, and the end

  // The recorded settings contain the exact file names.
  const std::string settings = output + "/config.resolved.yaml";
  Options options;
  EXPECT_EQ(options.applyYaml(settings).message(), "");
  EXPECT_EQ(options.paths("train_file").at(0).path, data);
  EXPECT_EQ(options.text("output_dir"), output);
  ProcessOutput again = runTo(
      "4", {"--config", settings, "--output-dir", at("again"), "--gpus", "2"});
  ASSERT_EQ(again.exitCode, 0) << again.errors;
  EXPECT_EQ(adapter("again"), adapter("out\xff"));

  // All ranks resume from the checkpoint that the first rank found.
  std::vector<std::string> resumed = named;
  resumed.insert(resumed.end(), {"--resume-from-checkpoint", "true"});
  ProcessOutput second = runTo("6", resumed);
  ASSERT_EQ(second.exitCode, 0) << second.errors;
  EXPECT_EQ(metrics("out\xff").back()["step"], 6);
}

/// Names in a list option reach the program unchanged.
TEST_F(Session, FilesOfAListMayHaveAnyNames) {
  const std::string first = at("a\xff.safetensors");
  const std::string second = at("b\xfe.safetensors");
  fs::copy(folder / "rows.safetensors", first);
  fs::copy(folder / "rows.safetensors", second);
  ProcessOutput output = run({"--train-file", first, "--train-file", second,
                              "--output-dir", at("out"), "--max-steps", "2"});
  EXPECT_EQ(output.exitCode, 0) << output.errors;
}
