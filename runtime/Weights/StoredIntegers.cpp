// SPDX-License-Identifier: MIT

// Reads GPTQ and AWQ weights: qweight, qzeros and scales. All are [in, out]
// matrices with groups along `in`. Codes are packed into 32-bit integers, the
// first code in the lowest bits:
//
//   GPTQ  qweight [in / codes per int, out], packed along `in`; qzeros
//         [groups, out / codes per int], packed along `out`, stored minus 1
//         except with checkpoint_format gptq_v2; g_idx [in], the group of
//         each input, which must be index / group size
//   AWQ   qweight [in, out / 8], qzeros [groups, out / 8], packed along `out`,
//         in the order 0, 2, 4, 6, 1, 3, 5, 7
// A weight is (code - zero point) * scale. Scales have at most 11 significant
// bits, so the product is exact in f32. Kernels that compute in f16 round it.

#include "runtime/Weights/StoredReaders.h"

#include <algorithm>
#include <cstring>

#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

namespace {
/// Codes [rows, columns], packed in 32-bit integers.
struct CodeGrid {
  const uint8_t *words;
  int64_t columns;
  int bits;
  bool alongRows; ///< an integer packs codes of a column, not of a row
  bool isInterleaved;    ///< codes are in AWQ's order

  uint8_t at(int64_t row, int64_t column) const {
    const int shift = bits == 4 ? 3 : 2; // log2 of codes per integer
    const int64_t inWord = (int64_t(1) << shift) - 1;
    const int64_t index = alongRows
                              ? (row >> shift) * columns + column
                              : row * (columns >> shift) + (column >> shift);
    int64_t place = (alongRows ? row : column) & inWord;
    if (isInterleaved)
      place = place / 2 + place % 2 * 4;
    uint32_t word;
    std::memcpy(&word, words + 4 * index, sizeof(word));
    return static_cast<uint8_t>(word >> (place * bits) & ((1u << bits) - 1));
  }
};

/// Sizes of a weight, computed from the shapes of its tensors.
struct IntegerWeight {
  int64_t in, out, groups;
  int bits;
  bool isAwq;

  CodeGrid grid(const uint8_t *words, bool alongRows) const {
    return {words, out, bits, alongRows, isAwq};
  }
};
} // namespace

/// Transposes codes [in, out] to [out, in]. Transposes kRun outputs at a time:
/// their codes are adjacent in the file, and their rows stay in the cache.
static void placeCodes(const IntegerWeight &w, const uint8_t *words,
                       uint8_t *out) {
  constexpr int64_t kRun = 64;
  const CodeGrid grid = w.grid(words, /*alongRows=*/!w.isAwq);
  const int64_t rowBytes = w.in * w.bits / 8;
  parallelRanges((w.out + kRun - 1) / kRun, 1, [&](int64_t from, int64_t to) {
    for (int64_t run = from; run < to; ++run)
      for (int64_t byte = 0; byte < rowBytes; ++byte)
        for (int64_t o = run * kRun; o < std::min(w.out, (run + 1) * kRun); ++o)
          out[o * rowBytes + byte] =
              w.bits == 8 ? grid.at(byte, o)
                          : static_cast<uint8_t>(grid.at(2 * byte, o) << 4 |
                                                 grid.at(2 * byte + 1, o));
  });
}

/// Adds 1 to each code. Like GPTQModel, adds to complete integers: storing zero
/// point 0 as 0 - 1 borrowed from the next code, and the carry restores it.
static void addOnes(std::span<uint8_t> words, int bits) {
  const uint32_t ones = bits == 4 ? 0x11111111u : 0x01010101u;
  for (size_t i = 0; i + 4 <= words.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, &words[i], sizeof(word));
    word += ones;
    std::memcpy(&words[i], &word, sizeof(word));
  }
}

/// Transposes values [groups, out] to [out, groups], the order of the blocks.
template <typename Value, typename At>
static void placeBlocks(const IntegerWeight &w, At at, Value *out) {
  for (int64_t o = 0; o < w.out; ++o)
    for (int64_t group = 0; group < w.groups; ++group)
      *out++ = at(group, o);
}

/// Refuses models with desc_act, whose inputs are grouped by importance.
static Status checkOrder(const ModelFiles &model, const std::string &name,
                         const IntegerWeight &w) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(name));
  const SafetensorsTensor &tensor = *entry.tensor;
  if (tensor.dtype != SafetensorsDtype::kI32 ||
      tensor.shape != std::vector<int64_t>{w.in})
    return damaged("'{}': tensor '{}' is {} {}; expected I32 [{}]",
                   entry.file->path(), name, safetensorsDtypeName(tensor.dtype),
                   formatShape(tensor.shape), w.in);
  std::vector<int32_t> group(static_cast<size_t>(w.in));
  QLORA_RETURN_IF_ERROR(entry.file->read(
      tensor, 0,
      {reinterpret_cast<uint8_t *>(group.data()), 4 * group.size()}));
  for (int64_t i = 0; i < w.in; ++i)
    if (group[static_cast<size_t>(i)] != i / (w.in / w.groups))
      return Status::unavailable(
          "'{}': tensor '{}' has input {} in group {} instead of {}: desc_act "
          "is not supported; use a model that was quantized with desc_act "
          "false or static_groups true",
          entry.file->path(), name, i, group[static_cast<size_t>(i)],
          i / (w.in / w.groups));
  return Status::ok();
}

