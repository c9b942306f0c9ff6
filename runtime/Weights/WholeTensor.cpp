// SPDX-License-Identifier: MIT

// Loads a complete frozen tensor, and describes each rank's shard of it.

#include "runtime/Weights/WholeTensor.h"

#include "runtime/Kernels/StoredTables.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FrozenParameter.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/StoredTensors.h"

#include <algorithm>

namespace qlora {

//===----------------------------------------------------------------------===//
// Shapes of complete tensors
//===----------------------------------------------------------------------===//

static bool isPacked(const qlora_parameter &parameter) {
  return storedFormat(parameter.dtype) != nullptr;
}

static void setBytes(qlora_parameter &whole) {
  whole.bytes = static_cast<uint64_t>(
      isPacked(whole) ? layoutOf(whole).bytes
                      : elementsOf(whole) *
                            weightBytes(static_cast<qlora_dtype>(whole.dtype)));
}

/// Returns whether each row of the complete tensor may be one block.
static bool hasRowBlocks(const qlora_parameter &slice) {
  const StoredFormat *format = storedFormat(slice.format);
  return format && format->takesRows &&
         slice.slice_dimension + 1 == slice.rank &&
         slice.block == slice.shape[slice.slice_dimension];
}

qlora_parameter wholeOf(const qlora_parameter &slice) {
  qlora_parameter whole = slice;
  if (slice.slices == 0)
    return whole;
  whole.shape[slice.slice_dimension] *= slice.slices;
  if (hasRowBlocks(slice))
    whole.block *= slice.slices;
  whole.double_quant = slice.double_quant != 0;
  whole.slices = whole.slice_dimension = whole.segments = whole.first_segment =
      0;
  setBytes(whole);
  return whole;
}

SlicedDimension dimensionOf(const LoadedModule &module,
                            const qlora_parameter &slice,
                            const qlora_parameter &whole) {
  return {shapeOf(whole),
          slice.slice_dimension,
          {module.table().constants + slice.first_segment, slice.segments},
          slice.slices};
}

StatusOr<qlora_parameter> findWhole(const LoadedModule &module,
                                    const ParameterSources &sources,
                                    const qlora_parameter &slice) {
  qlora_parameter whole = wholeOf(slice);
  if (slice.slices == 0)
    return whole;
  if (whole.block != slice.block && sources.model &&
      whole.quantization == QLORA_QUANTIZATION_STORED) {
    QLORA_ASSIGN_OR_RETURN(
        const StoredDescription stored,
        describeStored(*sources.model, fileNamesOf(slice).front()));
    if (stored.layout.block == slice.block)
      whole.block = slice.block;
    setBytes(whole);
  }
  const SlicedFormat format = {static_cast<qlora_dtype>(whole.dtype),
                               whole.block, whole.double_quant != 0};
  const SlicedDimension of = dimensionOf(module, slice, whole);
  if (canSlice(format, of) &&
      (!isPacked(slice) || slice.double_quant == doubleQuantOfSlice(format)))
    return whole;
  return Status::dataLoss("'{}': parameter '{}' has {} slices in dimension {} "
                          "of {}, {} in blocks of {} with double_quant {}, but "
                          "a slice is not whole blocks; compile it again",
                          module.path(), slice.name, slice.slices,
                          slice.slice_dimension, formatShape(shapeOf(whole)),
                          dtypeName(format.dtype), whole.block,
                          slice.double_quant);
}

//===----------------------------------------------------------------------===//
// Loading a tensor
//===----------------------------------------------------------------------===//

Status WholeTensor::make(const LoadedModule &ofModule,
                         const ParameterSources &sources,
                         const qlora_parameter &of) {
  module = &ofModule;
  parameter = &of;
  QLORA_ASSIGN_OR_RETURN(whole, findWhole(ofModule, sources, of));
  whole.offset = 0;
  if (memory.bytes().size() < whole.bytes) {
    memory = {}; // free first, so that both do not exist at once
    QLORA_ASSIGN_OR_RETURN(memory, HostMemory::anonymous(whole.bytes));
  }
  HostArena arena(memory.bytes().first(whole.bytes));
  QLORA_RETURN_IF_ERROR(fillFrozenParameter(sources, whole, arena));
  scales.clear();
  if (isPacked(of) && of.double_quant == 2)
    decodeScales();
  return Status::ok();
}

/// Decodes double-quantized scales to the bits that kernels would compute.
void WholeTensor::decodeScales() {
  const StoredLayout layout = layoutOf(whole);
  const StoredTensor tensor = StoredTensor::of(layout, memory.bytes().data());
  scales.resize(static_cast<size_t>(layout.blocks));
  for (int64_t block = 0; block < layout.blocks; ++block)
    scales[static_cast<size_t>(block)] = tensor.absmax(block);
}

//===----------------------------------------------------------------------===//
// Shards
//===----------------------------------------------------------------------===//

ShardView WholeTensor::cutFor(uint64_t rank) const {
  return parameter->slices != 0 ? sliceFor(rank) : pieceFor(rank);
}

/// Returns an fsdp shard, with zeros after the end of the tensor.
ShardView WholeTensor::pieceFor(uint64_t rank) const {
  const uint64_t begin = std::min(rank * whole.piece, whole.bytes);
  const uint64_t end = std::min(begin + whole.piece, whole.bytes);
  ShardView cut;
  cut.addRows(0, memory.bytes().data(), 0, 1, {{begin, end - begin}});
  return cut;
}

void WholeTensor::addElements(ShardView &cut, int64_t at, const uint8_t *from,
                              Unit unit, uint64_t rank) const {
  const SlicedDimension of = dimensionOf(*module, *parameter, whole);
  const auto bytesOf = [&](int64_t steps) {
    return static_cast<uint64_t>(steps * of.inner() / unit.elements *
                                 unit.bytes);
  };
  std::vector<ShardRange> runs;
  int64_t begin = 0;
  for (const int64_t length : of.segments) {
    const int64_t part = length / of.slices;
    runs.push_back(
        {bytesOf(begin + static_cast<int64_t>(rank) * part), bytesOf(part)});
    begin += length;
  }
  cut.addRows(static_cast<uint64_t>(at), from, bytesOf(begin),
              static_cast<uint64_t>(of.outer()), std::move(runs));
}

void WholeTensor::addScales(ShardView &cut, const StoredLayout &to,
                            uint64_t rank) const {
  const StoredLayout from = layoutOf(whole);
  const uint8_t *const bytes = memory.bytes().data();
  const auto *const values =
      scales.empty() ? bytes + from.scales
                     : reinterpret_cast<const uint8_t *>(scales.data());
  const auto add = [&](int64_t at, const uint8_t *section, int64_t size) {
    if (whole.block == parameter->block)
      return addElements(cut, at, section, {whole.block, size}, rank);
    // Each shard has a part of every row, so it needs the scales of all rows.
    cut.addRows(static_cast<uint64_t>(at), section, 0, 1,
                {{0, static_cast<uint64_t>(from.blocks * size)}});
  };
  add(to.scales, values, to.doubleQuant ? 1 : 4);
  if (to.format().hasZeros)
    add(to.zeros, bytes + from.zeros, 1);
}

/// Returns the tables of a layout, which follow its data, with `codeBook`.
static std::vector<uint8_t> tablesOf(const StoredLayout &layout,
                                     const uint8_t *codeBook) {
  StoredLayout tail = layout;
  for (int64_t *offset : {&tail.nestedMap, &tail.codeBook, &tail.correction,
                          &tail.bytes, &tail.nestedAbsmax})
    *offset -= layout.nestedAbsmax;
  std::vector<uint8_t> tables(static_cast<size_t>(tail.bytes));
  writeTables(tail, tables.data());
  std::copy_n(codeBook, int64_t{4} << layout.bits,
              tables.data() + tail.codeBook);
  return tables;
}

ShardView WholeTensor::sliceFor(uint64_t rank) const {
  ShardView cut;
  const uint8_t *const bytes = memory.bytes().data();
  if (!isPacked(whole)) {
    addElements(cut, 0, bytes,
                {1, weightBytes(static_cast<qlora_dtype>(whole.dtype))}, rank);
    return cut;
  }
  const StoredLayout to = layoutOf(*parameter);
  addElements(cut, to.packed, bytes, {8 / to.bits, 1}, rank);
  addScales(cut, to, rank);
  cut.addOwn(static_cast<uint64_t>(to.nestedAbsmax),
             tablesOf(to, bytes + layoutOf(whole).codeBook));
  return cut;
}

} // namespace qlora
