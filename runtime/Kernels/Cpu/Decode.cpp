// SPDX-License-Identifier: MIT

// decode: for each block, computes a table of the values of its 16 codes, (code
// book value - zero point) * scale. Then each lane looks up one element. The
// operations, and so the bits, are those of StoredTensor::element. If the CPU
// has the instructions of DecodeRun, the table is in the result's type;
// otherwise it is f32, and values are rounded afterwards.

#include "runtime/Kernels/Cpu/Decode.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Rows.h"

namespace qlora {

namespace {

/// Number of elements that are decoded at a time.
constexpr int64_t kWindow = 1024;

using EightFloats = float __attribute__((vector_size(32)));
using EightInts = int32_t __attribute__((vector_size(32)));

/// The values of the 16 codes of a block.
struct CodeTable {
  float values[16];
};

/// Two neighbouring codes as i32, the first one in the low half.
using CodePair = uint64_t;

} // namespace

/// Unpacks each byte to a pair of codes, high nibble first.
QLORA_INLINE void unpack(const uint8_t *__restrict packed, int64_t bytes,
                         CodePair *__restrict codes) {
  for (int64_t i = 0; i < bytes; ++i)
    codes[i] = CodePair(packed[i] >> 4) | CodePair(packed[i] & 15) << 32;
}

QLORA_INLINE float lookUpOne(const CodeTable &table, const uint8_t *codes,
                             int64_t index) {
  int32_t code;
  std::memcpy(&code, codes + 4 * index, sizeof(code));
  return table.values[code];
}

/// out[i] := table[codes[i]]. Two registers hold the table; a shuffle of eight
/// lanes reads both (vpermt2ps with AVX-512).
QLORA_INLINE void lookUp(const CodeTable &table, const uint8_t *codes,
                         int64_t count, float *out) {
  EightFloats low, high;
  std::memcpy(&low, table.values, sizeof(low));
  std::memcpy(&high, table.values + 8, sizeof(high));
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    EightInts eight;
    std::memcpy(&eight, codes + 4 * i, sizeof(eight));
    const EightFloats value = __builtin_shuffle(low, high, eight);
    std::memcpy(out + i, &value, sizeof(value));
  }
  for (; i < count; ++i)
    out[i] = lookUpOne(table, codes, i);
}

/// Decodes 4-bit elements [first, first + count), at most kWindow.
QLORA_INLINE void decodeNibbles(const StoredTensor &tensor, int64_t first,
                               int64_t count, float *out) {
  // Unpack whole bytes: if `first` is odd, its left neighbour is unpacked too.
  CodePair window[kWindow / 2 + 1];
  unpack(tensor.packed + first / 2, (first + count + 1) / 2 - first / 2,
         window);
  const auto *codes =
      reinterpret_cast<const uint8_t *>(window) + 4 * (first % 2);
  for (int64_t done = 0; done < count;) {
    const int64_t element = first + done;
    const int64_t index = element / tensor.block;
    const int64_t end = std::min(count, (index + 1) * tensor.block - first);
    const auto scale = ScaledFrom::of(tensor, index);
    CodeTable table;
    for (int code = 0; code < 16; ++code)
      table.values[code] = scale(tensor.codeBook[code]);
    lookUp(table, codes + 4 * done, end - done, out + done);
    done = end;
  }
}

/// Decodes 8-bit elements [first, first + count).
QLORA_INLINE void decodeBytes(const StoredTensor &tensor, int64_t first,
                              int64_t count, float *out) {
  for (int64_t element = first; element < first + count;) {
    const int64_t index = element / tensor.block;
    const int64_t end = std::min(first + count, (index + 1) * tensor.block);
    const auto scale = ScaledFrom::of(tensor, index);
    for (; element < end; ++element)
      *out++ = scale(tensor.codeBook[tensor.packed[element]]);
  }
}

QLORA_VECTOR static void decodeF32(const StoredTensor &tensor, int64_t first,
                                   int64_t count, float *out) {
  if (tensor.bits == 8)
    return decodeBytes(tensor, first, count, out);
  for (int64_t done = 0; done < count; done += kWindow)
    decodeNibbles(tensor, first + done, std::min(kWindow, count - done),
                 out + done);
}

const DecodeRun *DecodeRun::find() {
  const DecodeRun *const widest = findAvx512DecodeRun();
  return widest ? widest : findAvx2DecodeRun();
}

/// Decodes a run whose first code may be in a low nibble: that one separately.
template <typename Number, typename Narrow>
static void decodeFromAny(void (*decode)(const StoredRun &, Number *),
                          StoredRun run, Number *out, Narrow narrowed) {
  if (run.count > 0 && run.first % 2) {
    *out++ = narrowed(run.tensor.element(run.first++));
    --run.count;
  }
  decode(run, out);
}

void StoredWeight::decodeQuantized(const void *weight, int64_t first,
                                   int64_t count, qlora_dtype outType,
                                   void *out) const {
  const StoredRun all = runOf(weight, first, count);
  if (decodeRun && outType == QLORA_DTYPE_F32)
    return decodeFromAny(decodeRun->toF32, all, static_cast<float *>(out),
                         [](float value) { return value; });
  if (decodeRun && outType == QLORA_DTYPE_BF16)
    return decodeFromAny(decodeRun->toBF16, all, static_cast<uint16_t *>(out),
                         qlora_f32_to_bf16);
  if (outType == QLORA_DTYPE_F32)
    return decodeF32(all.tensor, first, count, static_cast<float *>(out));
  float window[kWindow];
  for (int64_t done = 0; done < count; done += kWindow) {
    const int64_t run = std::min(kWindow, count - done);
    decodeF32(all.tensor, first + done, run, window);
    narrow(window, outType, elementAt(out, outType, done), run);
  }
}

