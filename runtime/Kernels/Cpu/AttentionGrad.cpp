// SPDX-License-Identifier: MIT

// attention_grad, blocked: a task is one key head with all query heads that
// share it, so that one thread sums dk and dv in a fixed order. If there are
// fewer key heads than threads could use, a task is one query head, and dk and
// dv are summed afterwards in the order of the heads. Probabilities are
// recomputed from the scores and lse:
//
//   P = e^(S - lse)      dV += P^T dO         dP = dO V^T
//   dS = scale P (dP - rowsum(dO O)); with a cap, also times 1 - tanh^2
//   dQ += dS K           dK += dS^T Q

#include "runtime/Kernels/Cpu/AttentionShape.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora::cpu::attention_grad {

using Operand = AttentionOperand;
using plans::AttentionScratch;

namespace {

/// The f32 rows in which a task sums dk or dv.
struct RowSum {
  float *data;
  int64_t ld;
};

struct Strides {
  int64_t q, k, v, out, dout, dq, dk, dv;
};

constexpr BlockForm kTransposedTimes = {true, false, 1, 1}; // dV, dK
constexpr BlockForm kOutputTimes = {false, true, 1, 0};     // dP
constexpr BlockForm kScoresTimes = {false, false, 1, 1};    // dQ

/// State that all tasks share.
struct Gradient {
  AttentionShape shape;
  AttentionScratch scratch;
  Strides ld;
  BlockForm scoreForm = {false, true, shape.scale, 0};
  std::shared_ptr<const BlockProducts> products = prepareProducts();

  bool isSplit() const { return bool(scratch.partials); }
  int64_t headsPerTask() const { return isSplit() ? 1 : shape.group(); }
  int64_t tasks() const { return shape.batch * shape.heads / headsPerTask(); }
  std::shared_ptr<const BlockProducts> prepareProducts() const;
  /// Returns a query head's partial sum of dk (`which` 0) or dv (1), dense.
  float *partial(const LibraryKernelArgs &args, int64_t batchRow, int64_t head,
                 int64_t which) const {
    return scratch.partials.in<float>(args.buffers.back()) +
           ((batchRow * shape.heads + head) * 2 + which) * shape.length *
               shape.dim;
  }
  void addPartials(const LibraryKernelArgs &args, int64_t begin,
                   int64_t end) const;
};

struct QueryBlock {
  AttentionBlock at;
  RowView q, dout;
  const float *lse;
  float *means; ///< rowsum(dO O)
};

/// One task: some query heads of one sequence that share a key head.
struct Task {
  const Gradient &gradient;
  const LibraryKernelArgs &args;
  int64_t batchRow, firstHead, slotNumber;
  const AttentionShape &shape = gradient.shape;
  const AttentionScratch &scratch = gradient.scratch;
  int64_t keyHead = firstHead / shape.group();
  const int32_t *segments = shape.segmentsOf(args, batchRow);
  uint8_t *slot = scratch.slots.in(args.buffers.back()) +
                  slotNumber * int64_t(scratch.slotBytes);
  RowSum keySum = {}, valueSum = {};

  Status run();
  Status runQueries(int64_t head, AttentionBlock queries);
  Status addKeys(const QueryBlock &queries, AttentionBlock keys);
  Status multiply(const BlockForm &form, BlockExtents extents, RowView a,
                  RowView b, float *c, int64_t ldc) const {
    return gradient.products->run(slotNumber, form, extents, a, b, c, ldc,
                                  scratch.library.in<float>(slot));
  }
  void probabilities(const QueryBlock &queries, AttentionBlock keys,
                     uint16_t *narrow);
  void meanGradients(int64_t head, AttentionBlock at, float *means);
  RowView gather(Operand operand, int64_t ld, int64_t head,
                 AttentionBlock block, plans::Part room) const {
    return shape.rows(*gradient.products, args.buffers[operand], ld, batchRow,
                      head, block, room.in<float>(slot));
  }
  RowSum startSum(Operand operand, int64_t stride, plans::Part room);
  void finishSum(Operand operand, int64_t stride, const RowSum &sum);
};

} // namespace

std::shared_ptr<const BlockProducts> Gradient::prepareProducts() const {
  std::vector<BlockProducts::Request> requests;
  for (int64_t queries : shape.blockSizes(scratch.block))
    for (int64_t keys : shape.blockSizes(scratch.block)) {
      requests.push_back({scoreForm, {queries, keys, shape.dim}});
      requests.push_back({kOutputTimes, {queries, keys, shape.dim}});
      requests.push_back({kTransposedTimes, {keys, shape.dim, queries}});
      requests.push_back({kScoresTimes, {queries, shape.dim, keys}});
    }
  return BlockProducts::create(requests, shape.dtype, shape.slots,
                               scratch.library.bytes);
}

