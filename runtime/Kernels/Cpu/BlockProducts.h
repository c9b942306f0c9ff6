// SPDX-License-Identifier: MIT

// Small matmuls of attention's blocks. Many run at a time, each on one thread.
// f32 operands use a sequential sgemm. bf16 operands use oneDNN's blocked GEMM
// if the CPU has bf16 arithmetic; it is about twice as fast. Sums are f32.

#ifndef QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H
#define QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H

#include <memory>
#include <vector>

#include "runtime/Kernels/Cpu/Gemm.h"

namespace qlora {

/// A range of rows of type BlockProducts::operandType(). bf16 rows are dense.
struct RowView {
  const void *data;
  int64_t ld;
};

/// The scalars and transpositions of c := alpha op(a) . op(b) + beta c.
struct BlockForm {
  bool transposeA = false, transposeB = false;
  float alpha = 1, beta = 0;
};

/// op(a) is [m, k], op(b) [k, n].
struct BlockExtents {
  int64_t m, n, k;
};

class BlockProducts {
public:
  struct Request {
    BlockForm form;
    BlockExtents extents;
  };
  /// Prepares matmuls of values of `dtype` in slots [0, slots), each with
  /// `scratchBytes` of scratch. Operands are bf16 if `dtype` is bf16 and the
  /// CPU and the scratch allow it for all `requests`; otherwise they are f32.
  static std::shared_ptr<const BlockProducts>
  create(const std::vector<Request> &requests, qlora_dtype dtype, int64_t slots,
         uint64_t scratchBytes);

  /// Returns the type of the operands: bf16 or f32.
  qlora_dtype operandType() const { return type; }
  /// Returns the type that operands of values of `dtype` have if the scratch
  /// allows it: bf16 only on a CPU with bf16 arithmetic.
  static qlora_dtype operandTypeOf(qlora_dtype dtype);

  /// Runs one of the requests. c is f32 with row stride `ldc`, which must be n
  /// if operands are bf16. At most one call per slot may run at a time;
  /// `scratch` is aligned to 64 bytes.
  Status run(int64_t slot, const BlockForm &form, const BlockExtents &extents,
             RowView a, RowView b, float *c, int64_t ldc, void *scratch) const;

private:
  qlora_dtype type = QLORA_DTYPE_F32;
  SlotProducts prepared; ///< bf16 only
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H
