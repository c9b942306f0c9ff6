// SPDX-License-Identifier: MIT

// What each op of Kernels.def accepts, and the workspaces of its rows: how a
// launch will be done, as far as it is known before there is a machine. One
// text for the compiler, which plans with it, and for the runtime, which checks
// with it; so nothing here knows a vendor library.
//
// Every op has
//   plans::<op>::shapes                            see KernelOp
// and a row, where the table says so,
//   plans::<op>::<implementation>::limits          see KernelRow
// and the functions that it names for its workspace and for tuning.
//
// A request may come from a hostile train.so: shapes must say no to every
// request for which a kernel would read or write outside of such operands, and
// sizes saturate instead of wrapping around.

#ifndef QLORA_RUNTIME_KERNELS_PLANS_PLANS_H
#define QLORA_RUNTIME_KERNELS_PLANS_PLANS_H

#include "runtime/Kernels/KernelTable.h"

namespace qlora::plans {

#define QLORA_KERNEL_OP(Op, Operands, Constants)                               \
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

/// "window must not be negative, got -1": a constant, what it must be, and
/// what it is.
std::string refusalOf(const KernelRequest &request, std::string_view constant,
                      std::string_view must);
/// What is wrong with the constants of a weight `w` that is quantised.
Reason needStored(const KernelRequest &request);
/// What is wrong with the cap of scores or logits.
Reason needCap(const KernelRequest &request);

/// Of a row's state in head_part and head_merge: maximum, sum, target, best.
inline constexpr int64_t kHeadStateNumbers = 4;

/// Ids that the table of an embedding has vectors of.
inline int64_t tableIds(const KernelRequest &request) {
  const int64_t piece = request.constant("piece");
  return piece ? piece : request.constant("vocab");
}

// Parts of a workspace --------------------------------------------------------

/// Where a part of a workspace begins, and its bytes: 0 for one that a launch
/// has not.
struct Part {
  uint64_t offset = 0, bytes = 0;

  explicit operator bool() const { return bytes != 0; }
  /// Its address; null for what the launch has not.
  template <typename T = uint8_t> T *in(void *workspace) const {
    return bytes ? reinterpret_cast<T *>(static_cast<uint8_t *>(workspace) +
                                         offset)
                 : nullptr;
  }
};

/// Puts parts one behind the other, each at a multiple of `alignment` bytes: a
/// cache line, and more on CUDA (CudaWorkspaces.h). The one place where a
/// workspace is cut: a row's workspaceBytes is end(), and its kernel finds the
/// parts by their offsets.
class WorkspaceLayout {
public:
  explicit constexpr WorkspaceLayout(int64_t alignment = 64, Size begin = 0)
      : alignment(alignment), next(begin.aligned(alignment)) {}
  Part add(Size bytes) {
    const Part part = {next.bytes(), bytes.bytes()};
    next = (next + bytes).aligned(alignment);
    return part;
  }
  /// Of all parts so far; saturates.
  Size end() const { return next; }

private:
  int64_t alignment;
  Size next;
};

} // namespace qlora::plans

#endif // QLORA_RUNTIME_KERNELS_PLANS_PLANS_H
