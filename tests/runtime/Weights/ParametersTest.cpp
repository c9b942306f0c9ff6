// SPDX-License-Identifier: MIT

// Filling arenas: each source of a weight, shards of ranks, and errors.

#include "runtime/Weights/Parameters.h"

#include "runtime/Device/FrozenArena.h"
#include "runtime/Kernels/Math/Stored.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/OneParameter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qlora {
namespace {

bool equals(const std::string &file, const std::string &tensor,
            const uint8_t *bytes) {
  auto opened = SafetensorsFile::open(file);
  const SafetensorsTensor *found = opened->get(tensor).value();
  std::vector<uint8_t> expected(found->byteCount());
  EXPECT_TRUE(opened->read(*found, 0, expected).isOk());
  return std::memcmp(expected.data(), bytes, expected.size()) == 0;
}

TEST(Parameters, CopiesAndConverts) {
  const std::string model = kGoldens + "llama-nf4/model";
  OneParameter same(kWeight, {64, 176}, QLORA_QUANTIZATION_NONE,
                    QLORA_DTYPE_BF16);
  Status status = same.fill(model);
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(
      equals(model + "/model.safetensors", kWeight, same.bytes().data()));
  OneParameter wide(kWeight, {64, 176}, QLORA_QUANTIZATION_NONE,
                    QLORA_DTYPE_F32);
  ASSERT_TRUE(wide.fill(model).isOk());
  for (size_t i = 0; i < 64 * 176; ++i) {
    uint16_t narrow = 0;
    std::memcpy(&narrow, same.bytes().data() + 2 * i, sizeof(narrow));
    EXPECT_EQ(wide.words[i], uint32_t{narrow} << 16);
  }
}

TEST(Parameters, QuantizesAndTakesStoredBytesAlike) {
  OneParameter quantized(kWeight, {64, 176}, QLORA_QUANTIZATION_ON_LOAD,
                         QLORA_DTYPE_NF4);
  Status status = quantized.fill(kGoldens + "llama-nf4/model");
  ASSERT_TRUE(status.isOk()) << status.message();
  OneParameter stored(kWeight, {64, 176}, QLORA_QUANTIZATION_STORED,
                      QLORA_DTYPE_NF4);
  status = stored.fill(kGoldens + "prequantized-bnb/model");
  ASSERT_TRUE(status.isOk()) << status.message();
  // All bytes are equal except the nested scales, whose offset may differ by 2
  // ulp.
  const auto layout = StoredLayout::of(QLORA_DTYPE_NF4, 64 * 176, 64, true);
  EXPECT_EQ(std::memcmp(quantized.bytes().data(), stored.bytes().data(),
                        static_cast<size_t>(layout.nestedAbsmax)),
            0);
  EXPECT_EQ(
      std::memcmp(quantized.bytes().data() + layout.nestedMap,
                  stored.bytes().data() + layout.nestedMap,
                  static_cast<size_t>(layout.correction - layout.nestedMap)),
      0);
  EXPECT_TRUE(equals(kGoldens + "llama-nf4/nf4.safetensors",
                     std::string(kWeight) + ".absmax",
                     stored.bytes().data() + layout.scales));
}

TEST(Parameters, DecodesResidentWeightsAsTheReference) {
  OneParameter stored(kWeight, {64, 176}, QLORA_QUANTIZATION_STORED,
                      QLORA_DTYPE_F32);
  Status status = stored.fill(kGoldens + "prequantized-bnb/model");
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_TRUE(equals(kGoldens + "llama-nf4/nf4.safetensors",
                     std::string(kWeight) + ".dequantized",
                     stored.bytes().data()));
  OneParameter single("model.layers.0.mlp.down_proj.weight", {64, 176},
                      QLORA_QUANTIZATION_ON_LOAD, QLORA_DTYPE_F32, false);
  ASSERT_TRUE(single.fill(kGoldens + "qwen2-nf4/model").isOk());
  EXPECT_TRUE(equals(kGoldens + "qwen2-nf4/nf4.safetensors",
                     std::string(kWeight) + ".dequantized",
                     single.bytes().data()));
}

TEST(Parameters, RefusesWhatDoesNotFit) {
  const std::string model = kGoldens + "llama-nf4/model";
  const std::string stored = kGoldens + "prequantized-bnb/model";
  OneParameter shape(kWeight, {176, 64}, QLORA_QUANTIZATION_NONE,
                     QLORA_DTYPE_F32);
  EXPECT_HAS(shape.fill(model).message(),
             "has shape [64, 176], but train.so was compiled for [176, 64]");
  OneParameter dtype(kWeight, {64, 176}, QLORA_QUANTIZATION_NONE,
                     QLORA_DTYPE_F32);
  dtype.tables.parameters[0].file_dtype = QLORA_DTYPE_F16;
  EXPECT_HAS(dtype.fill(model).message(), "is BF16, but train.so was");
  OneParameter name("nope", {64, 176}, QLORA_QUANTIZATION_NONE,
                    QLORA_DTYPE_F32);
  EXPECT_HAS(name.fill(model).message(), "no tensor 'nope'");
  OneParameter packed(kWeight, {5632, 1}, QLORA_QUANTIZATION_NONE,
                      QLORA_DTYPE_F32);
  EXPECT_HAS(packed.fill(stored).message(), "must be F32, BF16 or F16");
  OneParameter nesting(kWeight, {64, 176}, QLORA_QUANTIZATION_STORED,
                       QLORA_DTYPE_NF4, false);
  EXPECT_HAS(
      nesting.fill(stored).message(),
      "with double quantization, but train.so was compiled for NF4 in "
      "blocks of 64 without");
  OneParameter plain(kWeight, {64, 176}, QLORA_QUANTIZATION_STORED,
                     QLORA_DTYPE_NF4);
  EXPECT_HAS(plain.fill(model).message(), "no quantized tensors for");
}

/// Fills a parameter from a stored weight with the quant_state `state`.
Status fillWithState(const std::string &state, SafetensorsDtype storage) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> packed(32);
  const std::vector<float> absmax = {2.0f};
  const std::vector<float> map(16, 0.5f);
  auto bytesOf = [](const std::vector<float> &values) {
    return std::span(reinterpret_cast<const uint8_t *>(values.data()),
                     values.size() * sizeof(float));
  };
  const std::span text(reinterpret_cast<const uint8_t *>(state.data()),
                       state.size());
  const int64_t units = 32 * 8 / safetensorsDtypeBits(storage);
  QLORA_RETURN_IF_ERROR(writeSafetensors(
      folder.path("model.safetensors"),
      {{"w", storage, {units, 1}, packed},
       {"w.absmax", SafetensorsDtype::kF32, {1}, bytesOf(absmax)},
       {"w.quant_map", SafetensorsDtype::kF32, {16}, bytesOf(map)},
       {"w.quant_state.bitsandbytes__nf4",
        SafetensorsDtype::kU8,
        {static_cast<int64_t>(state.size())},
        text}},
      {}));
  OneParameter parameter("w", {1, 64}, QLORA_QUANTIZATION_STORED,
                         QLORA_DTYPE_F32, false);
  QLORA_RETURN_IF_ERROR(parameter.fill(folder.path()));
  float value = 0;
  std::memcpy(&value, parameter.bytes().data(), sizeof(value));
  EXPECT_EQ(value, 1.0f); // 0.5 (quant_map) * 2 (absmax)
  return Status::ok();
}

