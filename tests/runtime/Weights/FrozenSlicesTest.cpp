// SPDX-License-Identifier: MIT

// Frozen weights in tp shards. For every form of a weight, its shards equal
// slices of the unsharded weight, bit for bit.

#include "runtime/Weights/FrozenShards.h"

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Weights/ParameterWeight.h"
#include "tests/runtime/Weights/FilledPieces.h"
#include "tests/runtime/Weights/SliceTables.h"
#include "tests/runtime/Weights/StoredWriters.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace qlora {
namespace {

constexpr auto kFP4 = QLORA_DTYPE_FP4;
constexpr auto kFP8 = QLORA_DTYPE_FP8;
constexpr auto kMXFP4 = QLORA_DTYPE_MXFP4;
constexpr auto kInt4 = QLORA_DTYPE_INT4;
constexpr auto kInt8 = QLORA_DTYPE_INT8;
constexpr auto kRows8 = QLORA_DTYPE_LLM_INT8;
constexpr char kPlainStack[] = "plain\0stack.0\0stack.1";

/// All forms of weights, with 48 or 144 rows in dimension 0.
const std::vector<PieceParameter> kForms = {
    {"double", {48, 1536}, kOnLoad, kBF16, kNF4, kNF4, 64, true},
    {"single", {48, 1536}, kOnLoad, kF32, kNF4, kNF4, 64, false},
    {"turned", {48, 1536}, kTurned, kBF16, kNF4, kNF4, 64, true},
    {"fp4", {48, 1536}, kOnLoad, kBF16, kFP4, kFP4, 128, true},
    {"mxfp4", {48, 1536}, kOnLoad, kBF16, kMXFP4, kMXFP4, 32, true},
    {"int8", {48, 1536}, kOnLoad, kBF16, kRows8, kRows8, 1536},
    {"fp8", {48, 1536}, kOnLoad, kBF16, kFP8, kFP8, 1536},
    {"resident", {48, 1536}, kOnLoad, kBF16, kBF16, kNF4, 64, true},
    {"resident8", {48, 1536}, kOnLoad, kBF16, kF32, kRows8, 1536},
    {kStacked, {48, 1536}, kOnLoad, kBF16, kNF4, kNF4, 64, true, 2},
    {kPlainStack, {48, 1536}, kNone, kBF16, kBF16, 0, 0, false, 2},
    {"copied", {48, 1536}, kNone, kBF16, kBF16},
    {"narrowed", {48, 1536}, kNone, kF32, kBF16},
    {"bnb", {48, 1536}, kStored, kF32, kNF4, kNF4, 64, true},
    {"tiles.weight", {48, 1536}, kStored, kF32, kFP8, kFP8, 128},
};

/// Weights of stored formats from tests/Inputs/stored.
const std::vector<SliceParameter> kStoredRows = {
    {{"gptq.weight", {72, 96}, kStored, kF32, kInt4, kInt4, 32},
     0,
     {40, 24, 8}},
    {{"awq.weight", {72, 96}, kStored, kF32, kInt4, kInt4, 32}, 0, {72}},
    {{kStoredStack, {144, 96}, kStored, kF32, kInt4, kInt4, 32, false, 2},
     0,
     {72, 72}},
    // A row of a shard is one block of gptq_8. The other files have one block
    // per row, so a row of a shard is half of a block.
    {{"gptq_8.weight", {24, 64}, kStored, kF32, kInt8, kInt8, 32}, 1, {64}},
    {{"gptq_whole.weight", {40, 56}, kStored, kF32, kInt4, kInt4, 56},
     1,
     {24, 32}},
    {{"awq_whole.weight", {16, 40}, kStored, kF32, kBF16, kInt4, 40}, 1, {40}},
};

class FrozenSlices : public testing::Test {
protected:
  FrozenSlices() {
    ModelWriter model;
    addPlain(model, kForms);
    model.addNormal("bias", {12}, kBF16);
    model.addNormal("experts", {4, 64, 256}, kBF16);
    model.addNormal("numbers", {4, 6, 10}, kF32);
    addStack(model);
    addBitsandbytes(model);
    addTiles(model);
    addInputs(model);
    model.write(folder);
  }
  const TemporaryFolder folder;
};

/// Expects zeros in the gaps between codes, scales and zero points.
void expectZeros(const StoredLayout &l, const uint8_t *bytes) {
  const int64_t scales = l.scales + (l.doubleQuant ? 1 : 4) * l.blocks;
  const int64_t zeros = l.zeros + (l.format().hasZeros ? l.blocks : 0);
  for (const auto &[from, to] :
       {std::pair{l.packedBytes, l.scales}, std::pair{scales, l.zeros},
        std::pair{zeros, l.nestedAbsmax}, std::pair{l.correction + 4, l.bytes}})
    EXPECT_TRUE(std::all_of(bytes + from, bytes + to,
                            [](uint8_t byte) { return byte == 0; }))
        << l.format().name << " from " << from;
}

/// Returns the decoded elements of a parameter, or its values if it is not
/// quantized.
std::vector<float> numbersOf(const qlora_parameter &parameter,
                             const Bytes &arena) {
  const uint8_t *bytes = arena.data() + parameter.offset;
  const int64_t columns = shapeOf(parameter).back();
  std::vector<float> numbers(static_cast<size_t>(elementsOf(parameter)));
  const auto count = static_cast<int64_t>(numbers.size());
  if (!storedFormat(parameter.dtype)) {
    weightsToFloat(static_cast<qlora_dtype>(parameter.dtype), bytes, count,
                   numbers.data());
    return numbers;
  }
  const StoredLayout layout = layoutOf(parameter);
  EXPECT_EQ(static_cast<uint64_t>(layout.bytes), parameter.bytes);
  expectZeros(layout, bytes);
  const auto tensor = StoredTensor::of(layout, bytes);
  std::vector<float> fast(numbers.size());
  StoredWeight::of(layout, columns).decode(bytes, 0, count, kF32, fast.data());
  for (int64_t i = 0; i < count; ++i)
    numbers[static_cast<size_t>(i)] = tensor.element(i);
  EXPECT_EQ(std::memcmp(fast.data(), numbers.data(), 4 * fast.size()), 0);
  return numbers;
}

/// Returns the elements of slice `number`, copied one by one.
std::vector<float> cutByHand(const std::vector<float> &whole,
                             const SliceParameter &row, int64_t slices,
                             int64_t number) {
  const std::vector<int64_t> &shape = row.whole.shape;
  int64_t before = 1, behind = 1;
  for (size_t i = 0; i < shape.size(); ++i)
    (i < row.dimension ? before : behind) *= i == row.dimension ? 1 : shape[i];
  std::vector<float> slice;
  for (int64_t o = 0; o < before; ++o)
    for (int64_t at = 0; const int64_t length : row.segments) {
      const int64_t part = length / slices;
      for (int64_t k = 0; k < part; ++k)
        for (int64_t i = 0; i < behind; ++i)
          slice.push_back(whole[static_cast<size_t>(
              (o * shape[row.dimension] + at + number * part + k) * behind +
              i)]);
      at += length;
    }
  return slice;
}

void expectSlices(const std::vector<SliceParameter> &rows,
                  const std::string &folder, uint32_t slices) {
  SCOPED_TRACE(slices);
  SliceTables whole(rows, 1), cut(rows, slices);
  auto wholeModule = whole.load();
  ASSERT_TRUE(wholeModule.isOk()) << wholeModule.status().message();
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  Bytes expected;
  ASSERT_EQ(fillArena(*wholeModule, folder, nullptr, expected).message(), "");
  std::vector<Bytes> arenas(slices);
  runRanks(static_cast<int>(slices), [&](RingCollectives &group) {
    EXPECT_EQ(fillArena(*module, folder, nullptr,
                        arenas[static_cast<size_t>(group.rank())], nullptr,
                        &group)
                  .message(),
              "");
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto all = numbersOf(wholeModule->parameters()[i], expected);
    for (size_t rank = 0; rank < slices; ++rank) {
      const auto got = numbersOf(module->parameters()[i], arenas[rank]);
      const auto wanted =
          rows[i].segments.empty()
              ? all
              : cutByHand(all, rows[i], slices, static_cast<int64_t>(rank));
      ASSERT_EQ(got.size(), wanted.size()) << rows[i].whole.name;
      EXPECT_EQ(std::memcmp(got.data(), wanted.data(), 4 * got.size()), 0)
          << rows[i].whole.name << " of rank " << rank;
    }
  }
}

/// Checks all `count` weights of kForms that can be sliced in this way.
void expectKinds(uint32_t dimension, const std::vector<int64_t> &segments,
                 uint32_t slices, const std::string &folder, size_t count) {
  std::vector<SliceParameter> rows;
  for (const PieceParameter &kind : kForms)
    if (const SliceParameter row = {kind, dimension, segments};
        canSlice(row.kept(), row.cutInto(slices)))
      rows.push_back(row);
  EXPECT_EQ(rows.size(), count);
  expectSlices(rows, folder, slices);
}

TEST_F(FrozenSlices, AreTheWholeCutAlongRows) {
  for (const uint32_t slices : {2, 4}) {
    expectKinds(0, {48}, slices, folder.path(), kForms.size());
    expectKinds(0, {24, 8, 16}, slices, folder.path(), kForms.size());
  }
}

TEST_F(FrozenSlices, AreTheWholeCutAcrossRows) {
  expectKinds(1, {1536}, 2, folder.path(), kForms.size());
  expectKinds(1, {256, 768, 512}, 2, folder.path(), kForms.size());
  // All forms except fp4 and tiles, whose blocks have 128 elements.
  expectKinds(1, {256, 768, 512}, 4, folder.path(), kForms.size() - 2);
}

TEST_F(FrozenSlices, OfStoredFormatsAreTheWholeCut) {
  expectSlices(kStoredRows, folder.path(), 2);
}

/// Tables also contain unsharded parameters.
TEST_F(FrozenSlices, HaveAnyNumberOfDimensions) {
  const PieceParameter bias = {"bias", {12}, kNone, kBF16, kF32};
  const PieceParameter experts = {"experts", {4, 64, 256}, kOnLoad, kBF16,
                                  kNF4,      kNF4,         64,      true};
  const PieceParameter numbers = {"numbers", {4, 6, 10}, kNone, kF32, kF32};
  const SliceParameter all = {
      {"single", {48, 1536}, kOnLoad, kF32, kNF4, kNF4, 64, true}};
  expectSlices({{bias, 0, {12}}, {experts, 0, {4}}, {numbers, 0, {4}}},
               folder.path(), 2);
  expectSlices(
      {{bias, 0, {6, 2, 4}}, {experts, 1, {24, 40}}, {numbers, 1, {6}}, all},
      folder.path(), 2);
  expectSlices({{experts, 2, {128, 128}}, {numbers, 2, {2, 8}}}, folder.path(),
               2);
}

/// Tensors larger than one exchange between ranks.
TEST(FrozenSlicesOfSize, AreTheWholeCut) {
  const TemporaryFolder folder;
  ModelWriter model;
  model.addNormal("copied", {2100, 2600}, kBF16);
  model.addNormal("made", {2050, 2048}, kBF16);
  model.write(folder);
  EXPECT_GT(uint64_t{2100} * 2600 * 2 / 2, kExchangedBytes / 2);
  expectSlices(
      {{{"copied", {2100, 2600}, kNone, kBF16, kBF16}, 1, {1000, 1600}},
       {{"made", {2050, 2048}, kOnLoad, kBF16, kF32, kNF4, 64, true},
        1,
        {2048}}},
      folder.path(), 2);
}

/// Every rank rejects tables in which slices divide a quantization block.
TEST_F(FrozenSlices, ThatAreNoWholeBlocksAreRefused) {
  SliceTables cut(
      {{{"double", {48, 1536}, kOnLoad, kBF16, kNF4, kNF4, 64, true},
        1,
        {1472, 64}}},
      2);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  runRanks(2, [&](RingCollectives &group) {
    Bytes out;
    const Status status =
        fillArena(*module, folder.path(), nullptr, out, nullptr, &group);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(),
              "'demo': parameter 'double' has 2 slices in dimension 1 of [48, "
              "1536], nf4 in blocks of 64 with double_quant 2, but a slice is "
              "not whole blocks; compile it again");
  });
}

TEST_F(FrozenSlices, NeedAsManyRanks) {
  SliceTables cut({{kForms[0], 0, {48}}}, 4);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  Bytes out;
  SingleRank alone;
  for (Collectives *group : {static_cast<Collectives *>(nullptr),
                             static_cast<Collectives *>(&alone)}) {
    const Status status =
        fillArena(*module, folder.path(), nullptr, out, nullptr, group);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_HAS(status.message(), "'demo' was compiled for a base sharded "
                                 "over 4 ranks (slices), not 1; start a");
  }
}

} // namespace
} // namespace qlora
