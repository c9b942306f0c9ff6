// SPDX-License-Identifier: MIT

// What ranks do together. A program's collectives are data: a kind, an element
// type and operands (module.h has their meanings); run() is one of them, called
// by a device's communication thread. allGather() is for what hosts tell each
// other, called by the session between steps, never at the same time.
//
// Ranks of CPUs are RingCollectives. GPUs work among themselves
// (Cuda/NcclCollectives.h) and have a ring of their hosts to find each other
// and to notice a rank that is gone.

#ifndef QLORA_RUNTIME_DEVICE_COLLECTIVES_H
#define QLORA_RUNTIME_DEVICE_COLLECTIVES_H

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/ABI/module.h"
#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"

namespace qlora {

/// One collective as one rank sees it. What is changed in place (ALL_REDUCE,
/// BROADCAST) or received is `to`, what is only sent `from`. On a GPU these are
/// addresses of the card.
struct CollectiveCall {
  qlora_collective kind = QLORA_COLLECTIVE_ALL_REDUCE;
  qlora_dtype dtype = QLORA_DTYPE_F32;
  int peer = 0;
  std::span<uint8_t> to;
  std::span<const uint8_t> from;

  /// The call of a command, whose operands lie at `addresses`.
  static CollectiveCall of(const LoadedModule &module,
                           const qlora_command &command,
                           std::span<void *const> addresses);
};

/// Of a collective's larger operand, which has the pieces of all ranks where
/// there are pieces.
uint64_t collectiveBytes(const LoadedModule &module,
                         const qlora_command &command);

/// Whether so many ranks can run a module together: they are a multiple of its
/// mesh.
Status checkMesh(const LoadedModule &module, int ranks);

/// Whether the collectives of a program are for groups of so many ranks: those
/// whose shapes know it.
Status checkCollectives(const LoadedModule &module, const GroupSizes &sizes);

/// One group of ranks. Every rank makes the same calls in the same order.
class Collectives {
public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Blocks until the operands are this rank's again. Sums are in one order, so
  /// that all ranks have the same bits. kAborted when another rank failed.
  virtual Status run(const CollectiveCall &call) = 0;
  /// The texts of all ranks, each of any length, in their order. Returns when
  /// every rank has called it.
  virtual StatusOr<std::vector<std::string>>
  allGather(std::string_view mine) = 0;
  /// kAborted once another rank is known to have failed or ended; does not
  /// block. Between other calls, from their thread.
  virtual Status checkOthers() { return Status::ok(); }
  /// How long a rank waits for the slowest one.
  virtual std::chrono::milliseconds timeout() const {
    return std::chrono::hours(1);
  }
  /// Makes calls that are blocked, here and on other ranks, return kAborted.
  /// The one method that any thread may call at any time.
  virtual void abort() = 0;

  /// Returns when every rank has called it.
  Status barrier() { return allGather({}).status(); }

  /// allGather() of values without pointers.
  template <typename T>
  StatusOr<std::vector<std::vector<T>>>
  allGatherValues(std::span<const T> mine) {
    static_assert(std::is_trivially_copyable_v<T>);
    QLORA_ASSIGN_OR_RETURN(
        const std::vector<std::string> texts,
        allGather({reinterpret_cast<const char *>(mine.data()),
                   mine.size_bytes()}));
    std::vector<std::vector<T>> values;
    for (const std::string &text : texts) {
      values.emplace_back(text.size() / sizeof(T));
      if (!text.empty())
        std::memcpy(values.back().data(), text.data(),
                    values.back().size() * sizeof(T));
    }
    return values;
  }
};

/// What a rank has of each enum qlora_group; null: it is alone there.
using GroupCollectives = std::array<Collectives *, QLORA_GROUP_COUNT>;

/// A group of one: nothing is sent, a sum is what it was.
class SingleRank final : public Collectives {
public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status run(const CollectiveCall &call) override;
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override {
    return std::vector<std::string>{std::string(mine)};
  }
  void abort() override {}
};

} // namespace qlora

#endif // QLORA_RUNTIME_DEVICE_COLLECTIVES_H
