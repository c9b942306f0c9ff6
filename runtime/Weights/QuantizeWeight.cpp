// SPDX-License-Identifier: MIT

// Quantizes on the host or on the device.

#include "runtime/Weights/QuantizeWeight.h"

#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Kernels/StoredTables.h"
#include "runtime/Weights/ArenaSink.h"
#include "runtime/Weights/ConvertWeights.h"

#include <algorithm>
#include <vector>

namespace qlora {

/// Elements decoded at a time on the host.
static constexpr int64_t kDecodedElements = int64_t{1} << 22;
/// File bytes sent at a time: half of a CUDA device's staging buffer.
static constexpr uint64_t kWindowBytes = uint64_t{16} << 20;
static constexpr uint64_t kAlignment = 64;

// On the host -----------------------------------------------------------------

Status decodeOnHost(const StoredLayout &layout, const uint8_t *packed,
                    int64_t columns, qlora_dtype type, uint64_t offset,
                    ArenaSink &arena) {
  const StoredWeight weight = StoredWeight::of(layout, columns);
  for (int64_t first = 0; first < layout.elements; first += kDecodedElements) {
    const int64_t count = std::min(kDecodedElements, layout.elements - first);
    const uint64_t size = weightBytes(type);
    const auto part = arena.map(offset + static_cast<uint64_t>(first) * size,
                                static_cast<uint64_t>(count) * size);
    weight.decode(packed, first, count, type, part.data());
    QLORA_RETURN_IF_ERROR(arena.commit());
  }
  return Status::ok();
}

static Status pack(const UnquantizedWeight &weight, ArenaSink &sink,
                   uint8_t *out) {
  const int64_t size = weightBytes(weight.fileType);
  const int64_t most = std::min(weight.layout.elements, kQuantizedWindow);
  QLORA_ASSIGN_OR_RETURN(const auto window,
                         sink.window(static_cast<uint64_t>(most * size)));
  Status status;
  int64_t begin = 0; // first element of the window
  const auto fetch = [&](int64_t first, int64_t count) {
    begin = first;
    if (status.isOk())
      status = weight.read(first,
                           window.first(static_cast<size_t>(count * size)));
  };
  const auto read = [&](int64_t first, int64_t count, float *values) {
    weightsToFloat(weight.fileType, window.data() + (first - begin) * size,
                   count, values);
  };
  quantizeStored(weight.layout, {read, fetch}, out);
  return status;
}

Status quantizeOnHost(const UnquantizedWeight &weight, ArenaSink &arena) {
  const auto bytes = static_cast<uint64_t>(weight.layout.bytes);
  if (weight.type == weight.layout.dtype) {
    QLORA_RETURN_IF_ERROR(
        pack(weight, arena, arena.map(weight.offset, bytes).data()));
    return arena.commit();
  }
  std::vector<uint8_t> packed(bytes);
  QLORA_RETURN_IF_ERROR(pack(weight, arena, packed.data()));
  return decodeOnHost(weight.layout, packed.data(), weight.columns, weight.type,
                      weight.offset, arena);
}

// On the device ---------------------------------------------------------------

namespace {
/// Offsets in the scratch memory. The window has all bytes from its offset on.
struct ScratchPlan {
  uint64_t packed = 0; ///< the quantized tensor of a "resident" weight
  uint64_t scales = 0; ///< f32 scales, for double quantization
  uint64_t window = 0;

  static ScratchPlan of(const UnquantizedWeight &weight) {
    const auto aligned = [](int64_t bytes) {
      return (static_cast<uint64_t>(bytes) + kAlignment - 1) / kAlignment *
             kAlignment;
    };
    const StoredLayout &layout = weight.layout;
    ScratchPlan plan;
    if (weight.type != weight.layout.dtype)
      plan.scales = aligned(layout.bytes);
    plan.window =
        plan.scales + (layout.doubleQuant ? aligned(4 * layout.blocks) : 0);
    return plan;
  }
};

/// Makes a dense operand that may be read and written.
qlora_operand makeOperand(uint32_t arena, uint64_t offset, qlora_dtype dtype,
                          uint64_t bytes) {
  qlora_operand operand{};
  operand.arena = static_cast<uint16_t>(arena);
  operand.dtype = static_cast<uint8_t>(dtype);
  operand.access = QLORA_READ_WRITE;
  operand.offset = offset;
  operand.bytes = bytes;
  return operand;
}

class DeviceQuantizer {
public:
  DeviceQuantizer(const UnquantizedWeight &weight, Device &device,
                  uint32_t arena, ScratchMemory scratch, ArenaSink &sink)
      : weight(weight), layout(weight.layout), device(device), arena(arena),
        scratch(scratch), sink(sink), plan(ScratchPlan::of(weight)),
        staysPacked(weight.type == weight.layout.dtype) {}

  Status run() {
    QLORA_RETURN_IF_ERROR(writeTables());
    QLORA_RETURN_IF_ERROR(quantizeElements());
    if (layout.doubleQuant)
      QLORA_RETURN_IF_ERROR(quantizeScales());
    return staysPacked ? Status::ok() : decode();
  }

private:
  qlora_operand inScratch(uint64_t offset, qlora_dtype dtype,
                          uint64_t bytes) const {
    return makeOperand(scratch.arena, offset, dtype, bytes);
  }
  /// Returns an operand for `bytes` bytes at `offset` of the packed tensor.
  qlora_operand inTensor(int64_t offset, qlora_dtype dtype,
                         int64_t bytes) const {
    const uint64_t base = staysPacked ? weight.offset : plan.packed;
    return makeOperand(staysPacked ? arena : scratch.arena,
                       base + static_cast<uint64_t>(offset), dtype,
                       static_cast<uint64_t>(bytes));
  }
  /// Returns an operand for the f32 scales of `count` blocks from block `first`
  /// on, before their second quantization.
  qlora_operand scales(int64_t first, int64_t count) const {
    if (!layout.doubleQuant)
      return inTensor(layout.scales + 4 * first, QLORA_DTYPE_F32, 4 * count);
    return inScratch(plan.scales + 4 * static_cast<uint64_t>(first),
                     QLORA_DTYPE_F32, 4 * static_cast<uint64_t>(count));
  }