TEST(Parameters, ReadsStoredStatesAndRefusesBadOnes) {
  const std::string sound =
      R"({"quant_type":"nf4","blocksize":64,"dtype":"float32",)"
      R"("shape":[1,64]})";
  EXPECT_EQ(fillWithState(sound, SafetensorsDtype::kU8).message(), "");
  EXPECT_EQ(fillWithState(sound, SafetensorsDtype::kBF16).message(), "");
  EXPECT_EQ(fillWithState(sound, SafetensorsDtype::kF32).message(), "");
  auto refusal = [](const std::string &state) {
    return fillWithState(state, SafetensorsDtype::kU8).message();
  };
  EXPECT_HAS(refusal("{"), "not a JSON object");
  EXPECT_HAS(refusal(R"({"quant_type":"fp4"})"), "instead of nf4");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4"})"), "no blocksize");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4","blocksize":64})"), "no shape");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4","blocksize":64,"shape":[-1]})"),
             "shape [-1]");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4","blocksize":64,"shape":[64]})"),
             "it has shape [64], but train.so was compiled for [1, 64]");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4","blocksize":128,"shape":[1,64]})"),
             "blocks of 128");
  EXPECT_HAS(refusal(R"({"quant_type":"nf4","blocksize":64,"shape":[1,64],)"
                     R"("nested_blocksize":128})"),
             "nested_blocksize 128");
}

