// SPDX-License-Identifier: MIT

// Shape and operands that head_loss and head_loss_grad share, and the check
// of their targets.

#ifndef QLORA_RUNTIME_KERNELS_CPU_HEADTARGETS_H
#define QLORA_RUNTIME_KERNELS_CPU_HEADTARGETS_H

#include "runtime/Kernels/Cpu/CpuKernels.h"

namespace qlora {

/// A row without a label.
inline constexpr int32_t kNoTarget = -100;

struct HeadShape {
  int64_t rows, hidden, vocab, ldh, lddh;
  qlora_dtype hiddenType, weightType, dhiddenType;

  static HeadShape of(const KernelRequest &request);
};

/// Buffers by name; null where the op or the launch has none.
struct HeadOperands {
  const void *hidden, *w;
  const int32_t *targets;
  float *loss, *count;
  int32_t *correct;
  void *dhidden = nullptr;
  float *dw = nullptr;

  static HeadOperands of(const LibraryKernelArgs &args, bool hasGradient);
};

/// Data was checked before; so a target outside of the vocabulary is an
/// internal error that names the row.
Status checkTargets(const HeadShape &shape, const int32_t *targets);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_HEADTARGETS_H
