// SPDX-License-Identifier: MIT

// What each row of Kernels.def accepts, and the bytes it needs. One text for
// the compiler, which plans with it, and for the runtime, which checks with
// it; so nothing here knows a vendor library.
//
// Every op has
//   requests::<op>::operandBytes   see KernelOp
// and every row
//   requests::<op>::<implementation>::reject          see KernelRow
//   requests::<op>::<implementation>::workspaceBytes
//   requests::<op>::<implementation>::tune            where the table says so
//
// A request may come from a hostile train.so: reject must say no to every
// request for which the kernel would read or write outside of buffers of
// operandBytes, and sizes saturate instead of wrapping around.

#ifndef QLORA_RUNTIME_KERNELS_REQUESTS_REQUESTS_H
#define QLORA_RUNTIME_KERNELS_REQUESTS_REQUESTS_H

#include <initializer_list>

#include "runtime/Kernels/KernelTable.h"

namespace qlora::requests {

#define QLORA_KERNEL_OP(Op, Operands, Constants)                               \
  namespace Op {                                                               \
  std::vector<uint64_t> operandBytes(const KernelRequest &);                   \
  }
#define QLORA_KERNEL(Op, Implementation, Target)                               \
  namespace Op::Implementation {                                               \
  std::optional<std::string> reject(const KernelRequest &);                    \
  uint64_t workspaceBytes(const KernelRequest &);                              \
  }
#define QLORA_KERNEL_TUNE(Op, Implementation)                                  \
  namespace Op::Implementation {                                               \
  void tune(KernelRequest &, bool isSmall);                                    \
  }
#include "runtime/Kernels/Kernels.def"

using Reason = std::optional<std::string>;

/// A size that sticks at its maximum instead of overflowing.
class Size {
public:
  constexpr Size(int64_t value)
      : value(value < 0 ? kMaximum : static_cast<uint64_t>(value)) {}
  friend constexpr Size operator*(Size a, Size b) {
    Size product = 0;
    if (__builtin_mul_overflow(a.value, b.value, &product.value))
      product.value = kMaximum;
    return product;
  }
  friend constexpr Size operator+(Size a, Size b) {
    Size sum = 0;
    if (__builtin_add_overflow(a.value, b.value, &sum.value))
      sum.value = kMaximum;
    return sum;
  }
  /// Rounded up to the alignment of a workspace part: a cache line, and more
  /// on CUDA (CudaWorkspaces.h).
  constexpr Size aligned(int64_t to = 64) const {
    Size padded = *this + Size(to - 1);
    if (padded.value != kMaximum)
      padded.value -= padded.value % static_cast<uint64_t>(to);
    return padded;
  }
  constexpr uint64_t bytes() const { return value; }

  static constexpr uint64_t kMaximum = ~uint64_t(0);

private:
  uint64_t value;
};

/// Bytes from the first to the last element of [rows, columns] with row
/// stride `ld`.
Size matrixBytes(qlora_dtype dtype, int64_t rows, int64_t columns, int64_t ld);

/// Bytes of a weight [rows, columns], which may be NF4.
Size weightBytes(const KernelRequest &request, std::string_view operand);

/// dtype of an operand that must be there; F32 if it is absent, which
/// `needPresent` refuses.
qlora_dtype typeOf(const KernelRequest &request, std::string_view operand);

/// The number of entries fits the op, and only optional operands are absent.
Reason needShape(const KernelRequest &request);

/// Each named constant is in [1, 2^40].
Reason needPositive(const KernelRequest &request,
                    std::initializer_list<std::string_view> constants);

/// Each named constant is 0 or 1.
Reason needFlag(const KernelRequest &request,
                std::initializer_list<std::string_view> constants);

/// Row stride `ld` holds `columns` elements and is at most 2^40.
Reason needStride(const KernelRequest &request, std::string_view ld,
                  int64_t columns);

/// The operand, if present, has one of the types.
Reason needType(const KernelRequest &request, std::string_view operand,
                std::initializer_list<qlora_dtype> types);

/// The constant `block` is what NF4Layout can describe.
Reason needBlock(const KernelRequest &request);

/// NF4 constants are what NF4Layout can describe, when `operand` is NF4.
Reason needNF4(const KernelRequest &request, std::string_view operand);

/// No operand's size saturated.
Reason needAddressable(const KernelRequest &request);

/// The first objection of a list, each asked only if none came before.
template <typename... Checks> Reason firstOf(Checks... checks) {
  Reason reason;
  ((reason = checks(), reason.has_value()) || ...);
  return reason;
}

} // namespace qlora::requests

#endif // QLORA_RUNTIME_KERNELS_REQUESTS_REQUESTS_H
