// SPDX-License-Identifier: MIT

// The matmul of matmul, panel_matmul and head_loss: prepared once, run often.
//
// A Gemm has one of two implementations, chosen when it is created:
//
//   primitive  oneDNN's blocked GEMM (brgemm): f32 x f32 or bf16 x bf16 over
//              dense matrices. bf16 matrices with gaps are copied to dense
//              ones first; that costs less than leaving the fast path.
//   tiles      everything else (mixed types, f32 with gaps, CPUs without
//              bf16 arithmetic): tiles of c of fixed shape, one task each,
//              each a sequential sgemm; narrow operands are widened tile by
//              tile into the task's scratch.
//
// Result bits do not depend on the number of threads: one thread computes a
// tile, and shapes for which brgemm splits the depth k among threads are
// avoided. Sums are in f32.

#ifndef QLORA_RUNTIME_KERNELS_CPU_GEMM_H
#define QLORA_RUNTIME_KERNELS_CPU_GEMM_H

#include <memory>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Kernels/Plans/Workspaces.h"

namespace qlora {

using plans::GemmProblem;

class Gemm {
public:
  /// Creates a Gemm with at most `scratchBytes` of scratch (gemmWorkspace()
  /// always suffices). Its runs use the number of threads that the caller has
  /// now.
  static StatusOr<std::unique_ptr<Gemm>> create(const GemmProblem &problem,
                                                uint64_t scratchBytes);
  virtual ~Gemm() = default;
  /// c := alpha * op(a) . op(b) + beta * c. `scratch` has the `scratchBytes` of
  /// create(), aligned to 64 bytes.
  virtual Status run(const void *a, const void *b, void *c,
                     uint8_t *scratch) = 0;
};

/// Create a Gemm with one of the two implementations. createGemmPrimitive()
/// returns kUnavailable if this CPU or the scratch does not allow a primitive.
StatusOr<std::unique_ptr<Gemm>> createGemmPrimitive(const GemmProblem &problem,
                                                    uint64_t scratchBytes);
StatusOr<std::unique_ptr<Gemm>> createGemmTiles(const GemmProblem &problem,
                                                uint64_t scratchBytes);

/// c := alpha * op(a) . op(b) + beta * c in f32 by one sgemm of oneDNN, on as
/// many threads as this thread may use. The types in `p` are ignored.
Status multiplyF32(const GemmProblem &p, const float *a, const float *b,
                   float *c);

/// GEMMs of several shapes for concurrent tasks. Each slot has its own Gemm of
/// each shape, because only one thread at a time may use a Gemm.
class SlotProducts {
public:
  /// Prepares a GEMM for each slot, unless the shape was added before.
  /// `create`: Gemm::create or one implementation.
  Status add(const GemmProblem &problem, int64_t slots, uint64_t scratchBytes,
             decltype(Gemm::create) &create = Gemm::create);
  /// Returns a slot's GEMM of a shape that was added.
  Gemm &find(const GemmProblem &problem, int64_t slot) const;

private:
  struct Shape {
    GemmProblem problem;
    std::vector<std::unique_ptr<Gemm>> slots;
  };
  const Shape *shapeOf(const GemmProblem &problem) const;

  std::vector<Shape> shapes;
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_GEMM_H