TEST(Parameters, RanksOfAHostFillOneArena) {
  DemoTables tables;
  qlora_parameter &first = tables.parameters[0];
  first.name = "model.norm.weight";
  first.rank = 1;
  first.shape[0] = 64;
  first.dtype = QLORA_DTYPE_BF16;
  first.bytes = 128;
  qlora_parameter second = first;
  second.name = "model.layers.0.input_layernorm.weight";
  second.offset = 128;
  tables.parameters[1] = second;
  tables.arenas[kDemoFrozen].bytes = 256;
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  const std::string folder = kGoldens + "llama-nf4/model";
  auto model = ModelFiles::open(folder);
  const int descriptor = HostMemory::createShared("test", 256).value();
  for (unsigned rank : {0u, 1u}) {
    auto arena = FrozenArena::fromDescriptor(descriptor, 256);
    ASSERT_TRUE(arena.isOk()) << arena.status().message();
    HostArena sink(arena->bytes());
    ASSERT_TRUE(
        fillFrozen(*module, {&*model, nullptr, 0}, {rank, 2},
                   QLORA_ARENA_FROZEN, sink)
            .isOk());
    ASSERT_TRUE(arena->protect().isOk());
    const std::string file = folder + "/model.safetensors";
    EXPECT_TRUE(equals(file, first.name, arena->bytes().data()));
    EXPECT_EQ(equals(file, second.name, arena->bytes().data() + 128),
              rank == 1);
  }
  EXPECT_FALSE(FrozenArena::fromDescriptor(descriptor, 512).isOk());
  close(descriptor);
}

/// An arena outside of host memory: writes take effect when they are committed.
class PartedArena final : public ArenaSink {
public:
  explicit PartedArena(uint64_t size) : whole(size, 0xa5) {}
  uint64_t bytes() const override { return whole.size(); }
  std::span<uint8_t> map(uint64_t first, uint64_t count) override {
    offset = first;
    part.assign(count, 0x5a);
    most = std::max(most, count);
    return part;
  }
  Status commit() override {
    std::copy(part.begin(), part.end(),
              whole.begin() + static_cast<ptrdiff_t>(offset));
    return Status::ok();
  }

  std::vector<uint8_t> whole, part;
  uint64_t offset = 0;
  uint64_t most = 0;
};

TEST(Parameters, NeedAWindowOnTheHost) {
  constexpr int64_t kRows = 2100;
  constexpr int64_t kColumns = 2048;
  const TemporaryFolder folder;
  std::vector<uint16_t> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<uint16_t>(0x3c00 + i * 37 % 0x800);
  ASSERT_TRUE(
      writeSafetensors(folder.path("model.safetensors"),
                       {{"w",
                         SafetensorsDtype::kBF16,
                         {kRows, kColumns},
                         {reinterpret_cast<const uint8_t *>(values.data()),
                          values.size() * sizeof(uint16_t)}}},
                       {})
          .isOk());
  for (const auto quantization :
       {QLORA_QUANTIZATION_NONE, QLORA_QUANTIZATION_ON_LOAD})
    for (const auto dtype : {QLORA_DTYPE_F32, QLORA_DTYPE_NF4}) {
      if (quantization == QLORA_QUANTIZATION_NONE && dtype == QLORA_DTYPE_NF4)
        continue;
      OneParameter inPlace("w", {kRows, kColumns}, quantization, dtype);
      ASSERT_TRUE(inPlace.fill(folder.path()).isOk());
      auto module = inPlace.tables.load();
      auto model = ModelFiles::open(folder.path());
      PartedArena parted(inPlace.bytes().size());
      ASSERT_TRUE(
          fillFrozen(*module, {&*model, nullptr, 0}, {}, QLORA_ARENA_FROZEN,
                     parted)
              .isOk());
      EXPECT_TRUE(std::equal(parted.whole.begin(), parted.whole.end(),
                             inPlace.bytes().begin()));
      EXPECT_LE(parted.most, uint64_t{16} << 20);
    }
}

