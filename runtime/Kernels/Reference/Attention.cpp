// SPDX-License-Identifier: MIT

// Plain attention and attention_grad: a separate f64 sum for each result row.

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/Kernels/Cpu/AttentionShape.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora::cpu {

using Operand = AttentionOperand;

namespace {

/// One sequence and one query head.
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
    return shape.sees(shape.segmentsOf(args, batchRow), query, key);
  }

  double score(int64_t query, int64_t key) const {
    const double score = shape.scale * dot(kQ, offset("ldq", head, query), kK,
                                           offset("ldk", keyHead(), key));
    return shape.cap == 0 ? score : shape.cap * std::tanh(score / shape.cap);
  }

  /// Returns the derivative of a capped score by the uncapped score.
  double slope(int64_t query, int64_t key) const {
    const double t = shape.cap == 0 ? 0 : score(query, key) / shape.cap;
    return 1 - t * t;
  }

  float &lse(int64_t query) const {
    return shape.lseOf(args, batchRow, head)[query];
  }

  double probability(int64_t query, int64_t key) const {
    return std::exp(score(query, key) - lse(query));
  }

  /// Returns the loss gradient with respect to the dot product q . k.
  double scoreGradient(int64_t query, int64_t key) const {
    const int64_t dout = offset("lddo", head, query);
    const double gradient = dot(kDOut, dout, kV, offset("ldv", keyHead(), key));
    const double mean = dot(kDOut, dout, kOut, offset("ldo", head, query));
    return shape.scale * probability(query, key) * (gradient - mean) *
           slope(query, key);
  }

  void store(Operand operand, int64_t to, const double *sum) const {
    for (int64_t i = 0; i < shape.dim; ++i)
      storeElement(shape.dtype, args.buffers[operand], to + i, float(sum[i]));
  }
};

} // namespace

static void attend(const Line &line, int64_t query) {
  const AttentionShape &shape = line.shape;
  std::vector<double> scores, output(shape.dim, 0.0);
  std::vector<int64_t> seen;
  for (int64_t key = 0; key <= query; ++key)
    if (line.sees(query, key)) {
      scores.push_back(line.score(query, key));
      seen.push_back(key);
    }
  const auto *sinks = bufferOf<const float>(line.args, kSinks);
  if (sinks && !seen.empty())
    scores.push_back(sinks[line.head]);
  double lse = 0;
  if (!seen.empty()) {
    const double maximum = *std::ranges::max_element(scores);
    double sum = 0;
    for (double score : scores)
      sum += std::exp(score - maximum);
    lse = maximum + std::log(sum);
  }
  line.lse(query) = float(lse);
  for (size_t i = 0; i < seen.size(); ++i)
    line.add(std::exp(scores[i] - lse), kV,
             line.offset("ldv", line.keyHead(), seen[i]), output.data());
  line.store(kOut, line.offset("ldo", line.head, query), output.data());
}

static void queryGradient(const Line &line, int64_t query) {
  std::vector<double> sum(line.shape.dim, 0.0);
  for (int64_t key = 0; key <= query; ++key)
    if (line.sees(query, key))
      line.add(line.scoreGradient(query, key), kK,
               line.offset("ldk", line.keyHead(), key), sum.data());
  line.store(kDQ, line.offset("lddq", line.head, query), sum.data());
}

/// Computes dk and dv of one key: the sums over the query heads of its group.
static void keyGradients(Line line, int64_t keyHead, int64_t key) {
  const AttentionShape &shape = line.shape;
  std::vector<double> keySum(shape.dim, 0.0), valueSum(shape.dim, 0.0);
  for (int64_t i = 0; i < shape.group(); ++i) {
    line.head = keyHead * shape.group() + i;
    for (int64_t query = key; query < shape.length; ++query) {
      if (!line.sees(query, key))
        continue;
      line.add(line.scoreGradient(query, key), kQ,
               line.offset("ldq", line.head, query), keySum.data());
      line.add(line.probability(query, key), kDOut,
               line.offset("lddo", line.head, query), valueSum.data());
    }
  }
  line.store(kDK, line.offset("lddk", keyHead, key), keySum.data());
  line.store(kDV, line.offset("lddv", keyHead, key), valueSum.data());
}

/// Calls task(sequence, head, token) for all tokens of all heads.
template <typename Task>
static void forTokens(const AttentionShape &shape, int64_t heads, Task task) {
  parallelFor(shape.batch * heads * shape.length, shape.slots,
              [&](int64_t index, int64_t) {
                const int64_t line = index / shape.length;
                task(line / heads, line % heads, index % shape.length);
              });
}

PreparedKernel attention::reference::prepare(const KernelRequest &request,
                                             uint64_t) {
  const AttentionShape shape = AttentionShape::of(request);
  return makeKernel([shape, request](const LibraryKernelArgs &args) {
    forTokens(shape, shape.heads,
              [&](int64_t batchRow, int64_t head, int64_t query) {
                attend({shape, request, args, batchRow, head}, query);
              });
    return Status::ok();
  });
}

PreparedKernel attention_grad::reference::prepare(const KernelRequest &request,
                                                  uint64_t) {
  const AttentionShape shape = AttentionShape::of(request);
  return makeKernel([shape, request](const LibraryKernelArgs &args) {
    forTokens(shape, shape.heads,
              [&](int64_t batchRow, int64_t head, int64_t query) {
                queryGradient({shape, request, args, batchRow, head}, query);
              });
    forTokens(shape, shape.keyHeads,
              [&](int64_t batchRow, int64_t head, int64_t key) {
                keyGradients({shape, request, args, batchRow, 0}, head, key);
              });
    return Status::ok();
  });
}

} // namespace qlora::cpu
