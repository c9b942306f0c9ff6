// SPDX-License-Identifier: MIT

// Kernels.def as data, for the compiler (which selects a row and plans its
// workspace) and the runtime (which runs it). Depends only on the ABI, so both
// sides decide from the same table.

#ifndef QLORA_RUNTIME_KERNELS_KERNELTABLE_H
#define QLORA_RUNTIME_KERNELS_KERNELTABLE_H

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ABI/kernel.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/WorkspaceSize.h"

namespace qlora {

/// One operand of a library op, with its marks in Kernels.def.
struct KernelOperand {
  std::string name;
  bool isRead = false;
  bool isWritten = false;
  bool isOptional = false;
  bool isReadByRows = false; ///< whether only a few of its rows are read
  /// Whether an f32 operand may be rounded to bf16. This happens if another
  /// operand that may be rounded is bf16.
  bool mayRound = false;
  /// Allowed types. If empty, the type is that of the operand `like`; a
  /// workspace has any type.
  std::vector<qlora_dtype> types;
  std::string like;
  /// Index of the constant that holds the row stride; dense if empty.
  std::optional<unsigned> stride;
};

struct KernelRequest;

/// Shape of an operand in a request.
struct OperandShape {
  int64_t rows, columns;
};

/// Shapes of all operands in ABI order, or the reason why the request is
/// invalid. A workspace has no shape: its size depends on the row.
struct OperandShapes {
  OperandShapes(std::initializer_list<OperandShape> shapes) : each(shapes) {}
  OperandShapes(std::string refusal) : refusal(std::move(refusal)) {}
  std::vector<OperandShape> each;
  std::optional<std::string> refusal;
};

/// Allowed values of a constant. kCount: an integer in [1, 2^40]; kFlag: 0 or
/// 1; kDouble: the bits of a double; kOther: the op checks the value.
enum class ConstantKind { kCount, kFlag, kDouble, kOther };

/// A library op: the names of its operands and constants, in ABI order.
struct KernelOp {
  std::string name;
  std::vector<KernelOperand> operands;
  std::vector<std::string> constants; ///< names without marks
  std::vector<ConstantKind> kinds;    ///< one per constant
  /// Number of constants that every launch has. A launch without the others has
  /// 0 for them.
  size_t neededConstants = 0;
  /// Computes the shapes for a request whose counts and flags are in range.
  OperandShapes (*shapes)(const KernelRequest &) = nullptr;

  /// Returns the bytes from the first to the last element of each operand, in
  /// ABI order. Absent operands and the workspace have 0 bytes. A size that
  /// overflows is UINT64_MAX. Requires a request that a row accepted.
  std::vector<uint64_t> operandBytes(const KernelRequest &request) const;

  /// Return the index of a constant or operand, and assert that it exists:
  /// names come only from this project's code.
  unsigned constantIndex(std::string_view constant) const;
  unsigned operandIndex(std::string_view operand) const;
};

/// The types and constants of one launch of an op, from which a row accepts or
/// refuses the launch and computes its workspace. `dtypes` has one entry per
/// operand; nullopt for an absent optional operand.
struct KernelRequest {
  const KernelOp *op;
  std::vector<std::optional<qlora_dtype>> dtypes;
  std::vector<int64_t> constants;

  int64_t constant(std::string_view name) const {
    const unsigned index = op->constantIndex(name);
    return index < constants.size() ? constants[index] : 0;
  }
  double constantAsDouble(std::string_view name) const;
  std::optional<qlora_dtype> dtype(std::string_view operand) const {
    return dtypes[op->operandIndex(operand)];
  }
  /// Type of an operand that must be present.
  qlora_dtype type(std::string_view operand) const {
    return dtype(operand).value_or(QLORA_DTYPE_F32);
  }
};

/// One implementation of an op.
struct KernelRow {
  const KernelOp *op;
  std::string implementation; ///< "onednn", "cudnn", ...
  std::string target;         ///< "cpu", "cuda"
  /// Whether the row is an oracle for tests, which computes plain sums. An
  /// oracle is selected only if requested by name.
  bool isOracle = false;
  /// Called by reject(): returns why the row refuses a valid request, or
  /// nullopt. Null if the row accepts all valid requests.
  std::optional<std::string> (*limits)(const KernelRequest &) = nullptr;
  uint64_t (*workspace)(const KernelRequest &) = nullptr;
  /// Sets constants that only control how work is split, for the allowed
  /// workspace. Null if the row keeps the op's values.
  void (*tune)(KernelRequest &, WorkspaceSize) = nullptr;
  /// Whether the row may need a much larger workspace than later rows do. If
  /// workspaces must be small, the row is used only if its workspace has at
  /// most kSmallWorkspace bytes.
  bool isRoomy = false;

  /// Returns nullopt if this row supports the request, otherwise the reason.
  std::optional<std::string> reject(const KernelRequest &request) const;
  /// Returns the bytes of the `workspace` operand. If a library turns out to
  /// need more at load, the runtime uses the op's next row.
  uint64_t workspaceBytes(const KernelRequest &request) const {
    return workspace ? workspace(request) : 0;
  }
  std::string fullName() const { return op->name + "." + implementation; }
};

inline constexpr uint64_t kSmallWorkspace = uint64_t(64) << 20;

/// Return all ops or rows, in the order of Kernels.def. Built once; immutable.
const std::vector<KernelOp> &kernelOps();
const std::vector<KernelRow> &kernelRows();

/// Return the op or row with a name; nullptr if the name is unknown.
const KernelOp *findKernelOp(std::string_view name);
const KernelRow *findKernelRow(std::string_view fullName);

/// Returns the bits per element; 0 for stored formats, which have a layout.
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
