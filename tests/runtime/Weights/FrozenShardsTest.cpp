// SPDX-License-Identifier: MIT

// Frozen weights in fsdp shards. For every form of a weight and any number of
// ranks, the concatenated shards equal the unsharded weights, byte for byte.

#include "runtime/Weights/FrozenShards.h"

#include "tests/runtime/Weights/FilledPieces.h"
#include "tests/runtime/Weights/PieceTables.h"
#include "tests/runtime/Weights/StoredWriters.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

namespace qlora {
namespace {

/// Weights that writeModel() writes, followed by stored formats of
/// tests/Inputs.
const std::vector<PieceParameter> kKinds = {
    {"nf4", {37, 64}, kOnLoad, kBF16, kNF4, kNF4, 64, true},
    {"copied", {65, 33}, kNone, kBF16, kBF16},
    {"single", {33, 99}, kOnLoad, kF32, kNF4, kNF4, 64, false},
    {"int8",
     {19, 61},
     kOnLoad,
     kBF16,
     QLORA_DTYPE_LLM_INT8,
     QLORA_DTYPE_LLM_INT8,
     61},
    {"narrowed", {129, 7}, kNone, kF32, kBF16},
    {"gptq.weight",
     {72, 96},
     kStored,
     kF32,
     QLORA_DTYPE_INT4,
     QLORA_DTYPE_INT4,
     32},
    {"awq.weight",
     {72, 96},
     kStored,
     kF32,
     QLORA_DTYPE_INT4,
     QLORA_DTYPE_INT4,
     32},
    {kStoredStack,
     {144, 96},
     kStored,
     kF32,
     kBF16,
     QLORA_DTYPE_INT4,
     32,
     false,
     2},
    {"fp8", {18, 96}, kOnLoad, kBF16, QLORA_DTYPE_FP8, QLORA_DTYPE_FP8, 96},
    {"mxfp4",
     {18, 96},
     kOnLoad,
     kF32,
     QLORA_DTYPE_MXFP4,
     QLORA_DTYPE_MXFP4,
     32,
     true},
    {"widened", {5}, kNone, kBF16, kF32}, // 20 bytes
    {"norm", {48}, kNone, kF32, kF32, 0, 0, false, 0, /*isCut=*/false},
    {kStacked, {64, 64}, kOnLoad, kBF16, kNF4, kNF4, 64, true, 2},
    {"turned", {70, 128}, kTurned, kBF16, kNF4, kNF4, 64, true},
    {"resident", {29, 176}, kOnLoad, kBF16, kBF16, kNF4, 64, true},
    {"gptq_8.weight", {24, 64}, kStored, kF32, kBF16, QLORA_DTYPE_INT8, 32},
    {"tiny", {3, 5}, kOnLoad, kF32, kNF4, kNF4, 64, true},
    {"roomy", {6, 40}, kOnLoad, kF32, kNF4, kNF4, 64, true, 0, true, 4096},
    {"wide", {6, 40}, kNone, kF32, kF32, 0, 0, false, 0, true, 1024},
};

void writeModel(const TemporaryFolder &folder) {
  ModelWriter model;
  addPlain(model, kKinds);
  model.addNormal("stack.0", {32, 64}, kBF16);
  model.addNormal("stack.1", {32, 64}, kBF16);
  addInputs(model);
  model.write(folder);
}

class FrozenShards : public testing::Test {
protected:
  FrozenShards() { writeModel(folder); }
  const TemporaryFolder folder;
};

/// Compares the shards of `sizes` ranks with the arena of a single rank.
void expectTheWhole(const std::vector<PieceParameter> &rows,
                    const std::string &folder, std::vector<int> sizes) {
  PieceTables whole(rows, 1);
  auto wholeModule = whole.load();
  ASSERT_TRUE(wholeModule.isOk()) << wholeModule.status().message();
  Bytes expected;
  ASSERT_EQ(fillArena(*wholeModule, folder, nullptr, expected).message(), "");
  for (const int ranks : sizes) {
    SCOPED_TRACE(ranks);
    PieceTables cut(rows, static_cast<uint32_t>(ranks));
    auto module = cut.load();
    ASSERT_TRUE(module.isOk()) << module.status().message();
    expectPieces(*wholeModule, expected, *module,
                 fillRanks(*module, folder, ranks));
  }
}

TEST_F(FrozenShards, AreTheWholeCut) {
  expectTheWhole(kKinds, folder.path(), {2, 3, 4, 8});
}

/// Tensors whose shards are read and sent in several chunks.
TEST(FrozenShardsOfSize, AreTheWholeCut) {
  const TemporaryFolder folder;
  ModelWriter model;
  model.addNormal("read", {2100, 4100}, kBF16);
  model.addNormal("made", {2050, 2048}, kBF16);
  model.write(folder);
  const uint64_t made = 4 * 2050 * 2048;
  EXPECT_GT(made / 2, kExchangedBytes / 2);
  expectTheWhole({{"read", {2100, 4100}, kNone, kBF16, kBF16},
                  {"made", {2050, 2048}, kOnLoad, kBF16, kF32, kNF4, 64, true}},
                 folder.path(), {2});
}

/// A shard is computed on the host and copied to the device in chunks.
TEST_F(FrozenShards, ReachADevice) {
  constexpr int kRanks = 3;
  PieceTables cut(kKinds, kRanks);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const std::vector<Bytes> expected = fillRanks(*module, folder.path(), kRanks);
  runRanks(kRanks, [&](RingCollectives &group) {
    auto model = ModelFiles::open(folder.path());
    DeviceOptions options;
    options.collectives = {&group, &group};
    auto device = createDevice("cpu", options);
    ASSERT_TRUE(device.isOk()) << device.status().message();
    ASSERT_TRUE((*device)->load(*module, nullptr).isOk());
    const uint64_t bytes = module->arenaBytes(QLORA_ARENA_FROZEN);
    DeviceArena arena(**device, kDemoFrozen, bytes, loadingScratch(*module));
    ParameterSources sources;
    sources.model = &*model;
    sources.shards = &group;
    EXPECT_EQ(
        fillFrozen(*module, sources, {}, QLORA_ARENA_FROZEN, arena).message(),
        "");
    Bytes got(bytes);
    ASSERT_TRUE((*device)->read(kDemoFrozen, 0, got).isOk());
    for (const qlora_parameter &parameter : module->parameters())
      if (parameter.role == QLORA_ROLE_FROZEN)
        EXPECT_TRUE(std::ranges::equal(
            std::span(got).subspan(parameter.offset, arenaBytesOf(parameter)),
            std::span(expected[static_cast<size_t>(group.rank())])
                .subspan(parameter.offset, arenaBytesOf(parameter))))
            << parameter.name;
  });
}

/// An arena that discards its contents. Each write measures the process's
/// resident memory.
class WatchedArena final : public ArenaSink {
public:
  explicit WatchedArena(uint64_t size) : size(size) {}
  uint64_t bytes() const override { return size; }
  std::span<uint8_t> map(uint64_t, uint64_t count) override {
    most = std::max(most, count);
    part.resize(count);
    return part;
  }
  Status commit() override {
    resident = std::max(resident, readProcessMemory().residentBytes);
    return Status::ok();
  }

