// SPDX-License-Identifier: MIT

// attention, blocked: a task is one block of queries of one head. It processes
// one block of keys after another with the online softmax (Milakov and
// Gimelshein, 2018; FlashAttention): a running maximum, sum and output per
// query, rescaled when the maximum grows.

#include <cmath>
#include <limits>

#include "runtime/Kernels/Cpu/AttentionShape.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu::attention {

using plans::AttentionScratch;

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Forward {
  AttentionShape shape;
  AttentionScratch scratch;
  int64_t ldq, ldk, ldv, ldo;
  BlockForm scoreForm = {false, true, shape.scale, 0};
  BlockForm outputForm = {false, false, 1, 1};
  std::shared_ptr<const BlockProducts> products = prepareProducts();

  std::shared_ptr<const BlockProducts> prepareProducts() const;
  uint8_t *slotAt(const LibraryKernelArgs &args, int64_t slot) const {
    return scratch.slots.in(args.buffers.back()) +
           slot * int64_t(scratch.slotBytes);
  }
  Status runBlock(const LibraryKernelArgs &args, int64_t batchRow, int64_t head,
                  AttentionBlock queries, int64_t slotNumber) const;
  Status addKeys(const LibraryKernelArgs &args, int64_t batchRow, int64_t head,
                 AttentionBlock queries, AttentionBlock keys, RowView q,
                 int64_t slotNumber) const;
  void startRows(const LibraryKernelArgs &args, const int32_t *segments,
                 int64_t head, AttentionBlock queries, float *maxima,
                 float *sums) const;
  void softmax(int64_t rows, int64_t columns, uint8_t *slot,
               uint16_t *narrow) const;
  void finish(const LibraryKernelArgs &args, int64_t batchRow, int64_t head,
              AttentionBlock queries, uint8_t *slot) const;
};

} // namespace

std::shared_ptr<const BlockProducts> Forward::prepareProducts() const {
  std::vector<BlockProducts::Request> requests;
  for (int64_t queries : shape.blockSizes(scratch.block))
    for (int64_t keys : shape.blockSizes(scratch.block)) {
      requests.push_back({scoreForm, {queries, keys, shape.dim}});
      requests.push_back({outputForm, {queries, shape.dim, keys}});
    }
  return BlockProducts::create(requests, shape.dtype, shape.slots,
                               scratch.library.bytes);
}

/// Sets the initial softmax state of each query: empty, or the head's sink.
/// Padding queries have no sink.
void Forward::startRows(const LibraryKernelArgs &args, const int32_t *segments,
                        int64_t head, AttentionBlock queries, float *maxima,
                        float *sums) const {
  const auto *sinks = bufferOf<const float>(args, kSinks);
  for (int64_t row = 0; row < scratch.block; ++row) {
    const bool hasSink = sinks && row < queries.count &&
                         (!segments || segments[queries.first + row] != 0);
    maxima[row] = hasSink ? sinks[head] : kNone;
    sums[row] = hasSink ? 1.0f : 0.0f;
  }
}

/// Replaces scores with exponentials relative to the running maxima (in bf16 in
/// `narrow` if not null). Rescales sums and output if a maximum grew.
void Forward::softmax(int64_t rows, int64_t columns, uint8_t *slot,
                      uint16_t *narrow) const {
  float *scores = scratch.scores.in<float>(slot);
  float *maxima = scratch.rowStates.in<float>(slot);
  float *sums = maxima + scratch.block;
  float *shifts = sums + scratch.block, *newSums = shifts + scratch.block;
  float *rescales = newSums + scratch.block;
  maximaOfRows(scores, rows, columns, shifts);
  for (int64_t row = 0; row < rows; ++row) {
    const float maximum = std::max(maxima[row], shifts[row]);
    rescales[row] =
        maximum == maxima[row] ? 1.0f : std::exp(maxima[row] - maximum);
    maxima[row] = maximum;
    // For a query without visible keys, a shift of 0 avoids NaN in e^(s - m).
    shifts[row] = maximum == kNone ? 0.0f : maximum;
  }
  exponentiateRows({scores, rows, columns, shifts, newSums,
                    narrow ? nullptr : scores, narrow});
  for (int64_t row = 0; row < rows; ++row) {
    sums[row] = sums[row] * rescales[row] + newSums[row];
    if (rescales[row] != 1.0f)
      scaleRun(scratch.sum.in<float>(slot) + row * shape.dim, shape.dim,
               rescales[row]);
  }
}

