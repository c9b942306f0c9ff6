// SPDX-License-Identifier: MIT

// One matrix product, prepared once and run often; what matmul, panel_matmul
// and head_loss are made of.
//
// Two ways, chosen when created:
//
//   primitive  oneDNN's blocked GEMM (brgemm): f32 x f32 or bf16 x bf16 over
//              dense matrices. bf16 matrices with gaps are copied to dense
//              ones first; that costs less than leaving the fast path.
//   tiles      everything else (mixed types, f32 with gaps, CPUs without
//              bf16 arithmetic): tiles of c of fixed shape, one task each,
//              by a sequential sgemm; narrow operands are widened piece by
//              piece into the task's scratch.
//
// Both give bits that do not depend on the number of threads: a tile is
// computed by one thread, and the shapes for which brgemm shares the depth k
// among threads are avoided. Sums are in f32.

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
  /// With at most `scratchBytes` of scratch; gemmWorkspace(problem) is
  /// always enough. Takes the number of threads from the calling thread.
  static StatusOr<std::unique_ptr<Gemm>> create(const GemmProblem &problem,
                                                uint64_t scratchBytes);
  virtual ~Gemm() = default;
  /// c := alpha * op(a) . op(b) + beta * c. `scratch` has the bytes given to
  /// create, aligned to 64.
  virtual Status run(const void *a, const void *b, void *c,
                     uint8_t *scratch) = 0;
};

/// The two ways. A primitive that this CPU or scratch does not allow is
/// kUnavailable.
StatusOr<std::unique_ptr<Gemm>> createGemmPrimitive(const GemmProblem &problem,
                                                    uint64_t scratchBytes);
StatusOr<std::unique_ptr<Gemm>> createGemmTiles(const GemmProblem &problem,
                                                uint64_t scratchBytes);

/// c := alpha * op(a) . op(b) + beta * c in f32 by one sgemm of oneDNN, on as
/// many threads as this thread may use. Of `p` only the types are not heeded.
Status multiplyF32(const GemmProblem &p, const float *a, const float *b,
                   float *c);

/// Products of some shapes for tasks that run at the same time: one of each
/// shape for every slot, since its memory objects are those of one thread.
class SlotProducts {
public:
  /// Prepares a shape, unless it was before, by `create` (Gemm::create, or one
  /// way).
  Status add(const GemmProblem &problem, int64_t slots, uint64_t scratchBytes,
             decltype(Gemm::create) &create = Gemm::create);
  /// Of a shape that was added.
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
