// SPDX-License-Identifier: MIT

// The buffers of a generated program.kernel, according to its attributes.

#ifndef QLORA_COMPILER_CODEGEN_ROWOPERANDS_H
#define QLORA_COMPILER_CODEGEN_ROWOPERANDS_H

#include "compiler/Codegen/KernelSpelling.h"
#include "dialects/Program/Program.h"

namespace qlora {

/// One buffer of a generated kernel: inputs first, then results.
struct RowOperand {
  model::MapKind kind = model::MapKind::Full;
  int64_t group = 1; ///< map parameter: rows that share a scalar or a group
  qlora_dtype dtype = QLORA_DTYPE_F32;
  int64_t stride = 0; ///< elements from one row of the tensor to the next
  int64_t groups = 1; ///< kernel rows in one row of the tensor
  int64_t width = 0;  ///< elements of a row of the tensor
  bool isResult = false;

  /// Returns how many bytes of a buffer of `bytes` lie between its rows.
  uint64_t skippedBytes(uint64_t bytes) const;
  /// Returns the element offset of kernel row `row` as C++; empty for 0.
  std::string offset(int64_t columns, const KernelSpelling &spelling) const;
};

/// Reads and checks the attributes. Emits an error if a kernel lacks some, or
/// if they do not fit together.
llvm::FailureOr<llvm::SmallVector<RowOperand>>
rowOperands(program::KernelOp kernel);

} // namespace qlora

#endif // QLORA_COMPILER_CODEGEN_ROWOPERANDS_H
