// SPDX-License-Identifier: MIT

// Messages of a run before the first step and after the last step.

#include "runtime/Session/RunSummary.h"

#include <gmock/gmock.h>

#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using testing::HasSubstr;
using testing::Not;

namespace {

class RunSummary : public SessionFixture {
protected:
  static std::vector<std::string> linesOf(const std::string &text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
      lines.push_back(line);
    return lines;
  }
};

} // namespace

TEST_F(RunSummary, SaysWhatIsTrainedOnWhat) {
  const ProcessOutput output =
      run({"--train-file", at("rows.safetensors"), "--output-dir", at("out"),
           "--num-train-epochs", "2", "--logging-steps", "1", "--gpus", "2",
           "--validation-file", at("rows.safetensors")});
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  // A and B of [1, 16] are trainable, 16 scores are frozen. 5 rows are 3
  // micro-batches.
  EXPECT_THAT(output.out, HasSubstr("32 trainable parameters (66.67 %)"));
  EXPECT_THAT(output.out,
              HasSubstr("rows.safetensors: 5 rows, 25 tokens, 20 in the "
                        "loss"));
  EXPECT_THAT(output.out,
              HasSubstr("2 rows x 2 ranks x 1 accumulated = 4 rows a step"));
  EXPECT_THAT(output.out,
              HasSubstr("ranks    data parallel, one shared base (64 B); "
                        "136 B of gradients per step"));
  EXPECT_THAT(output.out,
              HasSubstr("steps    4, 2 in an epoch; learning rate "));
  EXPECT_THAT(output.out, HasSubstr("planned (no limit), "));
  EXPECT_THAT(output.out, HasSubstr(stepHeading(4)));
  EXPECT_THAT(output.out, HasSubstr("evaluation before training: loss "));
  EXPECT_THAT(output.out, HasSubstr("adapter written to " + at("out")));
  EXPECT_THAT(output.out, HasSubstr("PeftModel.from_pretrained(base_model, "));
  EXPECT_THAT(output.out, Not(HasSubstr("frozen base  ")));
  for (const std::string &line : linesOf(output.out))
    if (line.find(folder.string()) == line.npos) {
      EXPECT_LE(line.size(), 80u) << line;
    }
}

TEST_F(RunSummary, TablesAreForTheVerbose) {
  const ProcessOutput output =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--max-steps", "2", "--verbose"});
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_THAT(output.out, HasSubstr("optimizer states"));
  EXPECT_THAT(output.out, HasSubstr("resident at most"));
  EXPECT_THAT(output.out, HasSubstr("peak of the process"));
}

TEST_F(RunSummary, AnInterruptedRunSaysHowFarItCame) {
  // The launcher forwards the signal. A run without checkpoints then saves its
  // adapter.
  const std::string script =
      "\"$@\" & until [ -s '" + at("out/metrics.jsonl") +
      "' ]; do sleep 0.05; done; kill $!; wait $!; echo \"code $?\"";
  std::vector<std::string> words = {"/bin/bash", "-c", script, "bash"};
  const auto flags = command({"--train-file", at("tokens.safetensors"),
                              "--output-dir", at("out"), "--max-steps",
                              "100000000", "--gpus", "2", "--save-strategy",
                              "no"});
  words.insert(words.end(), flags.begin(), flags.end());
  const ProcessOutput output = std::move(runProgram(words)).value();
  EXPECT_THAT(output.out, HasSubstr("code 143"));
  EXPECT_THAT(output.out, testing::ContainsRegex(
                              "interrupted at step [0-9]+ of 100000000; the "
                              "adapter so far is in "));
  EXPECT_THAT(output.out, HasSubstr("--adapter-name-or-path " + at("out")));
  EXPECT_THAT(output.out, Not(HasSubstr("adapter written to")));
}

TEST_F(RunSummary, AClosedTerminalCostsNoAdapter) {
  // Sends several SIGHUPs at once, as a shell and the kernel do, to a run whose
  // output pipe is closed. env restores the default action, because the tests
  // may run under nohup, which ignores SIGHUP.
  for (const char *gpus : {"1", "2"}) {
    const std::string out = at(gpus);
    const std::string script =
        "env --default-signal=HUP \"$@\" > >(head -n 3 > /dev/null) & until [ "
        "\"$(wc -l < '" +
        out +
        "/metrics.jsonl')\" -gt 40 ]; do sleep 0.05; done 2> /dev/null; "
        "kill -HUP $!; kill -HUP $!; wait $!; echo \"code $?\"";
    std::vector<std::string> words = {"/bin/bash", "-c", script, "bash"};
    const auto flags =
        command({"--train-file", at("tokens.safetensors"), "--output-dir", out,
                 "--max-steps", "100000000", "--gpus", gpus,
                 "--save-total-limit", "1"});
    words.insert(words.end(), flags.begin(), flags.end());
    const ProcessOutput output = std::move(runProgram(words)).value();
    EXPECT_THAT(output.out, HasSubstr("code 143")) << output.errors;
    EXPECT_FALSE(adapter(gpus).empty());
  }
}

TEST_F(RunSummary, AGradientOfNothingIsAWarning) {
  const ProcessOutput output =
      run({"--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
           "--max-steps", "40", "--lr", "1e6", "--max-grad-norm", "0",
           "--logging-steps", "1"});
  EXPECT_THAT(output.errors, testing::AnyOf(HasSubstr("has diverged"),
                                            HasSubstr("no longer learns"),
                                            HasSubstr("the loss of step")));
}
