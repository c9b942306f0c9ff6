// SPDX-License-Identifier: MIT

// The small products that attention makes of its blocks, many at a time, each
// by one thread. f32 by a sequential sgemm; bf16, where the CPU multiplies it,
// by oneDNN's blocked GEMM, which is prepared for each shape: about twice as
// fast. Sums are in f32 either way.

#ifndef QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H
#define QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H

#include <memory>
#include <vector>

#include "runtime/Kernels/Cpu/Gemm.h"

namespace qlora {

/// A run of rows, of BlockProducts::operandType(). bf16 has no gaps.
struct RowView {
  const void *data;
  int64_t ld;
};

/// c := alpha op(a) . op(b) + beta c.
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
  /// Products of values of `dtype` in slots [0, slots), each with
  /// `scratchBytes` of scratch. bf16 needs all of `requests`; where the CPU or
  /// the scratch does not allow one, operands are f32.
  static std::shared_ptr<const BlockProducts>
  create(const std::vector<Request> &requests, qlora_dtype dtype, int64_t slots,
         uint64_t scratchBytes);

  /// bf16 or f32.
  qlora_dtype operandType() const { return type; }

  /// One of the requests, into f32 rows with stride `ldc` (bf16: n). At most
  /// one call per slot at a time; `scratch` is aligned to 64.
  Status run(int64_t slot, const BlockForm &form, const BlockExtents &extents,
             RowView a, RowView b, float *c, int64_t ldc, void *scratch) const;

private:
  qlora_dtype type = QLORA_DTYPE_F32;
  SlotProducts prepared; ///< bf16 only
};

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_BLOCKPRODUCTS_H