  const uint64_t size;
  Bytes part;
  uint64_t most = 0, resident = 0;
};

/// Both ranks are threads of this process. The process may need two tensors of
/// 16 MiB and buffers, but not twice the 192 MiB of all tensors.
TEST(FrozenShardsMemory, IsThatOfOneTensor) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr int kRanks = 2;
  const TemporaryFolder folder;
  std::vector<PieceParameter> rows;
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i)
    names.push_back("w" + std::to_string(i));
  {
    ModelWriter model;
    for (const std::string &name : names)
      model.add(name, SafetensorsDtype::kBF16, {2048, 2048},
                Bytes(2 * 2048 * 2048, 0x3c));
    model.write(folder);
  }
  for (const std::string &name : names)
    rows.push_back(
        {name.c_str(), {2048, 2048}, kOnLoad, kBF16, kF32, kNF4, 64, true});
  PieceTables cut(rows, kRanks);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const uint64_t before = readProcessMemory().residentBytes;
  std::atomic<uint64_t> resident = 0;
  runRanks(kRanks, [&](RingCollectives &group) {
    auto model = ModelFiles::open(folder.path());
    ParameterSources sources;
    sources.model = &*model;
    sources.shards = &group;
    WatchedArena arena(module->arenaBytes(QLORA_ARENA_FROZEN));
    EXPECT_EQ(
        fillFrozen(*module, sources, {}, QLORA_ARENA_FROZEN, arena).message(),
        "");
    EXPECT_LE(arena.most, kExchangedBytes / kRanks);
    if (group.rank() == 0)
      resident = arena.resident;
  });
  const uint64_t growth = resident - std::min<uint64_t>(before, resident);
  RecordProperty("MiB", static_cast<int>(growth / kMiB));
  // ThreadSanitizer adds several bytes of shadow memory for each byte, which
  // exceeds this limit.
#ifndef __SANITIZE_THREAD__
  EXPECT_LE(growth, 160 * kMiB);
#endif
}

/// A rank that fails closes its connections, so the other ranks do not wait.
TEST_F(FrozenShards, OneRankThatFailsEndsThemAll) {
  const TemporaryFolder damaged;
  ModelWriter model;
  model.addNormal("nf4", {36, 64}, kBF16);
  model.write(damaged);
  // The second rank computes the second largest tensor.
  PieceTables cut({{"turned", {70, 128}, kTurned, kBF16, kNF4, kNF4, 64, true},
                   {"nf4", {37, 64}, kOnLoad, kBF16, kNF4, kNF4, 64, true},
                   {"tiny", {3, 5}, kOnLoad, kF32, kNF4, kNF4, 64, true}},
                  3);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  std::vector<Status> ends(3);
  runRanks(3, [&](RingCollectives &group) {
    const auto rank = static_cast<size_t>(group.rank());
    Bytes out;
    ends[rank] = fillArena(*module, rank == 1 ? damaged.path() : folder.path(),
                           &group, out);
  });
  EXPECT_HAS(ends[1].message(), "tensor 'nf4' has shape [36, 64]");
  EXPECT_EQ(ends[0].code(), StatusCode::kAborted) << ends[0].message();
  EXPECT_EQ(ends[2].code(), StatusCode::kAborted) << ends[2].message();
}

TEST_F(FrozenShards, NeedAsManyRanks) {
  PieceTables cut(kKinds, 4);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  Bytes out;
  SingleRank alone;
  for (Collectives *group : {static_cast<Collectives *>(nullptr),
                             static_cast<Collectives *>(&alone)}) {
    const Status status = fillArena(*module, folder.path(), group, out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_HAS(status.message(), "'demo' was compiled for a base sharded "
                                 "over 4 ranks (pieces), not 1; start a");
  }
}

} // namespace
} // namespace qlora
