// SPDX-License-Identifier: MIT

// A matmul by tiles of a fixed shape: any types, strides and CPU.

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cassert>

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/Gemm.h"
#include "runtime/Kernels/Cpu/InstructionLimit.h"
#include "runtime/Kernels/Cpu/Parallel.h"

namespace qlora {

using plans::GemmTile;
using plans::kGemmSlots;

namespace {

class GemmTiles final : public Gemm {
public:
  GemmTiles(const GemmProblem &problem, int64_t slots)
      : p(problem), tile(GemmTile::of(problem)), tasks(slots) {}
  Status run(const void *a, const void *b, void *c, uint8_t *scratch) override;

private:
  /// An f32 view of a tile of a matrix.
  struct Piece {
    const float *data;
    int64_t ld;
  };
  Piece piece(const void *matrix, qlora_dtype dtype, int64_t ld, int64_t row,
              int64_t column, int64_t rows, int64_t columns,
              float *scratch) const;
  Status runTile(int64_t row, int64_t column, const void *a, const void *b,
                 void *c, uint8_t *scratch) const;

  GemmProblem p;
  GemmTile tile;
  FallibleTasks tasks;
};

} // namespace

Status multiplyF32(const GemmProblem &p, const float *a, const float *b,
                   float *c) {
  const dnnl_status_t status =
      dnnl_sgemm(p.transposeA ? 'T' : 'N', p.transposeB ? 'T' : 'N', p.m, p.n,
                 p.k, p.alpha, a, p.lda, b, p.ldb, p.beta, c, p.ldc);
  if (status == dnnl_success)
    return Status::ok();
  return Status::error(StatusCode::kResourceExhausted,
                       "dnnl_sgemm failed with status {} for {} x {} x {}",
                       int(status), p.m, p.n, p.k);
}

GemmTiles::Piece GemmTiles::piece(const void *matrix, qlora_dtype dtype,
                                  int64_t ld, int64_t row, int64_t column,
                                  int64_t rows, int64_t columns,
                                  float *scratch) const {
  if (dtype == QLORA_DTYPE_F32)
    return {static_cast<const float *>(matrix) + row * ld + column, ld};
  for (int64_t i = 0; i < rows; ++i)
    widen(dtype, elementAt(matrix, dtype, (row + i) * ld + column),
          scratch + i * columns, columns);
  return {scratch, columns};
}

Status GemmTiles::runTile(int64_t row, int64_t column, const void *a,
                          const void *b, void *c, uint8_t *scratch) const {
  const int64_t rows = std::min(tile.rows, p.m - row);
  const int64_t columns = std::min(tile.columns, p.n - column);
  auto *aScratch = tile.a.in<float>(scratch);
  auto *bScratch = tile.b.in<float>(scratch);
  const bool isDirect = !tile.c;
  float *sum = isDirect ? static_cast<float *>(c) + row * p.ldc + column
                        : tile.c.in<float>(scratch);
  GemmProblem part = p;
  part.m = rows;
  part.n = columns;
  part.ldc = isDirect ? p.ldc : columns;
  for (int64_t from = 0; from < p.k; from += tile.depth) {
    const int64_t depth = std::min(tile.depth, p.k - from);
    const Piece left =
        p.transposeA ? piece(a, p.a, p.lda, from, row, depth, rows, aScratch)
                     : piece(a, p.a, p.lda, row, from, rows, depth, aScratch);
    const Piece right =
        p.transposeB
            ? piece(b, p.b, p.ldb, column, from, columns, depth, bScratch)
            : piece(b, p.b, p.ldb, from, column, depth, columns, bScratch);
    part.k = depth;
    part.lda = left.ld;
    part.ldb = right.ld;
    part.beta = from > 0 ? 1.0f : isDirect ? p.beta : 0.0f;
    QLORA_RETURN_IF_ERROR(multiplyF32(part, left.data, right.data, sum));
  }
  for (int64_t i = 0; !isDirect && i < rows; ++i)
    narrowSum(sum + i * columns, p.beta, p.c,
              elementAt(c, p.c, (row + i) * p.ldc + column), columns);
  return Status::ok();
}

Status GemmTiles::run(const void *a, const void *b, void *c, uint8_t *scratch) {
  const int64_t down = (p.m + tile.rows - 1) / tile.rows;
  const int64_t across = (p.n + tile.columns - 1) / tile.columns;
  return tasks.run(down * across, [&](int64_t index, int64_t slot) {
    return runTile(index / across * tile.rows, index % across * tile.columns, a,
                   b, c, scratch + slot * static_cast<int64_t>(tile.bytes));
  });
}

StatusOr<std::unique_ptr<Gemm>> createGemmTiles(const GemmProblem &problem,
                                                uint64_t scratchBytes) {
  limitInstructions();
  const uint64_t bytes = GemmTile::of(problem).bytes;
  int64_t slots = kGemmSlots;
  if (bytes > 0)
    slots =
        std::min<int64_t>(slots, static_cast<int64_t>(scratchBytes / bytes));
  if (slots < 1)
    return Status::unavailable("a tile needs {} bytes of scratch, got {}",
                               bytes, scratchBytes);
  return std::unique_ptr<Gemm>(std::make_unique<GemmTiles>(problem, slots));
}

StatusOr<std::unique_ptr<Gemm>> Gemm::create(const GemmProblem &problem,
                                             uint64_t scratchBytes) {
  auto primitive = createGemmPrimitive(problem, scratchBytes);
  if (primitive.isOk() || primitive.status().code() != StatusCode::kUnavailable)
    return primitive;
  return createGemmTiles(problem, scratchBytes);
}

const SlotProducts::Shape *
SlotProducts::shapeOf(const GemmProblem &problem) const {
  const auto found = std::ranges::find(shapes, problem, &Shape::problem);
  return found == shapes.end() ? nullptr : &*found;
}

Status SlotProducts::add(const GemmProblem &problem, int64_t slots,
                         uint64_t scratchBytes,
                         decltype(Gemm::create) &create) {
  if (shapeOf(problem))
    return Status::ok();
  const ScopedThreads sequential(1);
  Shape shape = {problem, {}};
  for (int64_t slot = 0; slot < slots; ++slot) {
    QLORA_ASSIGN_OR_RETURN(shape.slots.emplace_back(),
                           create(problem, scratchBytes));
  }
  shapes.push_back(std::move(shape));
  return Status::ok();
}

Gemm &SlotProducts::find(const GemmProblem &problem, int64_t slot) const {
  const Shape *shape = shapeOf(problem);
  assert(shape && "one of those that were added");
  return *shape->slots[static_cast<size_t>(slot)];
}

} // namespace qlora
