// SPDX-License-Identifier: MIT

// Pieces of a base that is what factors leave of a model.

#include "runtime/Weights/WeightFactors.h"

#include "runtime/Ranks/RankGroup.h"
#include "tests/runtime/Weights/FilledPieces.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

/// A and B of `weight`, behind the adapters that are there.
void addFactors(PieceTables &tables, const char *a, const char *b,
                const qlora_parameter &weight) {
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

PieceTables factored(uint32_t shards) {
  PieceTables tables({{"m.weight", {24, 40}, kNone, kF32, kBF16},
                      {"n.weight", {32, 48}, kOnLoad, kF32, kNF4, kNF4, 64}},
                     shards);
  addFactors(tables, "m.lora_A.weight", "m.lora_B.weight",
             tables.parameters[0]);
  addFactors(tables, "n.lora_A.weight", "n.lora_B.weight",
             tables.parameters[1]);
  return tables;
}

/// What PiSSA leaves of weights, whichever way they come.
TEST(FrozenPiecesOfARest, AreTheWholeCut) {
  const TemporaryFolder folder;
  ModelWriter model;
  model.addNormal("m.weight", {24, 40}, kF32);
  model.addNormal("n.weight", {32, 48}, kF32);
  model.write(folder);
  auto files = ModelFiles::open(folder.path());
  auto job = RankGroup::join({}, {}, std::chrono::seconds(1));
  const auto entry = [](const char *weight) {
    return nlohmann::json{
        {"scale", 2.0}, {"turned", false}, {"weight", weight}};
  };
  const FactorRequest request = {"pissa",
                                 {{"m.lora_A.weight", entry("m.weight")},
                                  {"n.lora_A.weight", entry("n.weight")}}};
  PieceTables whole = factored(1);
  auto wholeModule = whole.load();
  ASSERT_TRUE(wholeModule.isOk()) << wholeModule.status().message();
  auto of = StartingFactors::compute(*wholeModule, request, *files, *job);
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
    auto factors = StartingFactors::compute(*module, request, *files, *job);
    ASSERT_TRUE(factors.isOk()) << factors.status().message();
    expectPieces(*wholeModule, expected, *module,
                 fillRanks(*module, folder.path(), ranks, &*factors));
  }
}

} // namespace
} // namespace qlora
