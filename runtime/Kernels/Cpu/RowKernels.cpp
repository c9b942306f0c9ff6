// SPDX-License-Identifier: MIT

// The ops that walk over rows once: embedding, column_sum, accumulate,
// copy_rows, swap_blocks, clip_norm, length; and quantize, quantize_scales.

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu {

static Status checkIds(const int32_t *ids, int64_t rows, int64_t vocab) {
  for (int64_t row = 0; row < rows; ++row)
    if (ids[row] < 0 || ids[row] >= vocab)
      return Status::error(StatusCode::kInternal,
                           "embedding: row {} has token id {}, outside of "
                           "the vocabulary of {}",
                           row, ids[row], vocab);
  return Status::ok();
}

namespace {
/// Strides of an embedding table: [ids, columns], or transposed.
struct TableWalk {
  int64_t perId, perColumn;

  TableWalk(const KernelRequest &request, int64_t ids)
      : perId(request.constant("turned") ? 1 : request.constant("columns")),
        perColumn(request.constant("turned") ? ids : 1) {}

  int64_t at(int64_t id, int64_t column) const {
    return id * perId + column * perColumn;
  }
  /// Returns how many of `columns` neighbouring elements of an id's vector are
  /// adjacent in the table: all, or one if the table is transposed.
  int64_t run(int64_t columns) const { return perColumn == 1 ? columns : 1; }
};
} // namespace

PreparedKernel embedding::cpu::prepare(const KernelRequest &request, uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  const int64_t vocab = request.constant("vocab");
  const int64_t ldo = request.constant("ldo");
  const int64_t piece = request.constant("piece");
  const int64_t tableIds = plans::tableIds(request);
  const TableWalk table(request, tableIds);
  const int64_t run = table.run(columns);
  const qlora_dtype w = request.type("w"), out = request.type("out");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *ids = bufferOf<const int32_t>(args, 0);
    QLORA_RETURN_IF_ERROR(checkIds(ids, rows, vocab));
    const int64_t first = piece ? args.step->shard * piece : 0;
    parallelRanges(rows, rowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t id = ids[row] - first;
        void *const to = elementAt(args.buffers[2], out, row * ldo);
        if (id < 0 || id >= tableIds) {
          clearRun(out, to, columns);
          continue;
        }
        for (int64_t c = 0; c < columns; c += run)
          convertRun(w, elementAt(args.buffers[1], w, table.at(id, c)), out,
                     elementAt(to, out, c), run);
      }
    });
    return Status::ok();
  });
}

PreparedKernel embedding_grad::cpu::prepare(const KernelRequest &request,
                                            uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  const int64_t vocab = request.constant("vocab");
  const int64_t lddo = request.constant("lddo");
  const int64_t padding = request.constant("padding");
  const TableWalk table(request, vocab);
  const qlora_dtype dout = request.type("dout");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *ids = bufferOf<const int32_t>(args, 0);
    QLORA_RETURN_IF_ERROR(checkIds(ids, rows, vocab));
    // Each thread has some columns and all rows, so sums are in row order.
    parallelRanges(columns, 64, [&](int64_t begin, int64_t end) {
      const int64_t run = table.run(end - begin);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = begin; c < end && ids[row] != padding; c += run)
          addRun(dout, elementAt(args.buffers[1], dout, row * lddo + c),
                 QLORA_DTYPE_F32,
                 bufferOf<float>(args, 2) + table.at(ids[row], c), run);
    });
    return Status::ok();
  });
}

PreparedKernel column_sum::cpu::prepare(const KernelRequest &request,
                                        uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  const int64_t ldx = request.constant("ldx");
  const qlora_dtype x = request.type("x");
  static constexpr int64_t kPartials = plans::kColumnSumPartials;
  return makeKernel([=](const LibraryKernelArgs &args) {
    auto *partials = bufferOf<float>(args, 2);
    parallelFor(kPartials, threadCount(), [&](int64_t index, int64_t) {
      float *sum = partials + index * columns;
      std::memset(sum, 0, static_cast<size_t>(columns) * sizeof(float));
      const int64_t end = rows * (index + 1) / kPartials;
      for (int64_t row = rows * index / kPartials; row < end; ++row)
        addRun(x, elementAt(args.buffers[0], x, row * ldx), QLORA_DTYPE_F32,
               sum, columns);
    });
    for (int64_t index = 0; index < kPartials; ++index)
      addRun(QLORA_DTYPE_F32, partials + index * columns, QLORA_DTYPE_F32,
             args.buffers[1], columns);
    return Status::ok();
  });
}

PreparedKernel accumulate::cpu::prepare(const KernelRequest &request,
                                        uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t columns = request.constant("columns");
  const int64_t ldx = request.constant("ldx"), ldy = request.constant("ldy");
  const qlora_dtype x = request.type("x"), y = request.type("y");
  return makeKernel([=](const LibraryKernelArgs &args) {
    parallelRanges(rows, rowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        addRun(x, elementAt(args.buffers[0], x, row * ldx), y,
               elementAt(args.buffers[1], y, row * ldy), columns);
    });
    return Status::ok();
  });
}

PreparedKernel copy_rows::cpu::prepare(const KernelRequest &request, uint64_t) {
  const int64_t rows = request.constant("rows");
  const int64_t bytes = dtypeBits(request.type("x")) / 8;
  const int64_t columns = request.constant("columns");
  const int64_t ldx = request.constant("ldx"), ldo = request.constant("ldo");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *x = bufferOf<const uint8_t>(args, 0);
    auto *out = bufferOf<uint8_t>(args, 1);
    parallelRanges(rows, rowGrain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        std::memcpy(out + row * ldo * bytes, x + row * ldx * bytes,
                    static_cast<size_t>(columns * bytes));
    });
    return Status::ok();
  });
}

