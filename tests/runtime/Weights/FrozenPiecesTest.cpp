// SPDX-License-Identifier: MIT

// A base in pieces: laid side by side they are the bytes of the whole, in every
// form that a weight can come in and for any number of ranks.

#include "runtime/Weights/FrozenPieces.h"

#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/WeightFactors.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/PieceTables.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <string>

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

namespace qlora {
namespace {

constexpr auto kNone = QLORA_QUANTIZATION_NONE;
constexpr auto kOnLoad = QLORA_QUANTIZATION_ON_LOAD;
constexpr auto kStored = QLORA_QUANTIZATION_STORED;
constexpr auto kTurned = QLORA_QUANTIZATION_TURNED;
constexpr auto kF32 = QLORA_DTYPE_F32;
constexpr auto kBF16 = QLORA_DTYPE_BF16;
constexpr auto kNF4 = QLORA_DTYPE_NF4;
constexpr char kStacked[] = "stack\0stack.0\0stack.1";

/// What writeModel() writes, and what the files of tests/Inputs hold stored.
const std::vector<PieceParameter> kRows = {
    {"nf4", {37, 64}, kOnLoad, kBF16, kNF4, kNF4, 64, true},
    {"copied", {65, 33}, kNone, kBF16, kBF16},
    {"single", {33, 99}, kOnLoad, kF32, kNF4, kNF4, 64, false},
    {"int8", {19, 61}, kOnLoad, kBF16, QLORA_DTYPE_LLM_INT8,
     QLORA_DTYPE_LLM_INT8, 61},
    {"narrowed", {129, 7}, kNone, kF32, kBF16},
    {"gptq.weight", {72, 96}, kStored, kF32, QLORA_DTYPE_INT4, QLORA_DTYPE_INT4,
     32},
    {"awq.weight", {72, 96}, kStored, kF32, QLORA_DTYPE_INT4, QLORA_DTYPE_INT4,
     32},
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

/// Owns what a safetensors file is written of.
class ModelWriter {
public:
  void addNormal(std::string name, std::vector<int64_t> shape,
                 qlora_dtype dtype) {
    size_t elements = 1;
    for (const int64_t extent : shape)
      elements *= static_cast<size_t>(extent);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<float> values(elements);
    for (float &value : values)
      value = normal(random);
    std::vector<uint8_t> bytes(elements * weightBytes(dtype));
    weightsFromFloat(dtype, values.data(), static_cast<int64_t>(elements),
                     bytes.data());
    add(std::move(name), dtype == kF32 ? SafetensorsDtype::kF32
                                       : SafetensorsDtype::kBF16,
        std::move(shape), std::move(bytes));
  }
  void add(std::string name, SafetensorsDtype dtype, std::vector<int64_t> shape,
           std::vector<uint8_t> bytes) {
    all.push_back(std::make_unique<std::vector<uint8_t>>(std::move(bytes)));
    items.push_back({std::move(name), dtype, std::move(shape), *all.back()});
  }
  void write(const TemporaryFolder &folder) const {
    const Status status =
        writeSafetensors(folder.path("model.safetensors"), items, {});
    ASSERT_TRUE(status.isOk()) << status.message();
  }

private:
  std::mt19937 random{3};
  std::vector<std::unique_ptr<std::vector<uint8_t>>> all;
  std::vector<SafetensorsItem> items;
};

/// The weights of kRows.
void writeModel(const TemporaryFolder &folder) {
  ModelWriter model;
  for (const PieceParameter &row : kRows) {
    std::vector<int64_t> shape = row.shape;
    if (row.quantization == kTurned)
      std::ranges::reverse(shape);
    if (row.quantization != kStored && row.parts == 0)
      model.addNormal(row.name, shape, row.file);
  }
  model.addNormal("stack.0", {32, 64}, kBF16);
  model.addNormal("stack.1", {32, 64}, kBF16);
  auto stored = SafetensorsFile::open(QLORA_TEST_INPUTS
                                      "/stored/model.safetensors");
  ASSERT_TRUE(stored.isOk()) << stored.status().message();
  for (const SafetensorsTensor &tensor : stored->tensors()) {
    std::vector<uint8_t> bytes(tensor.byteCount());
    ASSERT_TRUE(stored->read(tensor, 0, bytes).isOk());
    model.add(tensor.name, tensor.dtype, tensor.shape, std::move(bytes));
  }
  model.write(folder);
}

using Bytes = std::vector<uint8_t>;

/// Fills an arena that had other bytes in it.
Status fillArena(const LoadedModule &module, const std::string &folder,
                 Collectives *shards, Bytes &out,
                 const StartingFactors *factors = nullptr) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles model, ModelFiles::open(folder));
  ParameterSources sources;
  sources.model = &model;
  sources.shards = shards;
  sources.factors = factors;
  uint64_t done = 0, total = 0;
  sources.progress = [&](uint64_t filled, uint64_t of) {
    EXPECT_GT(filled, done);
    done = filled;
    total = of;
  };
  out.assign(module.arenaBytes(QLORA_ARENA_FROZEN), 0xa5);
  HostArena arena(out);
  QLORA_RETURN_IF_ERROR(
      fillFrozen(module, sources, {}, QLORA_ARENA_FROZEN, arena));
  EXPECT_EQ(done, total);
  uint64_t share = 0;
  for (const qlora_parameter &parameter : module.parameters())
    share += parameter.role == QLORA_ROLE_FROZEN ? arenaBytesOf(parameter) : 0;
  EXPECT_EQ(total, share);
  return Status::ok();
}

/// The arenas of all ranks.
std::vector<Bytes> fillRanks(const LoadedModule &module,
                             const std::string &folder, int ranks,
                             const StartingFactors *factors = nullptr) {
  std::vector<Bytes> arenas(static_cast<size_t>(ranks));
  runRanks(ranks, [&](RingCollectives &group) {
    EXPECT_EQ(fillArena(module, folder, &group,
                        arenas[static_cast<size_t>(group.rank())], factors)
                  .message(),
              "");
  });
  return arenas;
}

/// Every parameter's pieces, side by side, are what it is in an arena that has
/// it whole, and zeros.
void expectPieces(const LoadedModule &whole, const Bytes &expected,
                  const LoadedModule &cut, const std::vector<Bytes> &arenas) {
  for (size_t i = 0; i < whole.parameters().size(); ++i) {
    const qlora_parameter &from = whole.parameters()[i];
    const qlora_parameter &to = cut.parameters()[i];
    if (from.role != QLORA_ROLE_FROZEN)
      continue;
    Bytes wanted(expected.begin() + static_cast<ptrdiff_t>(from.offset),
                 expected.begin() +
                     static_cast<ptrdiff_t>(from.offset + from.bytes));
    Bytes got;
    for (const Bytes &arena : arenas) {
      const auto piece = std::span(arena).subspan(to.offset, arenaBytesOf(to));
      if (to.piece == 0)
        EXPECT_TRUE(std::ranges::equal(piece, wanted)) << to.name;
      got.insert(got.end(), piece.begin(), piece.end());
    }
    if (to.piece == 0)
      continue;
    ASSERT_GE(got.size(), wanted.size());
    wanted.resize(got.size());
    EXPECT_TRUE(got == wanted) << to.name << " of " << arenas.size();
  }
}

class FrozenPieces : public testing::Test {
protected:
  FrozenPieces() { writeModel(folder); }
  const TemporaryFolder folder;
};

/// One rank has it all, which others are compared with.
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

TEST_F(FrozenPieces, AreTheWholeCut) {
  expectTheWhole(kRows, folder.path(), {2, 3, 4, 8});
}

/// Pieces that are read, and sent, in more than one go.
TEST(FrozenPiecesOfSize, AreTheWholeCut) {
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

/// A piece goes to a device a part at a time, and is made on the host.
TEST_F(FrozenPieces, ReachADevice) {
  constexpr int kRanks = 3;
  PieceTables cut(kRows, kRanks);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const std::vector<Bytes> expected =
      fillRanks(*module, folder.path(), kRanks);
  runRanks(kRanks, [&](RingCollectives &group) {
    auto model = ModelFiles::open(folder.path());
    auto device = createDevice("cpu", {});
    ASSERT_TRUE(device.isOk()) << device.status().message();
    ASSERT_TRUE((*device)->load(*module, nullptr).isOk());
    const uint64_t bytes = module->arenaBytes(QLORA_ARENA_FROZEN);
    DeviceArena arena(**device, kDemoFrozen, bytes, loadingScratch(*module));
    ParameterSources sources;
    sources.model = &*model;
    sources.shards = &group;
    EXPECT_EQ(fillFrozen(*module, sources, {}, QLORA_ARENA_FROZEN, arena)
                  .message(),
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
    factor.bytes =
        static_cast<uint64_t>(factor.shape[0] * factor.shape[1]) * 4;
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
    return nlohmann::json{{"scale", 2.0}, {"turned", false}, {"weight", weight}};
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
  ASSERT_EQ(fillArena(*wholeModule, folder.path(), nullptr, unchanged).message(),
            "");
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

/// An arena of no bytes of its own, which sees what the process has.
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

/// In ranks that are threads: twice a tensor of 16 MiB and its way, and not
/// twice the 192 MiB of all.
TEST(FrozenPiecesMemory, IsThatOfOneTensor) {
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
    rows.push_back({name.c_str(), {2048, 2048}, kOnLoad, kBF16, kF32, kNF4, 64,
                    true});
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
    EXPECT_EQ(fillFrozen(*module, sources, {}, QLORA_ARENA_FROZEN, arena)
                  .message(),
              "");
    EXPECT_LE(arena.most, kExchangedBytes / kRanks);
    if (group.rank() == 0)
      resident = arena.resident;
  });
  const uint64_t growth = resident - std::min<uint64_t>(before, resident);
  RecordProperty("MiB", static_cast<int>(growth / kMiB));
  EXPECT_LE(growth, 160 * kMiB);
}

/// The one that fails closes its connections; the others do not wait.
TEST_F(FrozenPieces, OneRankThatFailsEndsThemAll) {
  const TemporaryFolder damaged;
  ModelWriter model;
  model.addNormal("nf4", {37, 64}, kBF16);
  model.addNormal("single", {32, 99}, kF32);
  model.write(damaged);
  PieceTables cut({kRows[0], kRows[2], kRows[10]}, 3);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  std::vector<Status> ends(3);
  runRanks(3, [&](RingCollectives &group) {
    const auto rank = static_cast<size_t>(group.rank());
    Bytes out;
    ends[rank] = fillArena(*module, rank == 1 ? damaged.path() : folder.path(),
                           &group, out);
  });
  EXPECT_HAS(ends[1].message(), "tensor 'single' has shape [32, 99]");
  EXPECT_EQ(ends[0].code(), StatusCode::kAborted) << ends[0].message();
  EXPECT_EQ(ends[2].code(), StatusCode::kAborted) << ends[2].message();
}

TEST_F(FrozenPieces, NeedAsManyRanks) {
  PieceTables cut(kRows, 4);
  auto module = cut.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  Bytes out;
  SingleRank alone;
  for (Collectives *group : {static_cast<Collectives *>(nullptr),
                             static_cast<Collectives *>(&alone)}) {
    const Status status = fillArena(*module, folder.path(), group, out);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_HAS(status.message(), "'demo' was compiled for a base that 4 ranks "
                                 "hold in pieces, and here 1 would; start 4");
  }
}

} // namespace
} // namespace qlora
