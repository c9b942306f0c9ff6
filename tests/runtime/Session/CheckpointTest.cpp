// SPDX-License-Identifier: MIT

// Checkpoints of a run, resuming from them, and steps that are not finite.
// SessionFaultsTest.cpp tests failing calls and kills.

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "runtime/Checkpoint/CheckpointMetadata.h"
#include "tests/runtime/Session/SessionFixture.h"

using namespace qlora;
using nlohmann::json;
namespace fs = std::filesystem;
using Checkpoints = SessionFixture;

TEST_F(Checkpoints, SavesOnTheWay) {
  train("out", {"--max-steps", "5", "--save-steps", "2"});
  EXPECT_TRUE(
      fs::exists(folder / "out/checkpoint-2/adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-4/adapter_config.json"));
  EXPECT_FALSE(fs::exists(folder / "out/checkpoint-3"));
  // The run saves a last checkpoint at its end, so that it can resume with more
  // steps.
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-5/MANIFEST.json"));
}

TEST_F(Checkpoints, GoesOnWithTheSameBytes) {
  const std::vector<std::string> flags = {"--gpus", "2", "--save-steps", "3",
                                          "--validation-file",
                                          at("rows.safetensors"),
                                          "--eval-steps", "2"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  const auto whole = train("whole", with({"--max-steps", "8",
                                          "--lr-scheduler-type", "constant"}));
  train("broken", with({"--max-steps", "5", "--lr-scheduler-type",
                        "constant"}));
  const auto resumed =
      train("broken", with({"--max-steps", "8", "--lr-scheduler-type",
                            "constant", "--resume-from-checkpoint", "true"}));
  EXPECT_EQ(adapter("whole"), adapter("broken"));
  ASSERT_EQ(whole.size(), resumed.size());
  for (size_t i = 0; i < whole.size(); ++i)
    for (const char *key : {"step", "loss", "grad_norm", "eval_loss", "epoch",
                            "num_input_tokens_seen", "train_loss"})
      EXPECT_EQ(whole[i].value(key, json()), resumed[i].value(key, json()))
          << i << " " << key;
}

TEST_F(Checkpoints, AStepThatIsNotFiniteIsNamedLeftOutOrGoneBackFrom) {
  // The third micro-batch has a token whose score is infinite.
  std::vector<float> scores(16, 0.25f);
  scores[15] = std::numeric_limits<float>::infinity();
  save("model/model.safetensors",
       {item("model.scores.weight", SafetensorsDtype::kF32, scores, {1, 16})});
  std::vector<int32_t> ids(4 * 2 * 8, 3);
  ids[2 * 2 * 8 + 8 + 5] = 15;
  save("bad.safetensors",
       {item("input_ids", SafetensorsDtype::kI32, ids, {4, 2, 8}),
        item("labels", SafetensorsDtype::kI32, ids, {4, 2, 8})});
  const auto with = [&](const char *what) {
    return run({"--train-file", at("bad.safetensors"), "--output-dir",
                at(what), "--on-nonfinite", what, "--max-steps", "4",
                "--save-steps", "1", "--lr", "0.05"});
  };
  const std::string where =
      "the loss of step 3 is inf: rank 0, micro-batch 0 (rows 4, 5): the loss "
      "is inf, and the gradient of "
      "'base_model.model.model.scores.lora_A.weight' has inf";
  const ProcessOutput abort = with("abort");
  EXPECT_EQ(abort.exitCode, 1);
  EXPECT_NE(abort.errors.find("error: " + where), std::string::npos)
      << abort.errors;
  EXPECT_TRUE(fs::exists(folder / "abort/checkpoint-2"));
  for (const char *what : {"skip", "rewind"}) {
    const ProcessOutput output = with(what);
    EXPECT_EQ(output.exitCode, 0) << output.errors;
    EXPECT_NE(
        output.errors.find("warning: " + where + "; the step is skipped"),
        std::string::npos)
        << output.errors;
  }
  // Skipping step 3 leaves the weights of step 2, which rewinding restores from
  // a checkpoint. So the results are equal.
  EXPECT_EQ(adapter("skip"), adapter("rewind"));
  EXPECT_NE(adapter("skip"), contents(folder / "skip/checkpoint-2/"
                                               "adapter_model.safetensors"));
}

/// Returns the error (without its advice) for resuming with the options `own`
/// from a checkpoint with `before`.
static std::string afterOptions(const nlohmann::ordered_json &before,
                                const nlohmann::ordered_json &own) {
  const auto facts = [](const nlohmann::ordered_json &options) {
    nlohmann::ordered_json all = {{"options", options}};
    for (const char *key : {"model", "data", "rows_per_step", "program",
                            "backend", "ranks", "threads"})
      all[key] = 1;
    return all;
  };
  std::vector<std::string> remarks;
  const std::string message =
      compareMetadata("c", facts(before), facts(own), remarks).message();
  EXPECT_TRUE(remarks.empty());
  return message.substr(0, message.find(". Fix"));
}

static std::string lossAfter(const char *rl, const char *before,
                             const nlohmann::ordered_json &own) {
  return afterOptions({{"rl", rl}, {"loss_type", before}},
                      {{"rl", rl}, {"loss_type", own}});
}

TEST(CheckpointMetadata, PackedRowsDependOnTheLength) {
  for (const bool packing : {false, true})
    EXPECT_EQ(afterOptions({{"packing", packing}, {"max_length", 64}},
                           {{"packing", packing}, {"max_length", 128}}),
              packing ? "'c' cannot be resumed: its --max-length is [64], but "
                        "this run's is [128]"
                      : "");
}

TEST(CheckpointMetadata, CompareTheLossThatIsMeant) {
  // Earlier versions recorded `sigmoid` for the default loss.
  for (const char *rl : {"none", "dpo", "orpo"}) {
    EXPECT_EQ(lossAfter(rl, "sigmoid", "auto"), "") << rl;
    EXPECT_EQ(lossAfter(rl, "auto", "sigmoid"), "") << rl;
  }
  EXPECT_EQ(lossAfter("kto", "auto", "kto"), "");
  EXPECT_EQ(lossAfter("none", "auto", "nll"), "");
  EXPECT_EQ(lossAfter("none", "sigmoid", "dft"),
            "'c' cannot be resumed: its --loss-type is \"nll\", but this run's "
            "is \"dft\"");
  EXPECT_EQ(lossAfter("dpo", "auto", "hinge"),
            "'c' cannot be resumed: its --loss-type is \"sigmoid\", but this "
            "run's is \"hinge\"");
  EXPECT_EQ(lossAfter("dpo", "hinge", "ipo"),
            "'c' cannot be resumed: its --loss-type is \"hinge\", but this "
            "run's is \"ipo\"");
  EXPECT_EQ(lossAfter("dpo", "auto", {"sigmoid", "sft"}),
            "'c' cannot be resumed: its --loss-type is \"sigmoid\", but this "
            "run's is [\"sigmoid\",\"sft\"]");
  EXPECT_EQ(lossAfter("kto", "auto", "apo_zero_unpaired"),
            "'c' cannot be resumed: its --loss-type is \"kto\", but this "
            "run's is \"apo_zero_unpaired\"");
}
