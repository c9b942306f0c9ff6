// SPDX-License-Identifier: MIT

// Writes tensors of stored formats. Their shape is [48, 1536], as in
// addPlain(), except for tensors from tests/Inputs.

#ifndef QLORA_TESTS_RUNTIME_WEIGHTS_STOREDWRITERS_H
#define QLORA_TESTS_RUNTIME_WEIGHTS_STOREDWRITERS_H

#include <cstring>
#include <string>
#include <vector>

#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "tests/runtime/Weights/FilledPieces.h"

namespace qlora {

/// Adds tensors that bitsandbytes double-quantized. Nested blocks have
/// different factors, and the tensor has its own code book.
inline void addBitsandbytes(ModelWriter &model) {
  constexpr int64_t kElements = 48 * 1536;
  const auto l = StoredLayout::of(kNF4, kElements, 64, true);
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i)
    values[static_cast<size_t>(i)] =
        static_cast<float>(i * 40503 % 65521 - 32760) *
        static_cast<float>(1 + i / (64 * kNestedRun));
  Bytes bytes(static_cast<size_t>(l.bytes));
  quantizeStored(l, values.data(), bytes.data());
  const auto part = [&](int64_t offset, int64_t count) {
    return Bytes(bytes.begin() + offset, bytes.begin() + offset + count);
  };
  reinterpret_cast<float *>(bytes.data() + l.codeBook)[3] = -0.4f;
  float offset;
  std::memcpy(&offset, bytes.data() + l.correction, sizeof(offset));
  const std::string state =
      fmt::format(R"({{"quant_type":"nf4","blocksize":64,"shape":[48,1536],)"
                  R"("nested_blocksize":256,"nested_offset":{}}})",
                  offset);
  model.add("bnb.quant_state.bitsandbytes__nf4", SafetensorsDtype::kU8,
            {static_cast<int64_t>(state.size())},
            Bytes(state.begin(), state.end()));
  const auto kU8 = SafetensorsDtype::kU8, kFloat = SafetensorsDtype::kF32;
  model.add("bnb", kU8, {l.packedBytes, 1}, part(0, l.packedBytes));
  model.add("bnb.absmax", kU8, {l.blocks}, part(l.scales, l.blocks));
  model.add("bnb.quant_map", kFloat, {16}, part(l.codeBook, 64));
  model.add("bnb.nested_absmax", kFloat, {l.nestedBlocks},
            part(l.nestedAbsmax, 4 * l.nestedBlocks));
  model.add("bnb.nested_quant_map", kFloat, {256}, part(l.nestedMap, 1024));
}

/// Adds an FP8 tensor with one scale per tile of 128x128.
inline void addTiles(ModelWriter &model) {
  Bytes codes(48 * 1536);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(i * 7 % 0x70);
  std::vector<float> scales;
  for (int i = 0; i < 12; ++i)
    scales.push_back(0.25f + 0.37f * static_cast<float>(i));
  const auto *bytes = reinterpret_cast<const uint8_t *>(scales.data());
  model.add("tiles.weight", SafetensorsDtype::kF8E4M3, {48, 1536}, codes);
  model.add("tiles.weight_scale_inv", SafetensorsDtype::kF32, {1, 12},
            Bytes(bytes, bytes + 4 * scales.size()));
}

/// Adds two tensors, and their concatenation along dimension 0.
inline void addStack(ModelWriter &model) {
  Bytes all(2 * 48 * 1536);
  for (size_t i = 0; i < all.size(); i += 2) {
    all[i] = static_cast<uint8_t>(i * 37 >> 3);
    all[i + 1] = static_cast<uint8_t>(0x3c | (i % 5 == 0) << 7);
  }
  const auto half = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
  const auto kType = SafetensorsDtype::kBF16;
  model.add("stack.0", kType, {24, 1536}, Bytes(all.begin(), half));
  model.add("stack.1", kType, {24, 1536}, Bytes(half, all.end()));
  model.add("plain", kType, {48, 1536}, std::move(all));
}

/// Adds random values for the parameters that have no stored form. Parameters
/// that are transposed before quantization are stored transposed.
inline void addPlain(ModelWriter &model,
                     const std::vector<PieceParameter> &rows) {
  for (const PieceParameter &row : rows) {
    std::vector<int64_t> shape = row.shape;
    if (row.quantization == QLORA_QUANTIZATION_TURNED)
      std::ranges::reverse(shape);
    if (row.quantization != QLORA_QUANTIZATION_STORED && row.parts == 0)
      model.addNormal(row.name, shape, row.file);
  }
}

inline void addInputs(ModelWriter &model) {
  auto stored =
      SafetensorsFile::open(QLORA_TEST_INPUTS "/stored/model.safetensors");
  ASSERT_TRUE(stored.isOk()) << stored.status().message();
  for (const SafetensorsTensor &tensor : stored->tensors()) {
    Bytes bytes(tensor.byteCount());
    ASSERT_TRUE(stored->read(tensor, 0, bytes).isOk());
    model.add(tensor.name, tensor.dtype, tensor.shape, std::move(bytes));
  }
}

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_WEIGHTS_STOREDWRITERS_H