  Status write(const qlora_operand &to, const void *bytes) {
    return device.write(
        to.arena, to.offset,
        {static_cast<const uint8_t *>(bytes), static_cast<size_t>(to.bytes)});
  }
  Status writeTables();
  Status quantizeElements();
  Status quantizeScales();
  Status decode();

  const UnquantizedWeight &weight;
  const StoredLayout &layout;
  Device &device;
  const uint32_t arena;
  const ScratchMemory scratch;
  ArenaSink &sink;
  const ScratchPlan plan;
  const bool staysPacked;
};
} // namespace

Status DeviceQuantizer::writeTables() {
  std::vector<uint8_t> tables(
      static_cast<size_t>(layout.bytes - layout.codeBook));
  StoredLayout tail = layout;
  tail.codeBook = 0;
  tail.correction = layout.correction - layout.codeBook;
  qlora::writeTables(tail, tables.data());
  QLORA_RETURN_IF_ERROR(write(inTensor(layout.codeBook, QLORA_DTYPE_F32,
                                       layout.bytes - layout.codeBook),
                              tables.data()));
  if (!layout.doubleQuant)
    return Status::ok();
  return write(
      inTensor(layout.nestedMap, QLORA_DTYPE_F32, sizeof(nf4DynamicMap())),
      nf4DynamicMap().data());
}

/// Quantizes in windows of complete blocks, so that windows share no scale.
Status DeviceQuantizer::quantizeElements() {
  const int64_t size = weightBytes(weight.fileType);
  const auto room = static_cast<int64_t>(
      std::min(scratch.bytes - plan.window, kWindowBytes));
  const int64_t most =
      std::max<int64_t>(1, room / size / layout.block) * layout.block;
  QLORA_ASSIGN_OR_RETURN(const auto elements,
                         sink.window(static_cast<uint64_t>(
                             std::min(most, layout.elements) * size)));
  for (int64_t first = 0; first < layout.elements; first += most) {
    const int64_t count = std::min(most, layout.elements - first);
    const qlora_operand window = inScratch(
        plan.window, weight.fileType, static_cast<uint64_t>(count * size));
    QLORA_RETURN_IF_ERROR(
        weight.read(first, elements.first(static_cast<size_t>(window.bytes))));
    QLORA_RETURN_IF_ERROR(write(window, elements.data()));
    const qlora_operand operands[] = {
        window,
        inTensor(layout.packed + first / 2, QLORA_DTYPE_U8, (count + 1) / 2),
        scales(first / layout.block,
               (count + layout.block - 1) / layout.block)};
    const int64_t constants[] = {count, layout.block};
    QLORA_RETURN_IF_ERROR(
        device.run(*findKernelOp("quantize"), operands, constants));
  }
  return Status::ok();
}

Status DeviceQuantizer::quantizeScales() {
  const qlora_operand operands[] = {
      scales(0, layout.blocks),
      inTensor(layout.nestedMap, QLORA_DTYPE_F32, sizeof(nf4DynamicMap())),
      inTensor(layout.scales, QLORA_DTYPE_U8, layout.blocks),
      inTensor(layout.nestedAbsmax, QLORA_DTYPE_F32, 4 * layout.nestedBlocks),
      inTensor(layout.correction, QLORA_DTYPE_F32, 4)};
  const int64_t constants[] = {layout.blocks};
  return device.run(*findKernelOp("quantize_scales"), operands, constants);
}

Status DeviceQuantizer::decode() {
  const auto bytes =
      static_cast<uint64_t>(layout.elements) * weightBytes(weight.type);
  const qlora_operand operands[] = {
      inTensor(0, layout.dtype, layout.bytes),
      makeOperand(arena, weight.offset, weight.type, bytes)};
  const int64_t constants[] = {layout.elements / weight.columns, weight.columns,
                               layout.block, layout.doubleQuant};
  return device.run(*findKernelOp("decode"), operands, constants);
}

ScratchMemory loadingScratch(const LoadedModule &module) {
  ScratchMemory scratch;
  for (const auto kind : {QLORA_ARENA_ACTIVATION, QLORA_ARENA_WORKSPACE})
    if (module.arenaBytes(kind) > scratch.bytes)
      scratch = {*module.arena(kind), module.arenaBytes(kind)};
  return scratch;
}

uint64_t leastScratch(const UnquantizedWeight &weight) {
  const int64_t block = std::min(weight.layout.block, weight.layout.elements);
  return ScratchPlan::of(weight).window +
         static_cast<uint64_t>(block) * weightBytes(weight.fileType);
}

Status quantizeOnDevice(const UnquantizedWeight &weight, Device &device,
                        uint32_t arena, ScratchMemory scratch,
                        ArenaSink &sink) {
  return DeviceQuantizer(weight, device, arena, scratch, sink).run();
}

} // namespace qlora
