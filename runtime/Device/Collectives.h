// SPDX-License-Identifier: MIT

// The interface of a group of ranks. A program's collectives are data: a kind,
// an element type and operands (see module.h). run() executes one of them on a
// device's communication thread. The session calls allGather() between steps to
// exchange host data, never at the same time as run().
//
// CPU ranks use RingCollectives. GPUs use NCCL (Cuda/NcclCollectives.h); their
// host processes also form a ring, to find each other and to detect lost ranks.

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

/// The arguments of one collective on one rank: `to` is received, or changed in
/// place (ALL_REDUCE, BROADCAST); `from` is sent. On a GPU, both are spans of
/// device addresses.
struct CollectiveCall {
  qlora_collective kind = QLORA_COLLECTIVE_ALL_REDUCE;
  qlora_dtype dtype = QLORA_DTYPE_F32;
  int peer = 0;
  std::span<uint8_t> to;
  std::span<const uint8_t> from;

  /// Returns the call for a command whose operands are at `addresses`.
  static CollectiveCall of(const LoadedModule &module,
                           const qlora_command &command,
                           std::span<void *const> addresses);
};

/// Checks that `ranks` is a multiple of the ranks in the module's mesh. If the
/// module was compiled for a number of ranks, `ranks` must be that number.
Status checkMesh(const LoadedModule &module, int ranks);

/// Checks a program's collectives (operands, peers) against the groups' sizes.
Status checkCollectives(const LoadedModule &module, const GroupSizes &sizes);

/// One group of ranks. Every rank makes the same calls in the same order.
class Collectives {
public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Runs a collective; blocks until this rank may use the operands again. Sums
  /// have one fixed order, so all ranks get the same bits. Returns kAborted if
  /// another rank failed.
  virtual Status run(const CollectiveCall &call) = 0;
  /// Returns the texts of all ranks in rank order; each may have any length.
  /// Blocks until every rank has called allGather().
  virtual StatusOr<std::vector<std::string>>
  allGather(std::string_view mine) = 0;
  /// Returns kAborted if another rank has failed or ended. Does not block.
  /// Called between other calls, from the same thread.
  virtual Status checkOthers() { return Status::ok(); }
  /// Returns how long a rank waits for the slowest rank.
  virtual std::chrono::milliseconds timeout() const {
    return std::chrono::hours(1);
  }
  /// Makes blocked calls return kAborted, on this rank and on other ranks. Any
  /// thread may call abort() at any time; no other method allows that.
  virtual void abort() = 0;

  /// Blocks until every rank has called barrier().
  Status barrier() { return allGather({}).status(); }

  /// Gathers trivially copyable values; see allGather().
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

/// A rank's collectives per enum qlora_group; null if the group has one rank.
using GroupCollectives = std::array<Collectives *, QLORA_GROUP_COUNT>;

/// A group of one rank: sends nothing, and leaves sums unchanged.
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
