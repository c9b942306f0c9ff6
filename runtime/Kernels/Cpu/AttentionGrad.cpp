// SPDX-License-Identifier: MIT

// attention_grad, blocked: a task is one head of keys with all the heads of
// queries that share it, so that dk and dv are sums of one thread, in one
// order. Probabilities are made again from the scores and lse:
//
//   P = e^(S - lse)      dV += P^T dO         dP = dO V^T
//   dS = scale P (dP - rowsum(dO O))
//   dQ += dS K           dK += dS^T Q

#include <oneapi/dnnl/dnnl.h>

#include <atomic>
#include <cmath>

#include "runtime/Kernels/Cpu/AttentionShape.h"
#include "runtime/Kernels/Cpu/Parallel.h"
#include "runtime/Kernels/Cpu/Softmax.h"
#include "runtime/Kernels/Requests/Workspaces.h"

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

using requests::AttentionScratch;

namespace {

/// A run of f32 rows to add to.
struct RowSum {
  float *data;
  int64_t ld;
};

struct Strides {
  int64_t q, k, v, out, dout, dq, dk, dv;
};

/// The blocks of queries that a task works on.
struct QueryBlock {
  AttentionBlock at;
  RowView q, dout, out;
  const float *lse;
  float *means; ///< rowsum(dO O)
};

/// One task: a row of the batch and a head of keys.
struct Task {
  const AttentionShape &shape;
  const AttentionScratch &scratch;
  const Strides &ld;
  const LibraryKernelArgs &args;
  int64_t batchRow, keyHead;
  const int32_t *segments;
  float *slot;
  RowSum keySum, valueSum;

  dnnl_status_t run();
  dnnl_status_t runQueries(int64_t head, AttentionBlock queries);
  dnnl_status_t addKeys(const QueryBlock &queries, AttentionBlock keys);
  void probabilities(const QueryBlock &queries, AttentionBlock keys);
  RowSum startSum(Operand operand, int64_t stride, int64_t offset);
  void finishSum(Operand operand, int64_t stride, const RowSum &sum);
};

} // namespace

/// f32 sums are made in the result itself; others in scratch.
RowSum Task::startSum(Operand operand, int64_t stride, int64_t offset) {
  RowSum sum = {slot + offset, shape.dim};
  if (shape.dtype == QLORA_DTYPE_F32)
    sum = {bufferOf<float>(args, operand) +
               shape.rowOffset(stride, batchRow, keyHead, 0),
           stride};
  for (int64_t row = 0; row < shape.length; ++row)
    std::fill_n(sum.data + row * sum.ld, shape.dim, 0.0f);
  return sum;
}

void Task::finishSum(Operand operand, int64_t stride, const RowSum &sum) {
  if (shape.dtype == QLORA_DTYPE_F32)
    return;
  for (int64_t row = 0; row < shape.length; ++row)
    narrow(sum.data + row * sum.ld, shape.dtype,
           elementAt(args.buffers[operand], shape.dtype,
                     shape.rowOffset(stride, batchRow, keyHead, row)),
           shape.dim);
}

/// Turns the scores in scratch into probabilities.
void Task::probabilities(const QueryBlock &queries, AttentionBlock keys) {
  float *scores = slot + scratch.scores;
  if (!shape.allMeet(segments, queries.at, keys))
    maskScores(shape, segments, queries.at, keys, scores);
  for (int64_t row = 0; row < queries.at.count; ++row)
    exponentiate(scores + row * keys.count, keys.count, queries.lse[row]);
}

dnnl_status_t Task::addKeys(const QueryBlock &queries, AttentionBlock keys) {
  const int64_t rows = queries.at.count, columns = keys.count;
  const int64_t dim = shape.dim;
  float *scores = slot + scratch.scores;
  float *gradients = slot + scratch.scoreGradients;
  const RowView k = shape.rows(args.buffers[kK], ld.k, batchRow, keyHead, keys,
                               slot + scratch.keys);
  const RowView v = shape.rows(args.buffers[kV], ld.v, batchRow, keyHead, keys,
                               slot + scratch.values);
  dnnl_status_t status =
      dnnl_sgemm('N', 'T', rows, columns, dim, shape.scale, queries.q.data,
                 queries.q.ld, k.data, k.ld, 0.0f, scores, columns);
  if (status != dnnl_success)
    return status;
  probabilities(queries, keys);
  status = dnnl_sgemm('T', 'N', columns, dim, rows, 1.0f, scores, columns,
                      queries.dout.data, queries.dout.ld, 1.0f,
                      valueSum.data + keys.first * valueSum.ld, valueSum.ld);
  if (status != dnnl_success)
    return status;
  status = dnnl_sgemm('N', 'T', rows, columns, dim, 1.0f, queries.dout.data,
                      queries.dout.ld, v.data, v.ld, 0.0f, gradients, columns);
  if (status != dnnl_success)
    return status;
  for (int64_t row = 0; row < rows; ++row)
    scoreGradient(scores + row * columns, queries.means[row], shape.scale,
                  gradients + row * columns, columns);
  status = dnnl_sgemm('N', 'N', rows, dim, columns, 1.0f, gradients, columns,
                      k.data, k.ld, 1.0f, slot + scratch.sum, dim);
  if (status != dnnl_success)
    return status;
  return dnnl_sgemm('T', 'N', columns, dim, rows, 1.0f, gradients, columns,
                    queries.q.data, queries.q.ld, 1.0f,
                    keySum.data + keys.first * keySum.ld, keySum.ld);
}

