// SPDX-License-Identifier: MIT

// Errors of head_part and head_merge for wrong data and requests.

#include "tests/conformance/HeadPartsCase.h"

namespace qlora {
namespace {

using namespace headparts;

const Split kSmall = {2, 4, 3, 10, 5, 2, 0, F32, F32, Into::kGradient};

TEST(HeadParts, NamesTheRowOfAnImpossibleTarget) {
  for (const Rows &rows : rowsOfParts())
    for (int target : {10, -1, -101}) {
      KernelCase whole = makeWhole(kSmall);
      std::vector<KernelCase> parts = makeParts(kSmall, whole);
      KernelCase merge = makeMerge(kSmall, 1, whole, parts);
      const qlora_step_block step = stepOf(1);
      for (auto [test, row] :
           {std::pair(&parts[1], rows.part), std::pair(&merge, rows.merge)}) {
        test->set("targets", 2, target);
        const Status status = test->run(row, nullptr, &step);
        EXPECT_EQ(status.isOk(), std::string(row) == "cuda");
        EXPECT_TRUE(status.isOk() ||
                    status.message().find("row 2 has target " +
                                          std::to_string(target)) !=
                        std::string::npos)
            << status.message();
      }
    }
}

TEST(HeadParts, ImpossibleTargetsAreNaNOnCuda) {
  if (!CudaGpu::get())
    GTEST_SKIP() << CudaGpu::reason();
  for (int target : {10, -1, -101}) {
    KernelCase whole = makeWhole(kSmall);
    whole.set("targets", 2, target);
    Ranks ranks = runRanks(kSmall, whole, {"cuda", "cuda"});
    EXPECT_FALSE(std::isnan(ranks.merges[0].at("loss", 0)));
    EXPECT_TRUE(std::isnan(ranks.merges[1].at("loss", 0)));
    for (KernelCase &merge : ranks.merges)
      for (int64_t i = 0; i < kSmall.hidden; ++i)
        EXPECT_EQ(merge.at("gradient", 2 * kSmall.hidden + i), 0);
  }
}

TEST(HeadParts, AShardThatIsNoneIsAnErrorOrNaN) {
  KernelCase whole = makeWhole(kSmall);
  for (const Rows &rows : rowsOfParts()) {
    Ranks ranks = runRanks(kSmall, whole, rows);
    KernelCase merge = makeMerge(kSmall, 1, whole, ranks.parts);
    const qlora_step_block step = stepOf(2);
    const Status status = merge.run(rows.merge, nullptr, &step);
    if (std::string(rows.merge) == "cuda") {
      expectOk(status);
      EXPECT_TRUE(std::isnan(merge.at("loss", 0)));
      continue;
    }
    EXPECT_EQ(status.message(),
              "head_merge: the step is for shard 2, but there are 2");
  }
}

TEST(HeadParts, SayWhyARequestIsRefused) {
  KernelCase whole = makeWhole(kSmall);
  std::vector<KernelCase> parts = makeParts(kSmall, whole);
  const KernelRequest part = parts[0].request;
  const KernelRequest merge = makeMerge(kSmall, 0, whole, parts).request;
  const auto refusal = [](KernelRequest request, const char *constant,
                          int64_t value) {
    request.constants[request.op->constantIndex(constant)] = value;
    return findKernelRow(request.op->name + ".cuda")->reject(request);
  };
  for (const KernelRequest &request : {part, merge}) {
    EXPECT_EQ(refusal(request, "piece", 5), std::nullopt);
    EXPECT_EQ(refusal(request, "piece", 4),
              "piece must hold the vocabulary with the other shards', got 4");
    EXPECT_EQ(refusal(request, "piece", (1 << 24) + 1),
              "piece must be at most 2^24, got 16777217");
    EXPECT_EQ(refusal(request, "vocab", (1 << 24) + 1),
              "vocab must be at most 2^24, got 16777217");
  }
  EXPECT_EQ(refusal(merge, "own", 3),
            "own must be the rows of a shard, or all, got 3");
  EXPECT_EQ(refusal(merge, "lines", 3),
            "lines must divide own, got 3");
  KernelRequest smooth = part;
  smooth.constants[smooth.op->constantIndex("cap")] = bits(2);
  smooth.constants.push_back(bits(0.1));
  EXPECT_EQ(refusal(smooth, "piece", 5), "smoothing must be 0 with a cap");
  KernelRequest without = merge;
  without.dtypes[without.op->operandIndex("w")] = std::nullopt;
  EXPECT_EQ(refusal(without, "piece", 5),
            "gradient and w must both be present or absent, and dhidden only "
            "with them");
}

} // namespace
} // namespace qlora