Status Forward::addKeys(const LibraryKernelArgs &args, int64_t batchRow,
                        int64_t head, AttentionBlock queries,
                        AttentionBlock keys, RowView q,
                        int64_t slotNumber) const {
  uint8_t *slot = slotAt(args, slotNumber);
  const int32_t *segments = shape.segmentsOf(args, batchRow);
  float *scores = scratch.scores.in<float>(slot);
  float *output = scratch.sum.in<float>(slot);
  const int64_t keyHead = head / shape.group(), dim = shape.dim;
  const RowView k = shape.rows(*products, args.buffers[kK], ldk, batchRow,
                               keyHead, keys, scratch.keys.in<float>(slot));
  QLORA_RETURN_IF_ERROR(
      products->run(slotNumber, scoreForm, {queries.count, keys.count, dim}, q,
                    k, scores, keys.count, scratch.library.in<float>(slot)));
  if (shape.cap != 0)
    capRun(scores, queries.count * keys.count, shape.cap, nullptr);
  if (!shape.allMeet(segments, queries, keys))
    maskScores(shape, segments, queries, keys, scores);
  uint16_t *narrow = narrowValues(*products, scratch.narrowScores, slot);
  softmax(queries.count, keys.count, slot, narrow);
  const RowView v = shape.rows(*products, args.buffers[kV], ldv, batchRow,
                               keyHead, keys, scratch.values.in<float>(slot));
  const RowView p = denseRows(scores, narrow, keys.count);
  return products->run(slotNumber, outputForm, {queries.count, dim, keys.count},
                       p, v, output, dim, scratch.library.in<float>(slot));
}

void Forward::finish(const LibraryKernelArgs &args, int64_t batchRow,
                     int64_t head, AttentionBlock queries,
                     uint8_t *slot) const {
  const float *maxima = scratch.rowStates.in<float>(slot);
  const float *sums = maxima + scratch.block;
  float *lse = shape.lseOf(args, batchRow, head);
  for (int64_t row = 0; row < queries.count; ++row) {
    const int64_t query = queries.first + row;
    float *output = scratch.sum.in<float>(slot) + row * shape.dim;
    // A query that sees no key is padding.
    const bool isEmpty = maxima[row] == kNone;
    scaleRun(output, shape.dim, isEmpty ? 0.0f : 1.0f / sums[row]);
    lse[query] = isEmpty ? 0.0f : maxima[row] + std::log(sums[row]);
    shape.storeRow(output, args.buffers[kOut], ldo, batchRow, head, query);
  }
}

Status Forward::runBlock(const LibraryKernelArgs &args, int64_t batchRow,
                         int64_t head, AttentionBlock queries,
                         int64_t slotNumber) const {
  const int32_t *segments = shape.segmentsOf(args, batchRow);
  uint8_t *slot = slotAt(args, slotNumber);
  float *maxima = scratch.rowStates.in<float>(slot);
  startRows(args, segments, head, queries, maxima, maxima + scratch.block);
  std::fill_n(scratch.sum.in<float>(slot), queries.count * shape.dim, 0.0f);
  const RowView q = shape.rows(*products, args.buffers[kQ], ldq, batchRow, head,
                               queries, scratch.queries.in<float>(slot));
  for (int64_t first = 0; first <= queries.last(); first += scratch.block) {
    const AttentionBlock keys =
        shape.blockAt(first / scratch.block, scratch.block);
    if (!shape.mayMeet(segments, queries, keys))
      continue;
    QLORA_RETURN_IF_ERROR(
        addKeys(args, batchRow, head, queries, keys, q, slotNumber));
  }
  finish(args, batchRow, head, queries, slot);
  return Status::ok();
}

PreparedKernel blocked::prepare(const KernelRequest &r, uint64_t) {
  const Forward forward = {AttentionShape::of(r), AttentionScratch::of(r),
                           r.constant("ldq"),     r.constant("ldk"),
                           r.constant("ldv"),     r.constant("ldo")};
  return makeKernel([forward, tasks = FallibleTasks(forward.shape.slots)](
                        const LibraryKernelArgs &args) mutable {
    const AttentionShape &shape = forward.shape;
    const int64_t block = forward.scratch.block;
    const int64_t blocks = (shape.length + block - 1) / block;
    const int64_t lines = shape.batch * shape.heads;
    // The last blocks see the most keys, so they run first.
    return tasks.run(lines * blocks, [&](int64_t index, int64_t slot) {
      const AttentionBlock queries =
          shape.blockAt(blocks - 1 - index / lines, block);
      const int64_t line = index % lines;
      return forward.runBlock(args, line / shape.heads, line % shape.heads,
                              queries, slot);
    });
  });
}

} // namespace qlora::cpu::attention
