// SPDX-License-Identifier: MIT

// attention_grad, plain: every result row by its own sums in f64.

#include <algorithm>
#include <cmath>

#include "runtime/Kernels/Cpu/AttentionShape.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu::attention_grad {

enum Operand {
  kQ,
  kK,
  kV,
  kSegments,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kWorkspace
};

namespace {

/// One row of the batch and one head of queries.
struct Line {
  const AttentionShape &shape;
  const KernelRequest &request;
  const LibraryKernelArgs &args;
  int64_t batchRow, head;

  int64_t keyHead() const { return head / shape.group(); }

  int64_t offset(std::string_view ld, int64_t headIndex, int64_t token) const {
    return shape.rowOffset(request.constant(ld), batchRow, headIndex, token);
  }

  double dot(Operand a, int64_t aOffset, Operand b, int64_t bOffset) const {
    double sum = 0;
    for (int64_t i = 0; i < shape.dim; ++i)
      sum += double(loadElement(shape.dtype, args.buffers[a], aOffset + i)) *
             loadElement(shape.dtype, args.buffers[b], bOffset + i);
    return sum;
  }

  void add(double factor, Operand operand, int64_t from, double *sum) const {
    for (int64_t i = 0; i < shape.dim; ++i)
      sum[i] +=
          factor * loadElement(shape.dtype, args.buffers[operand], from + i);
  }

  bool sees(int64_t query, int64_t key) const {
    const auto *segments = bufferOf<const int32_t>(args, kSegments);
    return shape.sees(segments ? segments + batchRow * shape.length : nullptr,
                      query, key);
  }

  double probability(int64_t query, int64_t key) const {
    const double score = shape.scale * dot(kQ, offset("ldq", head, query), kK,
                                           offset("ldk", keyHead(), key));
    const auto *lse = bufferOf<const float>(args, kLse);
    return std::exp(
        score - lse[(batchRow * shape.heads + head) * shape.length + query]);
  }

  /// Of the scaled score, with the scale in it.
  double scoreGradient(int64_t query, int64_t key) const {
    const int64_t dout = offset("lddo", head, query);
    const double gradient = dot(kDOut, dout, kV, offset("ldv", keyHead(), key));
    const double mean = dot(kDOut, dout, kOut, offset("ldo", head, query));
    return shape.scale * probability(query, key) * (gradient - mean);
  }

  void store(Operand operand, int64_t to, const double *sum) const {
    for (int64_t i = 0; i < shape.dim; ++i)
      storeElement(shape.dtype, args.buffers[operand], to + i, float(sum[i]));
  }
};

} // namespace

static void queryGradient(const Line &line, int64_t query, double *sum) {
  std::fill_n(sum, line.shape.dim, 0.0);
  for (int64_t key = 0; key <= query; ++key)
    if (line.sees(query, key))
      line.add(line.scoreGradient(query, key), kK,
               line.offset("ldk", line.keyHead(), key), sum);
  line.store(kDQ, line.offset("lddq", line.head, query), sum);
}

/// dk and dv of one key: the sum over the heads of its group.
static void keyGradients(Line line, int64_t keyHead, int64_t key,
                         double *keySum, double *valueSum) {
  const AttentionShape &shape = line.shape;
  std::fill_n(keySum, shape.dim, 0.0);
  std::fill_n(valueSum, shape.dim, 0.0);
  for (int64_t i = 0; i < shape.group(); ++i) {
    line.head = keyHead * shape.group() + i;
    for (int64_t query = key; query < shape.length; ++query) {
      if (!line.sees(query, key))
        continue;
      line.add(line.scoreGradient(query, key), kQ,
               line.offset("ldq", line.head, query), keySum);
      line.add(line.probability(query, key), kDOut,
               line.offset("lddo", line.head, query), valueSum);
    }
  }
  line.store(kDK, line.offset("lddk", keyHead, key), keySum);
  line.store(kDV, line.offset("lddv", keyHead, key), valueSum);
}

PreparedKernel reference::prepare(const KernelRequest &request, uint64_t) {
  const AttentionShape shape = AttentionShape::of(request);
  return makeKernel([shape, request](const LibraryKernelArgs &args) {
    const auto sumsOf = [&](int64_t slot) {
      return bufferOf<double>(args, kWorkspace) + slot * 2 * shape.dim;
    };
    parallelFor(shape.batch * shape.heads * shape.length, shape.slots,
                [&](int64_t index, int64_t slot) {
                  const int64_t head = index / shape.length;
                  queryGradient({shape, request, args, head / shape.heads,
                                 head % shape.heads},
                                index % shape.length, sumsOf(slot));
                });
    parallelFor(shape.batch * shape.keyHeads * shape.length, shape.slots,
                [&](int64_t index, int64_t slot) {
                  const int64_t head = index / shape.length;
                  keyGradients({shape, request, args, head / shape.keyHeads, 0},
                               head % shape.keyHeads, index % shape.length,
                               sumsOf(slot), sumsOf(slot) + shape.dim);
                });
    return Status::ok();
  });
}

} // namespace qlora::cpu::attention_grad
