// SPDX-License-Identifier: MIT

// Trainable parameters in fsdp shards: for any initialization, the shards of
// all ranks together equal the parameters of a single rank.

#include "runtime/Weights/Parameters.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qlora {
namespace {

constexpr uint32_t kRanks = 3;
/// Bytes of one shard, and of all values of the tensors [3, 5] and [5, 5].
constexpr uint64_t kPiece = 64, kRange = 160;

qlora_parameter makeTensor(const char *name, int64_t rows, uint64_t first,
                           qlora_init init) {
  qlora_parameter parameter{};
  parameter.name = name;
  parameter.role =
      init == QLORA_INIT_FILE ? QLORA_ROLE_TRAINABLE : QLORA_ROLE_ADAPTER;
  parameter.init = init;
  parameter.arena = kDemoTrainable;
  parameter.rank = 2;
  parameter.shape[0] = rows;
  parameter.shape[1] = 5;
  parameter.bytes = static_cast<uint64_t>(4 * rows * 5);
  parameter.first = first;
  return parameter;
}

class TrainedPieces : public testing::Test {
protected:
  /// Returns the tables of a single rank, or of one of several ranks with
  /// shards.
  DemoTables makeTables(bool isSharded, qlora_init init) const {
    DemoTables tables;
    tables.operands.clear();
    tables.commands.clear();
    tables.entries.clear();
    tables.parameters = {makeTensor("m.first", 3, 0, init),
                         makeTensor("m.second", 5, 60, init)};
    tables.header.mesh.zero2 = isSharded ? kRanks : 1;
    for (qlora_parameter &parameter : tables.parameters) {
      parameter.piece = isSharded ? kPiece : 0;
      parameter.offset = isSharded ? 0 : parameter.first;
      parameter.first = isSharded ? parameter.first : 0;
    }
    tables.arenas[kDemoTrainable].bytes = isSharded ? kPiece : kRange;
    tables.arenas[kDemoGradient].bytes = kRange + 64;
    return tables;
  }

  std::vector<float> fill(bool isSharded, qlora_init init,
                          ParameterSources sources, uint32_t piece) const {
    DemoTables tables = makeTables(isSharded, init);
    auto module = tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    sources.piece = piece;
    std::vector<float> values(tables.arenas[kDemoTrainable].bytes / 4, 0.25F);
    HostArena arena({reinterpret_cast<uint8_t *>(values.data()),
                     values.size() * sizeof(float)});
    const Status status = fillTrainable(*module, sources, arena);
    EXPECT_TRUE(status.isOk()) << status.message();
    return values;
  }

  /// Expects that the shards equal the tensors, and that bytes after the last
  /// tensor are unchanged.
  void expectPieces(qlora_init init, const ParameterSources &sources) const {
    std::vector<float> whole = fill(false, init, sources, 0);
    whole.resize(kRanks * kPiece / sizeof(float), 0.25F);
    std::vector<float> all;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> piece = fill(true, init, sources, rank);
      all.insert(all.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(all, whole);
  }

  /// Returns `count` f32 values from `start` on, as the bytes of an adapter's
  /// tensor.
  static std::vector<uint8_t> numbers(int64_t count, float start) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float &value : values)
      value = start++;
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  void writeTensors(const std::string &prefix, const char *file) const {
    const std::vector<uint8_t> first = numbers(15, 1),
                               second = numbers(25, 100);
    const Status status = writeSafetensors(
        folder.path(file),
        {{prefix + "m.first", SafetensorsDtype::kF32, {3, 5}, first},
         {prefix + "m.second", SafetensorsDtype::kF32, {5, 5}, second}},
        {});
    ASSERT_TRUE(status.isOk()) << status.message();
  }

  const TemporaryFolder folder;
};

TEST_F(TrainedPieces, AreDrawnAsTheWhole) {
  ParameterSources sources;
  sources.seed = 7;
  for (qlora_init init :
       {QLORA_INIT_KAIMING, QLORA_INIT_GAUSSIAN, QLORA_INIT_ZERO})
    expectPieces(init, sources);
}

TEST_F(TrainedPieces, AreReadFromTheModel) {
  writeTensors("", "model.safetensors");
  auto model = ModelFiles::open(folder.path());
  ASSERT_TRUE(model.isOk()) << model.status().message();
  ParameterSources sources;
  sources.model = &*model;
  expectPieces(QLORA_INIT_FILE, sources);
}

TEST_F(TrainedPieces, StartFromAnAdapter) {
  writeTensors(std::string(kPeftPrefix), "adapter");
  auto adapter = SafetensorsFile::open(folder.path("adapter"));
  ASSERT_TRUE(adapter.isOk()) << adapter.status().message();
  ParameterSources sources;
  sources.adapter = &*adapter;
  expectPieces(QLORA_INIT_KAIMING, sources);
}

} // namespace
} // namespace qlora