/// Sums the partial dk and dv of tokens [begin, end). The index runs over
/// sequences, key heads and tokens, with tokens innermost.
void Gradient::addPartials(const LibraryKernelArgs &args, int64_t begin,
                           int64_t end) const {
  for (int64_t index = begin; index < end; ++index) {
    const int64_t token = index % shape.length, line = index / shape.length;
    const int64_t batchRow = line / shape.keyHeads;
    const int64_t keyHead = line % shape.keyHeads;
    for (int64_t which : {0, 1}) {
      const auto row = [&](int64_t member) {
        return partial(args, batchRow, keyHead * shape.group() + member,
                       which) +
               token * shape.dim;
      };
      for (int64_t member = 1; member < shape.group(); ++member)
        addRun(QLORA_DTYPE_F32, row(member), QLORA_DTYPE_F32, row(0),
               shape.dim);
      const Operand operand = which == 0 ? kDK : kDV;
      const int64_t stride = which == 0 ? ld.dk : ld.dv;
      shape.storeRow(row(0), args.buffers[operand], stride, batchRow, keyHead,
                     token);
    }
  }
}

/// Returns zeroed f32 rows for the task's sum of dk or dv: a partial sum if a
/// key head has several tasks, else the operand if it is f32, else scratch.
RowSum Task::startSum(Operand operand, int64_t stride, plans::Part room) {
  RowSum sum = {room.in<float>(slot), shape.dim};
  if (gradient.isSplit())
    sum.data = gradient.partial(args, batchRow, firstHead, operand == kDV);
  else if (shape.dtype == QLORA_DTYPE_F32)
    sum = {bufferOf<float>(args, operand) +
               shape.rowOffset(stride, batchRow, keyHead, 0),
           stride};
  for (int64_t row = 0; row < shape.length; ++row)
    std::fill_n(sum.data + row * sum.ld, shape.dim, 0.0f);
  return sum;
}

void Task::finishSum(Operand operand, int64_t stride, const RowSum &sum) {
  if (gradient.isSplit() || shape.dtype == QLORA_DTYPE_F32)
    return;
  for (int64_t row = 0; row < shape.length; ++row)
    shape.storeRow(sum.data + row * sum.ld, args.buffers[operand], stride,
                   batchRow, keyHead, row);
}

/// Replaces scores with probabilities, also stored in `narrow` if not null.
void Task::probabilities(const QueryBlock &queries, AttentionBlock keys,
                         uint16_t *narrow) {
  float *scores = scratch.scores.in<float>(slot);
  if (shape.cap != 0)
    capRun(scores, queries.at.count * keys.count, shape.cap,
           scratch.slopes.in<float>(slot));
  if (!shape.allMeet(segments, queries.at, keys))
    maskScores(shape, segments, queries.at, keys, scores);
  exponentiateRows({scores, queries.at.count, keys.count, queries.lse, nullptr,
                    scores, narrow});
}

Status Task::addKeys(const QueryBlock &queries, AttentionBlock keys) {
  const int64_t rows = queries.at.count, columns = keys.count;
  const int64_t dim = shape.dim;
  const BlockProducts &products = *gradient.products;
  float *scores = scratch.scores.in<float>(slot);
  float *gradients = scratch.scoreGradients.in<float>(slot);
  uint16_t *narrow = narrowValues(products, scratch.narrowScores, slot);
  const RowView k = gather(kK, gradient.ld.k, keyHead, keys, scratch.keys);
  const RowView v = gather(kV, gradient.ld.v, keyHead, keys, scratch.values);
  QLORA_RETURN_IF_ERROR(multiply(gradient.scoreForm, {rows, columns, dim},
                                 queries.q, k, scores, columns));
  probabilities(queries, keys, narrow);
  QLORA_RETURN_IF_ERROR(
      multiply(kTransposedTimes, {columns, dim, rows},
               denseRows(scores, narrow, columns), queries.dout,
               valueSum.data + keys.first * valueSum.ld, valueSum.ld));
  QLORA_RETURN_IF_ERROR(multiply(kOutputTimes, {rows, columns, dim},
                                 queries.dout, v, gradients, columns));
  if (shape.cap != 0)
    multiplyRun(scores, scratch.slopes.in<float>(slot), rows * columns,
                nullptr);
  scoreGradients(scores, gradients, rows, columns, queries.means, shape.scale,
                 narrow);
  const RowView ds = denseRows(gradients, narrow, columns);
  QLORA_RETURN_IF_ERROR(multiply(kScoresTimes, {rows, dim, columns}, ds, k,
                                 scratch.sum.in<float>(slot), dim));
  return multiply(kTransposedTimes, {columns, dim, rows}, ds, queries.q,
                  keySum.data + keys.first * keySum.ld, keySum.ld);
}

