// SPDX-License-Identifier: MIT

// The requests that each op of Kernels.def accepts, and the workspaces of its
// rows. The compiler plans launches with this code, and the runtime checks
// launches with it. So nothing here depends on a vendor library or a machine.
//
// Every op has
//   plans::<op>::shapes                            see KernelOp
// and every row with QLORA_KERNEL_LIMITS has
//   plans::<op>::<implementation>::limits          see KernelRow
// Kernels.def names the functions for workspaces and tuning.
//
// A compiler bug may put any request into a train.so. So `shapes` must refuse
// every request for which a kernel would access memory outside operands of the
// returned shapes. Sizes saturate instead of wrapping around.

#ifndef QLORA_RUNTIME_KERNELS_PLANS_PLANS_H
#define QLORA_RUNTIME_KERNELS_PLANS_PLANS_H

#include "runtime/Kernels/KernelTable.h"

namespace qlora::plans {

#define QLORA_KERNEL_OP(Op, Operands, Constants, Category, Work)               \
  namespace Op {                                                               \
  OperandShapes shapes(const KernelRequest &);                                 \
  }
#define QLORA_KERNEL_LIMITS(Op, Implementation)                                \
  namespace Op::Implementation {                                               \
  std::optional<std::string> limits(const KernelRequest &);                    \
  }
#define QLORA_KERNEL_WORKSPACE(Op, Implementation, Bytes)                      \
  uint64_t Bytes(const KernelRequest &);
#define QLORA_KERNEL_TUNE(Op, Implementation, Tune)                            \
  void Tune(KernelRequest &, WorkspaceSize);
#include "runtime/Kernels/Kernels.def"

using Reason = std::optional<std::string>;

/// A size that saturates instead of overflowing.
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
  /// Rounds up to a buffer's alignment: a cache line; on CUDA kCudaAlignment.
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

/// Maximum value of a constant that is a count.
inline constexpr int64_t kMaxExtent = int64_t(1) << 40;

inline int64_t dividedUp(int64_t count, int64_t each) {
  return count / each + (count % each != 0);
}

/// Returns the bytes from the first to the last element of [rows, columns] with
/// row stride `ld`.
Size matrixBytes(qlora_dtype dtype, int64_t rows, int64_t columns, int64_t ld);

/// Returns "window must not be negative, got -1" for the constant "window" and
/// `must` = "not be negative".
std::string refusalOf(const KernelRequest &request, std::string_view constant,
                      std::string_view must);
/// Checks that each of these constants is a multiple of `of`.
Reason needMultiples(const KernelRequest &request, int64_t of,
                     std::initializer_list<std::string_view> names);
/// Checks `block` and `double_quant` if the weight `w` is quantized.
Reason needStored(const KernelRequest &request);
/// Checks the cap of scores or logits.
Reason needCap(const KernelRequest &request);

/// Number of f32 values in a row's state in head_part and head_merge: maximum,
/// sum, target, best, and with smoothing the sum of the logits.
inline int64_t headStateNumbers(double smoothing) {
  return smoothing == 0 ? 4 : 5;
}

/// Returns the number of ids that have a vector in the table of an embedding.
inline int64_t tableIds(const KernelRequest &request) {
  const int64_t piece = request.constant("piece");
  return piece ? piece : request.constant("vocab");
}

// Buffers of a workspace ------------------------------------------------------

/// Offset and bytes of a workspace buffer; 0 bytes if the launch does not use
/// it.
struct Part {
  uint64_t offset = 0, bytes = 0;

  explicit operator bool() const { return bytes != 0; }
  /// Returns the buffer's address; null if the launch does not use it.
  template <typename T = uint8_t> T *in(void *workspace) const {
    return bytes ? reinterpret_cast<T *>(static_cast<uint8_t *>(workspace) +
                                         offset)
                 : nullptr;
  }
};

/// Places buffers one after another, each at a multiple of `alignment` bytes: a
/// cache line, or on CUDA kCudaAlignment. Only this class lays out workspaces:
/// a row's workspaceBytes is end(), and its kernel uses the offsets of the
/// buffers.
class WorkspaceLayout {
public:
  explicit constexpr WorkspaceLayout(int64_t alignment = 64, Size begin = 0)
      : alignment(alignment), next(begin.aligned(alignment)) {}
  Part add(Size bytes) {
    const Part part = {next.bytes(), bytes.bytes()};
    next = (next + bytes).aligned(alignment);
    return part;
  }
  /// Returns the bytes of all buffers so far; saturates.
  Size end() const { return next; }

private:
  int64_t alignment;
  Size next;
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_PLANS_H
