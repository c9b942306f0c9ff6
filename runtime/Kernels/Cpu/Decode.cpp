// SPDX-License-Identifier: MIT

// decode: NF4 by a table of 256 pairs, a byte at a time, then one product per
// element with the scale of its block. The products are those of
// NF4Tensor::element, so the bits are too.

#include "runtime/Kernels/Cpu/Decode.h"

#include <algorithm>
#include <cstring>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"

namespace qlora {

namespace {

/// Elements decoded at a time: far enough apart from their scaling for the
/// stores to have left the store buffer, small enough for the first cache.
constexpr int64_t kWindow = 1024;

/// The two code-book values of every byte.
struct PairTable {
  float pairs[256][2];

  explicit PairTable(const float *codeBook) {
    for (int byte = 0; byte < 256; ++byte) {
      pairs[byte][0] = codeBook[byte >> 4];
      pairs[byte][1] = codeBook[byte & 15];
    }
  }
};

void lookUp(const PairTable &table, const uint8_t *packed, int64_t bytes,
            float *out) {
  for (int64_t i = 0; i < bytes; ++i)
    std::memcpy(out + 2 * i, table.pairs[packed[i]], 2 * sizeof(float));
}

} // namespace

/// Multiplies elements [first, first + count), now at `values`, with the
/// scales of their blocks.
static void scaleBlocks(const NF4Tensor &tensor, int64_t first, int64_t count,
                        float *values) {
  for (int64_t done = 0; done < count;) {
    const int64_t blockIndex = (first + done) / tensor.block;
    const int64_t end = (blockIndex + 1) * tensor.block - first;
    const int64_t run = std::min(end, count) - done;
    scaleRun(values + done, run, tensor.absmax(blockIndex));
    done += run;
  }
}

static void decodeNF4Range(const NF4Tensor &tensor, int64_t first,
                           int64_t count, qlora_dtype outType, void *out) {
  const PairTable table(tensor.codeBook);
  float window[kWindow + 2];
  for (int64_t done = 0; done < count; done += kWindow) {
    const int64_t begin = first + done;
    const int64_t run = std::min(kWindow, count - done);
    // Whole bytes; an odd first element leaves its neighbour in front.
    const int64_t firstByte = begin / 2;
    const int64_t bytes = (begin + run + 1) / 2 - firstByte;
    lookUp(table, tensor.packed + firstByte, bytes, window);
    float *values = window + begin % 2;
    scaleBlocks(tensor, begin, run, values);
    narrow(values, outType, elementAt(out, outType, done), run);
  }
}

StoredWeight StoredWeight::of(const KernelRequest &request) {
  StoredWeight weight = {dtypeOf(request, "w"), {}};
  if (weight.dtype == QLORA_DTYPE_NF4)
    weight.layout = NF4Layout::of(
        request.constant("rows") * request.constant("columns"),
        request.constant("block"), request.constant("double_quant") != 0);
  return weight;
}

void StoredWeight::decodeSerial(const void *weight, int64_t first,
                                int64_t count, qlora_dtype outType,
                                void *out) const {
  if (dtype == QLORA_DTYPE_NF4)
    return decodeNF4Range(NF4Tensor::of(layout, weight), first, count, outType,
                          out);
  convertRun(dtype, elementAt(weight, dtype, first), outType, out, count);
}

void StoredWeight::decode(const void *weight, int64_t first, int64_t count,
                          qlora_dtype outType, void *out) const {
  parallelRanges(count, 8192, [&](int64_t begin, int64_t end) {
    decodeSerial(weight, first + begin, end - begin, outType,
                 elementAt(out, outType, begin));
  });
}

namespace cpu::decode {

enum Operand { kW, kOut };

PreparedKernel vector::prepare(const KernelRequest &request, uint64_t) {
  const StoredWeight weight = StoredWeight::of(request);
  const qlora_dtype outType = dtypeOf(request, "out");
  const int64_t count = request.constant("rows") * request.constant("columns");
  return makeKernel([=](const LibraryKernelArgs &args) {
    weight.decode(args.buffers[kW], 0, count, outType, args.buffers[kOut]);
    return Status::ok();
  });
}

PreparedKernel reference::prepare(const KernelRequest &request, uint64_t) {
  const StoredWeight weight = StoredWeight::of(request);
  const qlora_dtype outType = dtypeOf(request, "out");
  const int64_t count = request.constant("rows") * request.constant("columns");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const void *w = args.buffers[kW];
    const bool isNF4 = weight.dtype == QLORA_DTYPE_NF4;
    const NF4Tensor tensor = NF4Tensor::of(weight.layout, w);
    for (int64_t i = 0; i < count; ++i)
      storeElement(outType, args.buffers[kOut], i,
                   isNF4 ? tensor.element(i) : loadElement(weight.dtype, w, i));
    return Status::ok();
  });
}

} // namespace cpu::decode
} // namespace qlora