PreparedKernel swap_blocks::cpu::prepare(const KernelRequest &request,
                                         uint64_t) {
  const int64_t bytes = dtypeBits(request.type("x")) / 8;
  const int64_t columns = request.constant("columns");
  const int64_t first = request.constant("first");
  const int64_t second = request.constant("second");
  const int64_t run = request.constant("run"), ldx = request.constant("ldx");
  // A run is `run` elements, which stay together. One memcpy moves `piece`
  // elements: a run, or a row of x if a run has several rows.
  const int64_t piece = std::min(run, columns), ofRun = run / piece;
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *x = bufferOf<const uint8_t>(args, 0);
    auto *out = bufferOf<uint8_t>(args, 1);
    const auto copy = [&](int64_t to) {
      const int64_t block = to / ofRun;
      const int64_t swapped = block % first * second + block / first;
      const int64_t from = (swapped * ofRun + to % ofRun) * piece;
      std::memcpy(out + to * piece * bytes,
                  x + (from / columns * ldx + from % columns) * bytes,
                  static_cast<size_t>(piece * bytes));
    };
    parallelRanges(first * second * ofRun, rowGrain(piece),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t to = begin; to < end; ++to)
                       copy(to);
                   });
    return Status::ok();
  });
}

/// Returns clip_norm's result `scale` (Kernels.def).
static float clipScale(double norm, float count, float loss, float maxNorm) {
  if (!std::isfinite(float(norm)) || !std::isfinite(loss))
    return std::numeric_limits<float>::quiet_NaN();
  if (count <= 0)
    return 0;
  if (maxNorm <= 0)
    return float(1.0 / count);
  return float(std::min(1.0, maxNorm / (norm + 1e-6)) / count);
}

/// Returns the sum of squares of `count` values. Uses `partials` as scratch.
static double squaresOf(const float *values, int64_t count, double *partials) {
  static constexpr int64_t kPartials = plans::kClipNormPartials;
  parallelFor(kPartials, threadCount(), [&](int64_t index, int64_t) {
    const int64_t begin = count * index / kPartials;
    const int64_t end = count * (index + 1) / kPartials;
    partials[index] = sumOfSquares(values + begin, end - begin);
  });
  return std::accumulate(partials, partials + kPartials, 0.0);
}

PreparedKernel clip_norm::cpu::prepare(const KernelRequest &request, uint64_t) {
  enum Operand { kGradient, kLengths, kNorm, kScale, kWorkspace };
  const int64_t skip = request.constant("skip");
  const int64_t count = request.constant("elements") - skip;
  const int64_t others = request.constant("others");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto *gradient = bufferOf<const float>(args, kGradient);
    double sum = squaresOf(gradient + skip, count,
                           bufferOf<double>(args, kWorkspace));
    for (int64_t rank = 0; rank < others; ++rank) {
      const double length = bufferOf<const float>(args, kLengths)[rank];
      sum += length * length;
    }
    const float labels = gradient[1];
    const double norm = labels > 0 ? std::sqrt(sum) / labels : 0.0;
    *bufferOf<float>(args, kNorm) = float(norm);
    *bufferOf<float>(args, kScale) =
        clipScale(norm, labels, gradient[0], args.step->max_grad_norm);
    return Status::ok();
  });
}

PreparedKernel length::cpu::prepare(const KernelRequest &request, uint64_t) {
  enum Operand { kX, kLength, kWorkspace };
  const int64_t count = request.constant("elements");
  return makeKernel([=](const LibraryKernelArgs &args) {
    *bufferOf<float>(args, kLength) =
        float(std::sqrt(squaresOf(bufferOf<const float>(args, kX), count,
                                  bufferOf<double>(args, kWorkspace))));
    return Status::ok();
  });
}

// The steps of the CPU's quantizer (QuantizeTensor.h), as kernels.

PreparedKernel quantize::cpu::prepare(const KernelRequest &request, uint64_t) {
  enum Operand { kX, kPacked, kScales };
  const qlora_dtype dtype = request.type("x");
  const auto layout = StoredLayout::of(
      QLORA_DTYPE_NF4, request.constant("elements"), request.constant("block"),
      /*doubleQuant=*/false);
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto read = [&](int64_t first, int64_t count, float *values) {
      widen(dtype, elementAt(args.buffers[kX], dtype, first), values, count);
    };
    quantizeBlocks(layout, {read, nullptr}, bufferOf<uint8_t>(args, kPacked),
                   bufferOf<float>(args, kScales));
    return Status::ok();
  });
}

PreparedKernel quantize_scales::cpu::prepare(const KernelRequest &request,
                                             uint64_t) {
  enum Operand { kScales, kMap, kCodes, kAbsmax, kOffset };
  const auto blocks = static_cast<size_t>(request.constant("blocks"));
  return makeKernel([=](const LibraryKernelArgs &args) {
    const std::span scales(bufferOf<const float>(args, kScales), blocks);
    const float offset = nf4ScaleOffset(scales);
    *bufferOf<float>(args, kOffset) = offset;
    quantizeScales(scales, offset, bufferOf<const float>(args, kMap),
                      bufferOf<uint8_t>(args, kCodes),
                      bufferOf<float>(args, kAbsmax));
    return Status::ok();
  });
}

} // namespace qlora::cpu