dnnl_status_t Task::runQueries(int64_t head, AttentionBlock at) {
  QueryBlock queries;
  queries.at = at;
  queries.q = shape.rows(args.buffers[kQ], ld.q, batchRow, head, at,
                         slot + scratch.queries);
  queries.dout = shape.rows(args.buffers[kDOut], ld.dout, batchRow, head, at,
                            slot + scratch.outGradients);
  queries.out = shape.rows(args.buffers[kOut], ld.out, batchRow, head, at,
                           slot + scratch.outputs);
  queries.lse = bufferOf<const float>(args, kLse) +
                (batchRow * shape.heads + head) * shape.length + at.first;
  queries.means = slot + scratch.rowStates;
  for (int64_t row = 0; row < at.count; ++row)
    queries.means[row] =
        dotProduct(queries.dout.data + row * queries.dout.ld,
                   queries.out.data + row * queries.out.ld, shape.dim);
  float *sum = slot + scratch.sum;
  std::fill_n(sum, at.count * shape.dim, 0.0f);
  for (int64_t first = 0; first <= at.last(); first += scratch.block) {
    const AttentionBlock keys =
        shape.blockAt(first / scratch.block, scratch.block);
    if (!shape.mayMeet(segments, at, keys))
      continue;
    const dnnl_status_t status = addKeys(queries, keys);
    if (status != dnnl_success)
      return status;
  }
  for (int64_t row = 0; row < at.count; ++row)
    narrow(sum + row * shape.dim, shape.dtype,
           elementAt(args.buffers[kDQ], shape.dtype,
                     shape.rowOffset(ld.dq, batchRow, head, at.first + row)),
           shape.dim);
  return dnnl_success;
}

dnnl_status_t Task::run() {
  keySum = startSum(kDK, ld.dk, scratch.keyGradients);
  valueSum = startSum(kDV, ld.dv, scratch.valueGradients);
  const int64_t blocks = (shape.length + scratch.block - 1) / scratch.block;
  for (int64_t i = 0; i < shape.group() * blocks; ++i) {
    const dnnl_status_t status =
        runQueries(keyHead * shape.group() + i / blocks,
                   shape.blockAt(i % blocks, scratch.block));
    if (status != dnnl_success)
      return status;
  }
  finishSum(kDK, ld.dk, keySum);
  finishSum(kDV, ld.dv, valueSum);
  return dnnl_success;
}

PreparedKernel blocked::prepare(const KernelRequest &r, uint64_t) {
  const AttentionShape shape = AttentionShape::of(r);
  const AttentionScratch scratch = AttentionScratch::of(r);
  const Strides ld = {r.constant("ldq"),  r.constant("ldk"),
                      r.constant("ldv"),  r.constant("ldo"),
                      r.constant("lddo"), r.constant("lddq"),
                      r.constant("lddk"), r.constant("lddv")};
  return makeKernel([=](const LibraryKernelArgs &args) {
    std::atomic<int> failure = dnnl_success;
    const int64_t tasks = shape.batch * shape.keyHeads;
    parallelFor(tasks, shape.slots, [&](int64_t index, int64_t slot) {
      const int64_t batchRow = index / shape.keyHeads;
      const auto *segments = bufferOf<const int32_t>(args, kSegments);
      Task task = {shape,
                   scratch,
                   ld,
                   args,
                   batchRow,
                   index % shape.keyHeads,
                   segments ? segments + batchRow * shape.length : nullptr,
                   bufferOf<float>(args, kWorkspace) + slot * scratch.elements,
                   {},
                   {}};
      const dnnl_status_t status = task.run();
      if (status != dnnl_success)
        failure = status;
    });
    if (failure != dnnl_success)
      return Status::error(StatusCode::kResourceExhausted,
                           "dnnl_sgemm failed with status {} in "
                           "attention_grad",
                           failure.load());
    return Status::ok();
  });
}

} // namespace qlora::cpu::attention_grad
