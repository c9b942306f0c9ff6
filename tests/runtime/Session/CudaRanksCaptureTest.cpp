// SPDX-License-Identifier: MIT

// Ranks whose micro-batches differ. Either all ranks or none capture and replay
// a graph with collectives, as the fake NCCL requires.

#include "tests/runtime/Session/CudaRanksFixture.h"

namespace qlora {
namespace {

class CudaRanksCapture : public CudaRanks {
protected:
  /// Writes tokens with at most 14 labels among the 16 tokens of a micro-batch.
  /// The fractions of labels differ between steps and ranks.
  void writeDifferentLabels() {
    std::vector<int32_t> ids, labels;
    for (const int count : {14, 3, 3, 14, 7, 14, 3, 3, 2, 11, 11, 7})
      for (int i = 0; i < 16; ++i) {
        ids.push_back(i * i * 7 % 13);
        // The first token of a row is never a target.
        const bool isTarget = i % 8 && i - i / 8 - 1 < count;
        labels.push_back(isTarget ? ids.back() : -100);
      }
    save("tokens.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {12, 2, 8}),
          item("labels", SafetensorsDtype::kI32, labels, {12, 2, 8})});
  }
  /// Writes rows of 2 to 8 tokens. Depending on its rows, a micro-batch fits
  /// into the shorter variant or not.
  void writeDifferentLengths() {
    std::vector<int32_t> ids;
    std::vector<int64_t> offsets = {0};
    for (const int size : {3, 8, 4, 2, 7, 4, 3, 2, 4, 3, 2, 8, 3, 4, 2, 2}) {
      for (int t = 0; t < size; ++t)
        ids.push_back((size + t) % 13);
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
    const int64_t tokens = offsets.back();
    save("tokens.safetensors",
         {item("input_ids", SafetensorsDtype::kI32, ids, {tokens}),
          item("labels", SafetensorsDtype::kI32, ids, {tokens}),
          item("row_offsets", SafetensorsDtype::kI64, offsets,
               {static_cast<int64_t>(offsets.size())})});
  }
  /// Expects that two ranks train like one rank on the CPU; returns the CUDA
  /// calls of both ranks.
  std::vector<nlohmann::json> expectAsOnTheCpu() {
    const std::vector<std::string> flags = {"--logging-steps", "1",
                                            "--overwrite-output-dir"};
    auto onCpu = flags;
    onCpu.insert(onCpu.end(), {"--max-steps", "16",
                               "--gradient-accumulation-steps", "2"});
    const auto expected = trainOnCpu("cpu", onCpu);
    auto found = calls("16", flags);
    const auto lines = metrics("out");
    EXPECT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < std::min(lines.size(), expected.size()); ++i)
      for (const char *key : {"loss", "grad_norm"}) {
        if (!expected[i].contains(key))
          continue;
        EXPECT_NEAR(lines[i][key].get<double>(),
                    expected[i][key].get<double>(), 1e-6)
            << key << " of line " << i;
      }
    EXPECT_EQ(found.size(), 2u);
    found.resize(2, nlohmann::json::object());
    for (const char *name : {"cuStreamBeginCapture_v2", "cuGraphLaunch"})
      EXPECT_EQ(found[0].value(name, 0), found[1].value(name, 0)) << name;
    return found;
  }
};

TEST_F(CudaRanksCapture, CaptureTogetherWhateverTheirLabels) {
  writeDifferentLabels();
  const auto found = expectAsOnTheCpu();
  // There is one graph for each of three classes of label counts, and one for
  // the update. The first run of each class is direct, without a graph.
  EXPECT_EQ(found[0].value("cuStreamBeginCapture_v2", 0), 3 + 1);
  EXPECT_EQ(found[0].value("cuGraphLaunch", 0), 16 - 3 + 16 - 1);
}

TEST_F(CudaRanksCapture, AddUpDirectlyWhereTheirLengthsDiffer) {
  writeDifferentLengths();
  const auto found = expectAsOnTheCpu();
  // Some micro-batches run as graphs, but not all.
  const int graphs = found[0].value("cuGraphLaunch", 0) - 15;
  EXPECT_GT(graphs, 0);
  EXPECT_LT(graphs, 16 - 2);
}

TEST_F(CudaRanksCapture, HaveTheSameBitsWhateverTheirPace) {
  writeDifferentLabels();
  const std::vector<std::string> flags = {"--gpus", "2", "--max-steps", "12",
                                          "--overwrite-output-dir"};
  train("first", flags);
  for (const char *delay : {"1:300", "2:300@0", "3:2000@1"}) {
    set("QLORA_TEST_CUDA_DELAY", delay);
    train("again", flags);
    EXPECT_EQ(adapter("again"), adapter("first")) << "delay " << delay;
  }
}

TEST_F(CudaRanksCapture, AreProfiledTogether) {
  writeDifferentLabels();
  train("out", {"--gpus", "2", "--max-steps", "12", "--profile", at("trace"),
                "--profile-warmup", "4", "--profile-active", "3"});
}

TEST_F(CudaRanksCapture, ACaptureThatFailsOnOneRankEndsTheOthers) {
  for (const char *call : {"cuStreamBeginCapture_v2", "cuStreamEndCapture",
                           "cuGraphInstantiateWithFlags"})
    EXPECT_HAS(failureWith("QLORA_TEST_CUDA_FAIL",
                           fmt::format("{}:1:999@1", call)),
               std::string(call).substr(0, 14));
}

TEST_F(CudaRanksCapture, ThatWereStartedOtherwiseAreRefused) {
  using Flags = std::vector<std::string>;
  for (const auto &[flags, name] :
       {std::pair{Flags{"--cuda-graphs", "false"}, "--cuda-graphs"},
        std::pair{Flags{"--profile", at("trace"), "--profile-warmup", "1",
                        "--profile-active", "1"},
                  "--profile"},
        std::pair{Flags{"--seed", "43"}, "--seed"}}) {
    EXPECT_HAS(runBoth({}, flags)[1].errors,
               fmt::format("rank 1: differs from rank 0 in {}; start", name));
    EXPECT_EQ(runBoth(flags, flags)[1].exitCode, 0) << name;
  }
  std::filesystem::copy(at("rows.safetensors"), at("same.safetensors"));
  const auto validate = [&](const char *onFirst, const char *onSecond) {
    return runBoth({"--validation-file", at(onFirst)},
                   {"--validation-file", at(onSecond)})[1];
  };
  EXPECT_EQ(validate("rows.safetensors", "same.safetensors").exitCode, 0);
  EXPECT_HAS(validate("rows.safetensors", "tokens.safetensors").errors,
             "rank 1: differs from rank 0 in the rows of --validation-file");
}

} // namespace
} // namespace qlora