static StatusOr<IntegerWeight> measure(const ModelFiles &model,
                                       const std::string &module,
                                       const StoredFormat &ofFourBits) {
  std::vector<int64_t> shapes[3];
  std::string path;
  const char *const names[] = {".qweight", ".scales", ".qzeros"};
  for (size_t i = 0; i < 3; ++i) {
    QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry,
                           model.get(module + names[i]));
    shapes[i] = entry.tensor->shape;
    path = entry.file->path();
  }
  const auto &[codes, scales, zeros] = shapes;
  const auto refuse = [&] {
    return damaged("'{}': '{}' has qweight {}, scales {}, qzeros {}, which are "
                   "not the shapes of one GPTQ or AWQ matrix",
                   path, module, formatShape(codes), formatShape(scales),
                   formatShape(zeros));
  };
  for (const std::vector<int64_t> &shape : shapes)
    if (shape.size() != 2 || shape[0] <= 0 || shape[1] <= 0 ||
        shape[0] > 1 << 28 || shape[1] > 1 << 28)
      return refuse();
  IntegerWeight w{codes[0], scales[1], scales[0], 0, false};
  w.isAwq = codes[1] != w.out;
  w.bits = static_cast<int>(32 * zeros[1] / w.out);
  const bool isSupported =
      w.bits == ofFourBits.bits || (w.bits == 8 && !w.isAwq);
  if (zeros[0] != w.groups || w.bits * w.out != 32 * zeros[1] ||
      (w.isAwq && codes[1] != zeros[1]))
    return refuse();
  if (!isSupported)
    return damaged(
        "'{}': '{}' has {} bits; supported are GPTQ with 4 or 8 and AWQ with 4",
        path, module, w.bits);
  if (!w.isAwq)
    w.in *= 32 / w.bits;
  if (w.in % w.groups != 0 || w.in % 2 != 0)
    return refuse();
  return w;
}

Status describeIntegers(const ModelFiles &model, const std::string &weight,
                        const StoredFormat &ofFourBits,
                        StoredDescription &result) {
  const std::string module = moduleOfWeight(weight);
  QLORA_ASSIGN_OR_RETURN(const IntegerWeight w,
                         measure(model, module, ofFourBits));
  const StoredFormat &format =
      w.bits == 8 ? *storedFormat(QLORA_DTYPE_INT8) : ofFourBits;
  const int64_t block = w.in / w.groups;
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry scales,
                         model.get(module + ".scales"));
  QLORA_ASSIGN_OR_RETURN(const LoadScale load, scaleLoader(scales));
  if (block != w.in && !format.takesPower(block))
    return damaged("'{}': tensor '{}' has groups of {}; supported are powers "
                   "of two from {} to {}, or one group for all inputs",
                   scales.file->path(), module + ".scales", block,
                   format.leastBlock, format.mostBlock);
  result.shape = {w.out, w.in};
  result.layout = StoredLayout::of(format.dtype, w.out * w.in, block, false);
  const StoredLayout layout = result.layout;
  const bool areLess = !w.isAwq && model.zeroPointsAreLess();
  constexpr auto kI32 = SafetensorsDtype::kI32;
  const int64_t ofWord = 32 / w.bits;
  result.parts = {
      {module + ".qweight", kI32,
       w.isAwq ? std::vector{w.in, w.out / ofWord}
               : std::vector{w.in / ofWord, w.out},
       -1,
       [=](std::span<uint8_t> bytes, uint8_t *out) {
         placeCodes(w, bytes.data(), out + layout.packed);
         return Status::ok();
       }},
      {module + ".scales", scales.tensor->dtype, {w.groups, w.out}, -1,
       [=](std::span<uint8_t> bytes, uint8_t *out) {
         placeBlocks(
             w,
             [&](int64_t group, int64_t o) {
               return load(bytes.data(), group * w.out + o);
             },
             reinterpret_cast<float *>(out + layout.scales));
         return Status::ok();
       }},
      {module + ".qzeros", kI32, {w.groups, w.out / ofWord}, -1,
       [=](std::span<uint8_t> bytes, uint8_t *out) {
         if (areLess)
           addOnes(bytes, w.bits);
         const CodeGrid grid = w.grid(bytes.data(), /*alongRows=*/false);
         placeBlocks(
             w, [&](int64_t group, int64_t o) { return grid.at(group, o); },
             out + layout.zeros);
         return Status::ok();
       }}};
  const std::string order = module + ".g_idx";
  if (w.isAwq || !model.find(order).tensor)
    return Status::ok();
  result.parts.push_back({order, kI32, {w.in}, -1, {}});
  return checkOrder(model, order, w);
}

} // namespace qlora