StoredWeight StoredWeight::of(const KernelRequest &request) {
  const int64_t columns = request.constant("columns");
  const qlora_dtype dtype = request.type("w");
  if (!storedFormat(dtype))
    return dense(dtype, columns);
  return of(StoredLayout::of(dtype, request.constant("rows") * columns,
                             request.constant("block"),
                             request.constant("double_quant") != 0),
            columns);
}

StoredWeight StoredWeight::of(const StoredLayout &layout, int64_t columns) {
  StoredWeight weight = {layout.dtype, columns, layout};
  const auto block = static_cast<uint64_t>(layout.block);
  if (std::has_single_bit(block))
    weight.scaleShift = std::countr_zero(block);
  if (layout.bits == 4 && layout.block % 2 == 0)
    weight.decodeRun = DecodeRun::find();
  return weight;
}

void StoredWeight::decodeSerial(const void *weight, int64_t first,
                                int64_t count, qlora_dtype outType,
                                void *out) const {
  if (isQuantized())
    return decodeQuantized(weight, first, count, outType, out);
  convertRun(dtype, elementAt(weight, dtype, first), outType, out, count);
}

void StoredWeight::decode(const void *weight, int64_t first, int64_t count,
                          qlora_dtype outType, void *out) const {
  parallelRanges(count, 8192, [&](int64_t begin, int64_t end) {
    decodeSerial(weight, first + begin, end - begin, outType,
                 elementAt(out, outType, begin));
  });
}

void StoredWeight::decodePart(const void *weight, const Part &part,
                              qlora_dtype outType, void *out) const {
  if (part.columnCount == columns)
    return decodeSerial(weight, part.firstRow * columns,
                        part.rowCount * columns, outType, out);
  for (int64_t row = 0; row < part.rowCount; ++row) {
    const int64_t first = (part.firstRow + row) * columns + part.firstColumn;
    // Prefetch: ranges of rows are too short for the CPU's prefetcher.
    constexpr int64_t kRowsAhead = 16;
    if (row + kRowsAhead < part.rowCount)
      prefetch(weight, first + kRowsAhead * columns, part.columnCount);
    decodeSerial(weight, first, part.columnCount, outType,
                 elementAt(out, outType, row * part.columnCount));
  }
}

/// Has the bits of StoredTensor::absmax. Not vectorized: gathers and collecting
/// values in vectors are slower. Compiled for AVX, because a caller's vector
/// registers slow down instructions of SSE.
QLORA_VECTOR void absmaxOfBlocks(const StoredTensor &tensor, int64_t first,
                                 int64_t count, float *__restrict out) {
  const float correction = *tensor.correction;
  if (!tensor.doubleQuant) {
    const auto *scales = static_cast<const float *>(tensor.scales) + first;
    for (int64_t i = 0; i < count; ++i)
      out[i] = scales[i] * correction;
    return;
  }
  const auto *codes = static_cast<const uint8_t *>(tensor.scales) + first;
  // A cache line has the scales of many blocks, so the hardware does not
  // prefetch them.
  __builtin_prefetch(codes + 512);
  for (int64_t i = 0; i < count;) {
    const int64_t nested = (first + i) / kNestedRun;
    const int64_t end = std::min(count, (nested + 1) * kNestedRun - first);
    const float scale = tensor.nestedAbsmax[nested];
    for (; i < end; ++i) {
      out[i] = tensor.nestedMap[codes[i]] * scale + correction;
      asm volatile(""); // keeps the loop scalar
    }
  }
}

StoredWeight StoredWeight::dense(qlora_dtype dtype, int64_t columns) {
  return {dtype, columns, {}};
}

QLORA_VECTOR static void roundToBF16(float *values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    values[i] = qlora_round_bf16(values[i]);
}

void StoredWeight::decodeWide(const void *weight, int64_t first, int64_t count,
                              qlora_dtype type, float *out) const {
  const bool rounds = type == QLORA_DTYPE_BF16 && dtype != type;
  if (rounds && decodeRun)
    return decodeFromAny(decodeRun->toRounded, runOf(weight, first, count), out,
                         qlora_round_bf16);
  decodeSerial(weight, first, count, QLORA_DTYPE_F32, out);
  if (rounds)
    roundToBF16(out, count);
}

void StoredWeight::prefetch(const void *weight, int64_t first,
                            int64_t count) const {
  constexpr int64_t kCacheLine = 64;
  const int64_t bits = isQuantized() ? layout.bits : dtypeBits(dtype);
  const auto *bytes = static_cast<const uint8_t *>(weight);
  const int64_t end = (first + count) * bits / 8;
  for (int64_t byte = first * bits / 8; byte < end; byte += kCacheLine)
    __builtin_prefetch(bytes + byte);
}

namespace cpu::decode {

enum Operand { kW, kOut };

PreparedKernel vector::prepare(const KernelRequest &request, uint64_t) {
  const StoredWeight weight = StoredWeight::of(request);
  const qlora_dtype outType = request.type("out");
  const int64_t count = request.constant("rows") * request.constant("columns");
  return makeKernel([=](const LibraryKernelArgs &args) {
    weight.decode(args.buffers[kW], 0, count, outType, args.buffers[kOut]);
    return Status::ok();
  });
}

} // namespace cpu::decode
} // namespace qlora
