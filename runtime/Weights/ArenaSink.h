// SPDX-License-Identifier: MIT

// Interfaces to fill an arena, in this process or on a device. Parameters are
// written one range at a time: in place if the arena is memory of this process,
// else through a buffer as large as the largest range. Elements whose file has
// another dtype are read into a second buffer, the window, and then converted.
//
//   const auto sink = openArena(device, module, QLORA_ARENA_FROZEN);
//   std::span<uint8_t> range = sink->map(offset, bytes);
//   ... write all of range ...
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
  virtual uint64_t bytes() const = 0;
  /// Returns memory for bytes [offset, offset + count) of the arena, with
  /// undefined content. Valid until the next call.
  virtual std::span<uint8_t> map(uint64_t offset, uint64_t count) = 0;
  /// Writes the range of the last map() to the arena.
  virtual Status commit() = 0;
  /// Quantizes a weight into the arena, on the host unless overridden.
  virtual Status quantize(const UnquantizedWeight &weight);
  /// Returns at least `count` bytes of process memory, as a buffer for file
  /// data. Valid until the next call.
  StatusOr<std::span<uint8_t>> window(uint64_t count);

private:
  HostMemory windowMemory;
};

/// An arena in the memory of this process, which must outlive the sink.
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

/// An arena in the memory of `device`, which must outlive the sink. Weights are
/// quantized on the device if `scratch` is large enough, else on the host, with
/// a remark (Device::addRemark).
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

/// Returns a sink for an arena of `device`, which must have loaded `module`.
/// The sink has 0 bytes if the module has no such arena.
std::unique_ptr<ArenaSink> openArena(Device &device, const LoadedModule &module,
                                     qlora_arena_kind kind);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_ARENASINK_H
