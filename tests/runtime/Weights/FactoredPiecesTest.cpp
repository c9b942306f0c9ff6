// SPDX-License-Identifier: MIT

// fsdp and tp shards of a residual base: frozen weights from which the initial
// LoRA factors were subtracted.

#include "runtime/Weights/WeightFactors.h"

#include "runtime/Ranks/RankGroup.h"
#include "tests/runtime/Weights/FilledPieces.h"
#include "tests/runtime/Weights/SliceTables.h"

#include <gtest/gtest.h>

#include <optional>

namespace qlora {
namespace {

/// Appends A and B of `weight` after the existing adapters.
void addFactors(PieceTables &tables, const char *a, const char *b,
                const PieceParameter &weight) {
  for (const bool isA : {true, false}) {
    qlora_parameter factor = tables.parameters.back();
    factor.offset += factor.bytes;
    factor.name = isA ? a : b;
    factor.init = QLORA_INIT_FACTOR;
    factor.shape[0] = isA ? 2 : weight.shape[0];
    factor.shape[1] = isA ? weight.shape[1] : 2;
    factor.bytes = static_cast<uint64_t>(factor.shape[0] * factor.shape[1]) * 4;
    tables.parameters.push_back(factor);
    tables.arenas[kDemoTrainable].bytes = factor.offset + factor.bytes;
    tables.arenas[kDemoGradient].bytes = factor.offset + factor.bytes + 8;
  }
}

const std::vector<PieceParameter> kWeights = {
    {"m.weight", {24, 40}, kNone, kF32, kBF16},
    {"n.weight", {32, 48}, kOnLoad, kF32, kNF4, kNF4, 64}};

void addFactors(PieceTables &tables) {
  addFactors(tables, "m.lora_A.weight", "m.lora_B.weight", kWeights[0]);
  addFactors(tables, "n.lora_A.weight", "n.lora_B.weight", kWeights[1]);
}

PieceTables factored(uint32_t shards) {
  PieceTables tables(kWeights, shards);
  addFactors(tables);
  return tables;
}

class FrozenShardsOfARest : public testing::Test {
protected:
  FrozenShardsOfARest() {
    ModelWriter model;
    model.addNormal("m.weight", {24, 40}, kF32);
    model.addNormal("n.weight", {32, 48}, kF32);
    model.write(folder);
    files.emplace(ModelFiles::open(folder.path()).value());
  }
  static nlohmann::json entry(const char *weight) {
    return {{"scale", 2.0}, {"turned", false}, {"weight", weight}};
  }

  const TemporaryFolder folder;
  std::optional<ModelFiles> files;
  StatusOr<RankGroup> job = RankGroup::join({}, {}, std::chrono::seconds(1));
  const nlohmann::json ofN = {{"n.lora_A.weight", entry("n.weight")}};
  const nlohmann::json ofBoth = {{"m.lora_A.weight", entry("m.weight")},
                                 {"n.lora_A.weight", entry("n.weight")}};
};

/// PiSSA residuals of two weights. All ranks read one weight; a single rank
/// computes the other weight.
TEST_F(FrozenShardsOfARest, AreTheWholeCut) {
  const FactorRequest request = {"pissa", ofBoth};
  PieceTables whole = factored(1);
  auto wholeModule = whole.load();
  ASSERT_TRUE(wholeModule.isOk()) << wholeModule.status().message();
  auto of = LoraInitFactors::compute(*wholeModule, request, *files, *job);
  ASSERT_TRUE(of.isOk()) << of.status().message();
  Bytes expected, unchanged;
  ASSERT_EQ(
      fillArena(*wholeModule, folder.path(), nullptr, expected, &*of).message(),
      "");
  ASSERT_EQ(
      fillArena(*wholeModule, folder.path(), nullptr, unchanged).message(), "");
  EXPECT_NE(expected, unchanged);
  for (const int ranks : {2, 3}) {
    PieceTables cut = factored(static_cast<uint32_t>(ranks));
    auto module = cut.load();
    ASSERT_TRUE(module.isOk()) << module.status().message();
    auto factors = LoraInitFactors::compute(*module, request, *files, *job);
    ASSERT_TRUE(factors.isOk()) << factors.status().message();
    expectPieces(*wholeModule, expected, *module,
                 fillRanks(*module, folder.path(), ranks, &*factors));
  }
}

/// Returns tables of two weights, each split by rows into `slices` tp shards.
/// Each rank reads one weight itself; a single rank computes the other weight.
SliceTables factoredSlices(uint32_t slices) {
  PieceParameter made = kWeights[1];
  made.type = kBF16;
  made.isDouble = true;
  SliceTables tables({{kWeights[0], 0, {24}}, {made, 0, {32}}}, slices);
  addFactors(tables);
  return tables;
}

TEST_F(FrozenShardsOfARest, HaveSlices) {
  const FactorRequest request = {"pissa", ofBoth};
  SliceTables whole = factoredSlices(1), cut = factoredSlices(2);
  auto wholeModule = whole.load(), module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  auto factors = LoraInitFactors::compute(*module, request, *files, *job);
  ASSERT_TRUE(factors.isOk()) << factors.status().message();
  Bytes expected, arenas[2];
  ASSERT_EQ(fillArena(*wholeModule, folder.path(), nullptr, expected, &*factors)
                .message(),
            "");
  runRanks(2, [&](RingCollectives &group) {
    EXPECT_EQ(fillArena(*module, folder.path(), nullptr, arenas[group.rank()],
                        &*factors, &group)
                  .message(),
              "");
  });
  for (size_t i = 0; i < 2; ++i) {
    const qlora_parameter &all = wholeModule->parameters()[i];
    const qlora_parameter &half = module->parameters()[i];
    ASSERT_EQ(2 * half.bytes, all.bytes);
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(std::ranges::equal(
          std::span(arenas[rank]).subspan(half.offset, half.bytes),
          std::span(expected).subspan(all.offset + rank * half.bytes,
                                      half.bytes)))
          << half.name << " of rank " << rank;
  }
}

/// LoftQ factors fit the quantization error of the unsharded weight, even with
/// tp shards.
TEST_F(FrozenShardsOfARest, StartAtTheWholeWhereThereAreSlices) {
  const FactorRequest request = {"loftq", ofN};
  std::vector<float> starts[2];
  for (const uint32_t slices : {1, 2}) {
    SliceTables tables = factoredSlices(slices);
    auto module = tables.load();
    auto factors = LoraInitFactors::compute(*module, request, *files, *job);
    ASSERT_TRUE(factors.isOk()) << factors.status().message();
    const auto values =
        factors->ofAdapter(*module->parameter("n.lora_A.weight"));
    starts[slices - 1].assign(values.begin(), values.end());
  }
  EXPECT_FALSE(starts[0].empty());
  EXPECT_EQ(starts[0], starts[1]);
}

} // namespace
} // namespace qlora
