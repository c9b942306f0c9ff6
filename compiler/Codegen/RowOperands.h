// SPDX-License-Identifier: MIT

// The buffers of a generated program.kernel, according to its attributes.

#ifndef QLORA_COMPILER_CODEGEN_ROWOPERANDS_H
#define QLORA_COMPILER_CODEGEN_ROWOPERANDS_H

#include "compiler/Codegen/KernelSpelling.h"
#include "dialects/Program/Program.h"

namespace qlora {

/// A buffer of a generated kernel: an input or a result.
struct RowOperand {
  model::MapKind kind = model::MapKind::Full;
  /// For MapKind::Scalar and MapKind::Group: number of consecutive kernel rows
  /// that read the same scalar, or the same row of the tensor.
  int64_t group = 1;
  qlora_dtype dtype = QLORA_DTYPE_F32;
  int64_t stride = 0; ///< elements from one row of the tensor to the next
  int64_t groups = 1; ///< kernel rows in one row of the tensor
  int64_t width = 0;  ///< elements of a row of the tensor
  bool isResult = false;

  /// Returns how many of a buffer's `bytes` are gaps between rows.
  uint64_t skippedBytes(uint64_t bytes) const;
  /// Returns C++ for the element offset of kernel row `row`; empty for 0.
  std::string offset(int64_t columns, const KernelSpelling &spelling) const;
};

/// Returns the operands that the kernel's attributes describe: inputs first,
/// then results. Emits an error if attributes are missing or contradict each
/// other.
llvm::FailureOr<llvm::SmallVector<RowOperand>>
rowOperands(program::KernelOp kernel);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWOPERANDS_H
