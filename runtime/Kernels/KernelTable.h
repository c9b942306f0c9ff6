// SPDX-License-Identifier: MIT

// Kernels.def as data, for the compiler (which picks a row and plans its
// workspace) and for the runtime (which runs it). Depends on nothing but the
// ABI, so that both sides decide from one text.

#ifndef QLORA_RUNTIME_KERNELS_KERNELTABLE_H
#define QLORA_RUNTIME_KERNELS_KERNELTABLE_H

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"

namespace qlora {

/// One operand of a library op, as its Kernels.def row marks it.
struct KernelOperand {
  std::string name;
  bool isRead = false;
  bool isWritten = false;
  bool isOptional = false;
  bool isReadByRows = false; ///< of all its rows only a few are read
  /// In f32 it is rounded to bf16 beside another such operand that is bf16.
  bool mayRound = false;
};

struct KernelRequest;

/// Bytes from the first to the last element that each operand of a request
/// has, in ABI order; 0 for an absent one and for the workspace, which belongs
/// to the row. A size that overflows is UINT64_MAX.
using OperandBytes = std::vector<uint64_t> (*)(const KernelRequest &);

/// A library op: the names of its operands and constants, in ABI order.
struct KernelOp {
  std::string name;
  std::vector<KernelOperand> operands;
  std::vector<std::string> constants; ///< without the `~` mark
  std::vector<bool> isDouble;         ///< constants[i] stores a double's bits
  /// To be asked of a request that a row accepted.
  OperandBytes operandBytes = nullptr;

  /// Position of a constant or operand; asserts that it exists (a name is
  /// always written in our own code).
  unsigned constantIndex(std::string_view constant) const;
  unsigned operandIndex(std::string_view operand) const;
};

/// What one launch asks for: enough to accept or refuse it and to size its
/// workspace. dtypes has one entry per operand; an absent optional operand is
/// nullopt.
struct KernelRequest {
  const KernelOp *op;
  std::vector<std::optional<qlora_dtype>> dtypes;
  std::vector<int64_t> constants;

  int64_t constant(std::string_view name) const {
    return constants[op->constantIndex(name)];
  }
  double constantAsDouble(std::string_view name) const;
  std::optional<qlora_dtype> dtype(std::string_view operand) const {
    return dtypes[op->operandIndex(operand)];
  }
};

/// One implementation of an op.
struct KernelRow {
  const KernelOp *op;
  std::string implementation; ///< "onednn", "reference", ...
  std::string target;         ///< "cpu", "cuda"
  /// nullopt if this row can do it, otherwise why not.
  std::optional<std::string> (*reject)(const KernelRequest &);
  /// Bytes of the `workspace` operand; a promise that the runtime keeps: a
  /// row whose library asks for more at load is passed over.
  uint64_t (*workspaceBytes)(const KernelRequest &);
  /// Chooses the constants that only say how the work is cut: for speed, at
  /// the price of workspace, or for a small workspace. nullptr: the op's own
  /// choice stands.
  void (*tune)(KernelRequest &, bool isSmall) = nullptr;
  /// Its workspace may be much larger than a later row's: where workspaces
  /// are to be small, it is taken with at most kSmallWorkspace bytes.
  bool isRoomy = false;

  std::string fullName() const { return op->name + "." + implementation; }
};

inline constexpr uint64_t kSmallWorkspace = uint64_t(64) << 20;

/// All ops and rows, in the order of Kernels.def. Built once; immutable.
const std::vector<KernelOp> &kernelOps();
const std::vector<KernelRow> &kernelRows();

/// nullptr when there is no such name.
const KernelOp *findKernelOp(std::string_view name);
const KernelRow *findKernelRow(std::string_view fullName);

/// Elements and bytes of dtypes; 0 bits for NF4 (its size needs a layout).
inline unsigned dtypeBits(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_F32:
  case QLORA_DTYPE_I32:
    return 32;
  case QLORA_DTYPE_BF16:
  case QLORA_DTYPE_F16:
    return 16;
  case QLORA_DTYPE_U8:
  case QLORA_DTYPE_I8:
    return 8;
  default:
    return 0;
  }
}
std::string_view dtypeName(qlora_dtype dtype);

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_KERNELTABLE_H