std::vector<float> initial(DemoTables &tables, uint64_t seed) {
  auto module = tables.load();
  EXPECT_TRUE(module.isOk()) << module.status().message();
  std::vector<float> values(16, NAN);
  HostArena arena({reinterpret_cast<uint8_t *>(values.data()), 64});
  const Status status = fillTrainable(*module, {nullptr, nullptr, seed}, arena);
  EXPECT_TRUE(status.isOk()) << status.message();
  return values;
}

TEST(Parameters, InitsByKindSeedAndName) {
  DemoTables tables;
  const std::vector<float> kaiming = initial(tables, 7);
  for (float value : kaiming)
    EXPECT_LE(std::abs(value), 0.5f); // 1/sqrt(4)
  EXPECT_EQ(initial(tables, 7), kaiming);
  EXPECT_NE(initial(tables, 8), kaiming);
  tables.parameters[1].init = QLORA_INIT_GAUSSIAN;
  const std::vector<float> gaussian = initial(tables, 7);
  EXPECT_NE(gaussian, kaiming);
  // Both inits draw the same numbers. GAUSSIAN scales them by 1 / rows, NORMAL
  // by 1.
  tables.parameters[1].init = QLORA_INIT_NORMAL;
  const std::vector<float> normal = initial(tables, 7);
  const auto rows = static_cast<float>(tables.parameters[1].shape[0]);
  for (size_t i = 0; i < normal.size(); ++i)
    EXPECT_FLOAT_EQ(normal[i], gaussian[i] * rows);
  tables.parameters[1].init = QLORA_INIT_ZERO;
  EXPECT_EQ(initial(tables, 7), std::vector<float>(16, 0.0f));
}

TEST(Parameters, StatesStartAtZeroOrByName) {
  DemoTables tables;
  tables.arenas.push_back({QLORA_ARENA_STATE, 64, 128, 0, 0});
  for (const auto &[name, init, offset] :
       {std::tuple("w.exp_avg", QLORA_INIT_ZERO, 0u),
        std::tuple("w.basis", QLORA_INIT_NORMAL, 64u)}) {
    qlora_parameter state = tables.parameters[1];
    state.name = name;
    state.role = QLORA_ROLE_STATE;
    state.init = init;
    state.arena = static_cast<uint32_t>(tables.arenas.size() - 1);
    state.offset = offset;
    tables.parameters.push_back(state);
  }
  const auto filled = [&](uint64_t seed) {
    auto module = tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    auto device = createDevice("cpu", DeviceOptions());
    EXPECT_TRUE(device.isOk()) << device.status().message();
    EXPECT_TRUE((*device)->load(*module, nullptr).isOk());
    EXPECT_TRUE(fillStates(*module, seed, **device).isOk());
    const auto bytes =
        (*device)->hostArena(*module->arena(QLORA_ARENA_STATE));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const std::vector<float> found = filled(7);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(found[i], 0.0F);
    EXPECT_NE(found[16 + i], 0.0F);
  }
  EXPECT_EQ(filled(7), found);
  EXPECT_NE(filled(8), found);
}

