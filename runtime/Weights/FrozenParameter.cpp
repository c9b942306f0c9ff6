// SPDX-License-Identifier: MIT

// Copies, converts, quantizes or decodes one complete frozen weight.

#include "runtime/Weights/FrozenParameter.h"

#include "runtime/Kernels/StoredTables.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/QuantizeWeight.h"
#include "runtime/Weights/StoredTensors.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace qlora {

/// Quantizes a weight. If the weight must be transposed, reads it completely
/// first, since its blocks cross the rows of the file.
static Status quantizeWeight(const StackedFileWeight &weight,
                             const qlora_parameter &parameter,
                             const StoredLayout &layout, ArenaSink &arena,
                             const WeightFactors *factors = nullptr) {
  UnquantizedWeight source;
  source.name = parameter.name;
  source.fileType = weight.dtype();
  source.read = [&](int64_t first, std::span<uint8_t> out) {
    QLORA_RETURN_IF_ERROR(weight.read(first, out));
    if (factors)
      factors->subtractFrom(first, source.fileType, out);
    return Status::ok();
  };
  const size_t size = weightBytes(source.fileType);
  std::vector<uint8_t> turned;
  if (isTransposed(parameter)) {
    turned.resize(static_cast<size_t>(layout.elements) * size);
    std::vector<uint8_t> stored(turned.size());
    QLORA_RETURN_IF_ERROR(source.read(0, stored));
    turnWeights(source.fileType, stored.data(), parameter.shape[1],
                parameter.shape[0], turned.data());
    source.read = [&](int64_t first, std::span<uint8_t> out) {
      std::ranges::copy(std::span(turned).subspan(
                            static_cast<size_t>(first) * size, out.size()),
                        out.begin());
      return Status::ok();
    };
  }
  source.layout = layout;
  source.columns = shapeOf(parameter).back();
  source.type = static_cast<qlora_dtype>(parameter.dtype);
  source.offset = parameter.offset;
  return arena.quantize(source);
}

/// Copies the `parts` tensors of a stored weight one after the other. Codes,
/// scales and zero points are joined; the tables are the first tensor's.
static Status copyStacked(const ModelFiles &model,
                          const qlora_parameter &parameter,
                          const StoredLayout &layout, uint8_t *out) {
  std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
  shape[0] /= parameter.parts;
  const StoredLayout each =
      StoredLayout::of(layout.dtype, layout.elements / parameter.parts,
                       layout.block, layout.doubleQuant);
  if (each.elements % each.block != 0)
    return Status::dataLoss("parameter '{}' stacks tensors of {} elements, "
                            "which is no multiple of its block size {}",
                            parameter.name, each.elements, each.block);
  std::memset(out, 0, static_cast<size_t>(layout.bytes));
  std::vector<uint8_t> part(static_cast<size_t>(each.bytes));
  const int64_t scaleBytes = layout.doubleQuant ? 1 : 4;
  int64_t number = 0;
  for (const char *name : fileNamesOf(parameter)) {
    QLORA_RETURN_IF_ERROR(copyStored(model, name, shape, each, part.data()));
    const auto append = [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(part.data() + from, count, out + to + number * count);
    };
    append(each.packed, layout.packed, each.packedBytes);
    append(each.scales, layout.scales, scaleBytes * each.blocks);
    if (layout.format().hasZeros)
      append(each.zeros, layout.zeros, each.blocks);
    if (number++ == 0)
      writeTables(layout, out);
    if (const uint8_t *book = part.data() + each.codeBook;
        !std::equal(book, book + (4 << layout.bits), out + layout.codeBook))
      return Status::dataLoss(
          "the code book of weight '{}' in '{}' differs from {}", name,
          model.folder(), layout.format().title);
  }
  return Status::ok();
}

/// Fills a weight that is quantized in its files.
static Status fillStored(const ParameterSources &sources,
                         const qlora_parameter &parameter,
                         const StoredLayout &layout, ArenaSink &arena) {
  if (!sources.model)
    return Status::notFound(
        "parameter '{}' needs a model folder, but none is given",
        parameter.name);
  const auto copyTo = [&](uint8_t *out) {
    return parameter.parts ? copyStacked(*sources.model, parameter, layout, out)
                           : copyStored(*sources.model, parameter.name,
                                        shapeOf(parameter), layout, out);
  };
  if (parameter.dtype == parameter.format) {
    QLORA_RETURN_IF_ERROR(
        copyTo(arena.map(parameter.offset, parameter.bytes).data()));
    return arena.commit();
  }
  std::vector<uint8_t> packed(static_cast<size_t>(layout.bytes));
  QLORA_RETURN_IF_ERROR(copyTo(packed.data()));
  return decodeOnHost(layout, packed.data(), shapeOf(parameter).back(),
                      static_cast<qlora_dtype>(parameter.dtype),
                      parameter.offset, arena);
}

Status fillFrozenParameter(const ParameterSources &sources,
                           const qlora_parameter &parameter, ArenaSink &arena) {
  const WeightFactors *const factors = factorsOf(sources, parameter);
  if (parameter.quantization == QLORA_QUANTIZATION_NONE) {
    QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                           findWeight(sources, parameter));
    return copyWeight(weight, parameter, {0, elementsOf(parameter)}, arena,
                      factors);
  }
  const StoredLayout layout = layoutOf(parameter);
  if (parameter.quantization == QLORA_QUANTIZATION_STORED)
    return fillStored(sources, parameter, layout, arena);
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                         findWeight(sources, parameter));
  return quantizeWeight(weight, parameter, layout, arena, factors);
}

} // namespace qlora
