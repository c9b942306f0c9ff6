// SPDX-License-Identifier: MIT

// An arena that is being filled, wherever its memory is. Parameters go through
// it a part at a time: in place where the arena is memory of this process,
// else through one buffer that is as large as the largest part. What is not
// what the file has comes through a window, one for all parameters.
//
//   const auto sink = openArena(device, module, QLORA_ARENA_FROZEN);
//   std::span<uint8_t> part = sink->map(offset, bytes);
//   ... write all of part ...
//   QLORA_RETURN_IF_ERROR(sink->commit());

#ifndef QLORA_RUNTIME_WEIGHTS_ARENASINK_H
#define QLORA_RUNTIME_WEIGHTS_ARENASINK_H

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/Base/HostMemory.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Weights/QuantizeWeight.h"

namespace qlora {

class ArenaSink {
public:
  virtual ~ArenaSink() = default;
  /// Of the whole arena.
  virtual uint64_t bytes() const = 0;
  /// Memory for bytes [offset, offset + count) of the arena; what is in it is
  /// not what the arena holds. Valid until the next call.
  virtual std::span<uint8_t> map(uint64_t offset, uint64_t count) = 0;
  /// The mapped part is written and reaches the arena.
  virtual Status commit() = 0;
  /// Fills a weight that its file has not quantised; on the host unless the arena
  /// knows better.
  virtual Status quantize(const UnquantizedWeight &weight);
  /// Memory of this process for bytes of a file on their way; at least `count`
  /// of them. Valid until the next call.
  StatusOr<std::span<uint8_t>> window(uint64_t count);

private:
  HostMemory windowMemory;
};

/// Memory of this process, which outlives the sink.
class HostArena final : public ArenaSink {
public:
  explicit HostArena(std::span<uint8_t> arena) : arena(arena) {}
  uint64_t bytes() const override { return arena.size(); }
  std::span<uint8_t> map(uint64_t offset, uint64_t count) override {
    return arena.subspan(offset, count);
  }
  Status commit() override { return Status::ok(); }

private:
  std::span<uint8_t> arena;
};

/// An arena that a device, which outlives the sink, keeps elsewhere. Weights
/// are quantised there where `scratch` is enough, else on the host, and a
/// remark of the device says so.
class DeviceArena final : public ArenaSink {
public:
  DeviceArena(Device &device, uint32_t arena, uint64_t size,
              ScratchMemory scratch)
      : device(device), arena(arena), size(size), scratch(scratch) {}
  uint64_t bytes() const override { return size; }
  std::span<uint8_t> map(uint64_t offset, uint64_t count) override;
  Status commit() override;
  Status quantize(const UnquantizedWeight &weight) override;

private:
  Device &device;
  const uint32_t arena;
  const uint64_t size;
  const ScratchMemory scratch;
  bool hasRemarked = false;
  std::vector<uint8_t> buffer;
  uint64_t mappedOffset = 0;
  uint64_t mappedBytes = 0;
};

/// The arena of a kind on the device that has loaded `module`; one of no
/// bytes where the module has none.
std::unique_ptr<ArenaSink> openArena(Device &device, const LoadedModule &module,
                                     qlora_arena_kind kind);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_ARENASINK_H