/// Computes rowsum(dO O) of a block of queries in f32; bf16 operands are
/// widened row by row.
void Task::meanGradients(int64_t head, AttentionBlock at, float *means) {
  const auto row = [&](Operand operand, int64_t ld, int64_t token,
                       float *line) -> const float * {
    const void *data =
        elementAt(static_cast<const void *>(args.buffers[operand]), shape.dtype,
                  shape.rowOffset(ld, batchRow, head, token));
    if (shape.dtype == QLORA_DTYPE_F32)
      return static_cast<const float *>(data);
    widen(shape.dtype, data, line, shape.dim);
    return line;
  };
  for (int64_t i = 0; i < at.count; ++i)
    means[i] = dotProduct(row(kDOut, gradient.ld.dout, at.first + i,
                              scratch.outputs.in<float>(slot)),
                          row(kOut, gradient.ld.out, at.first + i,
                              scratch.sum.in<float>(slot)),
                          shape.dim);
}

Status Task::runQueries(int64_t head, AttentionBlock at) {
  QueryBlock queries;
  queries.at = at;
  queries.q = gather(kQ, gradient.ld.q, head, at, scratch.queries);
  queries.dout = gather(kDOut, gradient.ld.dout, head, at,
                        scratch.outGradients);
  queries.lse = shape.lseOf(args, batchRow, head) + at.first;
  queries.means = scratch.rowStates.in<float>(slot);
  meanGradients(head, at, queries.means);
  float *sum = scratch.sum.in<float>(slot);
  std::fill_n(sum, at.count * shape.dim, 0.0f);
  for (int64_t first = 0; first <= at.last(); first += scratch.block) {
    const AttentionBlock keys =
        shape.blockAt(first / scratch.block, scratch.block);
    if (!shape.mayMeet(segments, at, keys))
      continue;
    QLORA_RETURN_IF_ERROR(addKeys(queries, keys));
  }
  for (int64_t row = 0; row < at.count; ++row)
    shape.storeRow(sum + row * shape.dim, args.buffers[kDQ], gradient.ld.dq,
                   batchRow, head, at.first + row);
  return Status::ok();
}

Status Task::run() {
  keySum = startSum(kDK, gradient.ld.dk, scratch.keyGradients);
  valueSum = startSum(kDV, gradient.ld.dv, scratch.valueGradients);
  const int64_t blocks = (shape.length + scratch.block - 1) / scratch.block;
  for (int64_t i = 0; i < gradient.headsPerTask() * blocks; ++i) {
    QLORA_RETURN_IF_ERROR(runQueries(firstHead + i / blocks,
                                     shape.blockAt(i % blocks, scratch.block)));
  }
  finishSum(kDK, gradient.ld.dk, keySum);
  finishSum(kDV, gradient.ld.dv, valueSum);
  return Status::ok();
}

PreparedKernel blocked::prepare(const KernelRequest &r, uint64_t) {
  const Gradient gradient = {
      AttentionShape::of(r),
      AttentionScratch::of(r),
      {r.constant("ldq"), r.constant("ldk"), r.constant("ldv"),
       r.constant("ldo"), r.constant("lddo"), r.constant("lddq"),
       r.constant("lddk"), r.constant("lddv")}};
  return makeKernel([gradient, tasks = FallibleTasks(gradient.shape.slots)](
                        const LibraryKernelArgs &args) mutable {
    const AttentionShape &shape = gradient.shape;
    QLORA_RETURN_IF_ERROR(tasks.run(gradient.tasks(), [&](int64_t index,
                                                          int64_t slot) {
      const int64_t head = index * gradient.headsPerTask();
      return Task{gradient, args, head / shape.heads, head % shape.heads, slot}
          .run();
    }));
    if (gradient.isSplit())
      parallelRanges(shape.batch * shape.keyHeads * shape.length, 64,
                     [&](int64_t begin, int64_t end) {
                       gradient.addPartials(args, begin, end);
                     });
    return Status::ok();
  });
}

} // namespace qlora::cpu::attention_grad