TEST(Parameters, RowsOfWordsAreTheWeightsOwn) {
  const TemporaryFolder folder;
  // A table [6, 4] with the bf16 values 1, 2, 3, ...
  std::vector<uint16_t> table;
  for (int i = 1; i <= 24; ++i) {
    const auto value = static_cast<float>(i);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    table.push_back(static_cast<uint16_t>(bits >> 16));
  }
  ASSERT_TRUE(writeSafetensors(
                  folder.path("model.safetensors"),
                  {{"m.embed.weight",
                    SafetensorsDtype::kBF16,
                    {6, 4},
                    {reinterpret_cast<const uint8_t *>(table.data()), 48}}},
                  {})
                  .isOk());
  DemoTables tables;
  qlora_parameter &frozen = tables.parameters[0];
  frozen.name = "m.embed.weight";
  frozen.rank = 2;
  frozen.shape[0] = 6;
  frozen.shape[1] = 4;
  frozen.bytes = 96;
  frozen.file_dtype = QLORA_DTYPE_BF16;
  tables.arenas[kDemoFrozen].bytes = 96;
  tables.parameters[1].name =
      "base_model.model.m.embed.token_adapter.trainable_tokens_delta";
  tables.parameters[1].init = QLORA_INIT_ROWS;
  tables.operands.clear();
  tables.commands.clear();
  tables.entries.clear();
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  auto model = ModelFiles::open(folder.path());
  ASSERT_TRUE(model.isOk()) << model.status().message();
  std::vector<float> values(16, NAN);
  HostArena arena({reinterpret_cast<uint8_t *>(values.data()), 64});
  ParameterSources sources = {&*model};
  const auto fill = [&](std::vector<int64_t> tokens) {
    sources.tokens = std::move(tokens);
    return fillTrainable(*module, sources, arena).message();
  };
  EXPECT_EQ(fill({5, 0, 3, 1}), "");
  EXPECT_EQ(values, (std::vector<float>{21, 22, 23, 24, 1, 2, 3, 4, 13, 14, 15,
                                        16, 5, 6, 7, 8}));
  EXPECT_HAS(fill({5, 0, 6, 1}), "'m.embed.weight' has no row 6");
  EXPECT_HAS(fill({5}), "does not fit the 1 trainable_token_indices of weight "
                        "'m.embed.weight'. Fix: compile the program again");
}

/// Fills the demo's adapter (renamed to `ours` if given) from a file with one
/// tensor called `name`.
Status fillFromAdapter(const std::string &name, std::vector<int64_t> shape,
                       std::vector<float> &out, const std::string &ours = "") {
  const TemporaryFolder folder;
  std::vector<float> values(16);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i);
  QLORA_RETURN_IF_ERROR(writeSafetensors(
      folder.path("a"),
      {{name,
        SafetensorsDtype::kF32,
        std::move(shape),
        {reinterpret_cast<const uint8_t *>(values.data()), 64}}},
      {}));
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile adapter,
                         SafetensorsFile::open(folder.path("a")));
  DemoTables tables;
  for (qlora_parameter &parameter : tables.parameters)
    if (parameter.role == QLORA_ROLE_ADAPTER && !ours.empty())
      parameter.name = ours.c_str();
  QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
  out.assign(16, NAN);
  HostArena arena({reinterpret_cast<uint8_t *>(out.data()), 64});
  QLORA_RETURN_IF_ERROR(fillTrainable(module, {nullptr, &adapter, 0}, arena));
  EXPECT_EQ(out, values);
  return Status::ok();
}

TEST(Parameters, StartsFromAnAdapter) {
  std::vector<float> out;
  const std::string name = "base_model.model.demo.lora_A.weight";
  EXPECT_EQ(fillFromAdapter(name, {4, 4}, out).message(), "");
  EXPECT_HAS(fillFromAdapter(name, {2, 8}, out).message(), "has shape [2, 8]");
  EXPECT_HAS(fillFromAdapter("other", {4, 4}, out).message(),
             "'other' is not a trainable parameter");
}

TEST(Parameters, ReadsAdaptersOfATextModelThatWasAlone) {
  std::vector<float> out;
  const std::string inside = "base_model.model.model.language_model.";
  const std::string ours = inside + "layers.0.q_proj.lora_A.weight";
  for (const char *start : {"base_model.model.model.language_model.",
                            "base_model.model.model.",
                            "base_model.model.language_model.model."})
    EXPECT_EQ(fillFromAdapter(std::string(start) +
                                  "layers.0.q_proj.lora_A.weight",
                              {4, 4}, out, ours)
                  .message(),
              "")
        << start;
  EXPECT_HAS(fillFromAdapter("base_model.model.layers.0.q_proj.lora_A.weight",
                             {4, 4}, out, ours)
                 .message(),
             "is not a trainable parameter");
  EXPECT_HAS(fillFromAdapter(ours, {4, 4}, out).message(),
             "is not a trainable parameter");
}

} // namespace
} // namespace qlora
