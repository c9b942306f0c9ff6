// SPDX-License-Identifier: MIT

// Kernels.def as data, for the compiler (which picks a row and plans its
// workspace) and for the runtime (which runs it). Depends on nothing but the
// ABI, so that both sides decide from one text.

#ifndef QLORA_RUNTIME_KERNELS_KERNELTABLE_H
#define QLORA_RUNTIME_KERNELS_KERNELTABLE_H

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/WorkspaceSize.h"

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
  /// Those that it may have; empty: that of the operand `like`, or, of a
  /// workspace, any.
  std::vector<qlora_dtype> types;
  std::string like;
};

struct KernelRequest;

/// What an operand is in a request: [rows, columns], with the row stride that
/// a constant names, or without gaps.
struct OperandShape {
  int64_t rows, columns;
  std::string_view stride = {};
};

/// The shapes of all operands, in ABI order (a workspace has none: it belongs
/// to the row), or why the request has none.
struct OperandShapes {
  OperandShapes(std::initializer_list<OperandShape> shapes) : each(shapes) {}
  OperandShapes(std::string refusal) : refusal(std::move(refusal)) {}
  std::vector<OperandShape> each;
  std::optional<std::string> refusal;
};

/// What a constant may be: a number in [1, 2^40], 0 or 1, the bits of a
/// double, or what the op says.
enum class ConstantKind { kCount, kFlag, kDouble, kOther };

/// A library op: the names of its operands and constants, in ABI order.
struct KernelOp {
  std::string name;
  std::vector<KernelOperand> operands;
  std::vector<std::string> constants; ///< without their marks
  std::vector<ConstantKind> kinds;    ///< of the constants
  /// Of a request whose counts and flags are what they may be.
  OperandShapes (*shapes)(const KernelRequest &) = nullptr;

  /// Bytes from the first to the last element that each operand of a request
  /// has, in ABI order; 0 for an absent one and for the workspace. A size that
  /// overflows is UINT64_MAX. To be asked of a request that a row accepted.
  std::vector<uint64_t> operandBytes(const KernelRequest &request) const;

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
  /// The same of an operand that must be there.
  qlora_dtype type(std::string_view operand) const {
    return dtype(operand).value_or(QLORA_DTYPE_F32);
  }
};

/// One implementation of an op.
struct KernelRow {
  const KernelOp *op;
  std::string implementation; ///< "onednn", "cudnn", ...
  std::string target;         ///< "cpu", "cuda"
  /// Plain sums that tests compare with; taken only where it is asked for.
  bool isOracle = false;
  /// Why it refuses a request that is valid, if it refuses some; and its
  /// workspace, if it needs one: what reject and workspaceBytes ask.
  std::optional<std::string> (*limits)(const KernelRequest &) = nullptr;
  uint64_t (*workspace)(const KernelRequest &) = nullptr;
  /// Chooses the constants that only say how the work is cut: for speed, at
  /// the price of workspace, or for a small workspace. nullptr: the op's own
  /// choice stands.
  void (*tune)(KernelRequest &, WorkspaceSize) = nullptr;
  /// Its workspace may be much larger than a later row's: where workspaces
  /// are to be small, it is taken with at most kSmallWorkspace bytes.
  bool isRoomy = false;

  /// nullopt if this row can do it, otherwise why not.
  std::optional<std::string> reject(const KernelRequest &request) const;
  /// Bytes of the `workspace` operand; a promise that the runtime keeps: a
  /// row whose library asks for more at load is passed over.
  uint64_t workspaceBytes(const KernelRequest &request) const {
    return workspace ? workspace(request) : 0;
  }
  std::string fullName() const { return op->name + "." + implementation; }
};

inline constexpr uint64_t kSmallWorkspace = uint64_t(64) << 20;

/// All ops and rows, in the order of Kernels.def. Built once; immutable.
const std::vector<KernelOp> &kernelOps();
const std::vector<KernelRow> &kernelRows();

/// nullptr when there is no such name.
const KernelOp *findKernelOp(std::string_view name);
const KernelRow *findKernelRow(std::string_view fullName);

/// Elements and bytes of dtypes; 0 bits for stored formats (their size needs a
/// layout).
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
