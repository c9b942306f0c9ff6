// SPDX-License-Identifier: MIT

// Filling of the frozen and trainable arenas.

#include "runtime/Weights/Parameters.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/StoredTables.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/ParameterInit.h"
#include "runtime/Weights/QuantizeWeight.h"
#include "runtime/Weights/StoredTensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

namespace qlora {

/// Elements that are read at a time.
static constexpr int64_t kWindow = int64_t{1} << 22;

//===----------------------------------------------------------------------===//
// What is trained, and its names
//===----------------------------------------------------------------------===//

std::vector<const qlora_parameter *>
trainedParameters(const LoadedModule &module) {
  std::vector<const qlora_parameter *> trained;
  for (const qlora_parameter &parameter : module.parameters())
    if (isTrained(parameter.role))
      trained.push_back(&parameter);
  return trained;
}

static bool hasAdapter(const LoadedModule &module, std::string_view name) {
  const std::string start = fmt::format("{}{}.lora_A.", kPeftPrefix, name);
  return std::ranges::any_of(module.parameters(),
                             [&](const qlora_parameter &parameter) {
                               return std::string_view(parameter.name)
                                   .starts_with(start);
                             });
}

bool trainsModel(const LoadedModule &module) {
  bool trains = false;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (parameter.role == QLORA_ROLE_ADAPTER)
      return false;
    trains |= isTrained(parameter.role);
  }
  return trains;
}

std::string trainedName(const LoadedModule &module,
                        const qlora_parameter &parameter) {
  const std::string_view name = parameter.name;
  if (name.starts_with(kPeftPrefix) || trainsModel(module))
    return std::string(name);
  const size_t dot = name.rfind('.');
  const std::string_view of = name.substr(0, dot), last = name.substr(dot + 1);
  const bool isInside = last == "bias" && hasAdapter(module, of);
  return fmt::format("{}{}.{}{}", kPeftPrefix, of,
                     isInside ? "base_layer." : "", last);
}

//===----------------------------------------------------------------------===//
// Filling
//===----------------------------------------------------------------------===//

static std::span<const int64_t> shapeOf(const qlora_parameter &parameter) {
  return {parameter.shape, parameter.rank};
}

static bool isTurned(const qlora_parameter &parameter) {
  return parameter.quantization == QLORA_QUANTIZATION_TURNED;
}

/// As its file has it.
static std::vector<int64_t> shapeInFile(const qlora_parameter &parameter) {
  const auto shape = shapeOf(parameter);
  if (isTurned(parameter))
    return {shape.rbegin(), shape.rend()};
  return {shape.begin(), shape.end()};
}

static int64_t elementsOf(const qlora_parameter &parameter) {
  int64_t elements = 1;
  for (int64_t extent : shapeOf(parameter))
    elements *= extent;
  return elements;
}

/// The weight of the model folder that a parameter names.
static StatusOr<FileWeight> findWeight(const ParameterSources &sources,
                                       const qlora_parameter &parameter) {
  return FileWeight::find(sources.model, parameter.name,
                          shapeInFile(parameter),
                          static_cast<qlora_dtype>(parameter.file_dtype));
}

/// Room for `count` elements of a parameter, from `first` on.
static uint8_t *mapElements(ArenaSink &arena, const qlora_parameter &parameter,
                            int64_t first, int64_t count) {
  const uint64_t size = weightBytes(static_cast<qlora_dtype>(parameter.dtype));
  return arena
      .map(parameter.offset + static_cast<uint64_t>(first) * size,
           static_cast<uint64_t>(count) * size)
      .data();
}

/// `factors`, where there are any, are subtracted from what is read.
static Status copyWeight(const FileWeight &weight, const qlora_parameter &parameter,
                         ArenaSink &arena,
                         const WeightFactors *factors = nullptr) {
  const int64_t elements = elementsOf(parameter);
  const auto type = static_cast<qlora_dtype>(parameter.dtype);
  for (int64_t first = 0; first < elements; first += kWindow) {
    const int64_t count = std::min(kWindow, elements - first);
    const auto bytes =
        static_cast<size_t>(count) * size_t{weightBytes(weight.dtype)};
    uint8_t *const out = mapElements(arena, parameter, first, count);
    std::span<uint8_t> read(out, bytes);
    if (weight.dtype != type) {
      QLORA_ASSIGN_OR_RETURN(const auto window, arena.window(bytes));
      read = window.first(bytes);
    }
    QLORA_RETURN_IF_ERROR(weight.read(first, read));
    if (factors)
      factors->subtractFrom(first, weight.dtype, read);
    if (weight.dtype != type)
      convertWeights(weight.dtype, read.data(), type, out, count);
    QLORA_RETURN_IF_ERROR(arena.commit());
  }
  return Status::ok();
}

/// A turned weight goes through memory whole, as its blocks lie across the
/// rows of the file.
static Status quantizeWeight(const StackedFileWeight &weight,
                             const qlora_parameter &parameter,
                             const StoredLayout &layout, ArenaSink &arena,
                             const WeightFactors *factors = nullptr) {
  UnquantizedWeight source;
  source.name = parameter.name;
  source.fileType = weight.parts.front().dtype;
  source.read = [&](int64_t first, std::span<uint8_t> out) {
    QLORA_RETURN_IF_ERROR(weight.read(first, out));
    if (factors)
      factors->subtractFrom(first, source.fileType, out);
    return Status::ok();
  };
  const size_t size = weightBytes(source.fileType);
  std::vector<uint8_t> turned;
  if (isTurned(parameter)) {
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

/// The tensors of a weight that has parts, one behind the other: codes, scales
/// and zero points of whole blocks. What is the format's is the first one's.
static Status copyStacked(const ModelFiles &model,
                          const qlora_parameter &parameter,
                          const StoredLayout &layout, uint8_t *out) {
  std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
  shape[0] /= parameter.parts;
  const StoredLayout each =
      StoredLayout::of(layout.dtype, layout.elements / parameter.parts,
                       layout.block, layout.doubleQuant);
  if (each.elements % each.block != 0)
    return Status::error(StatusCode::kDataLoss,
                         "parameter '{}' has parts of {} elements in blocks of "
                         "{}",
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
      return Status::error(StatusCode::kDataLoss,
                           "weight '{}' in '{}' has another code book than {}",
                           name, model.folder(), layout.format().title);
  }
  return Status::ok();
}

/// A weight that its files hold in few bits.
static Status fillStored(const ParameterSources &sources,
                         const qlora_parameter &parameter,
                         const StoredLayout &layout, ArenaSink &arena) {
  if (!sources.model)
    return Status::error(StatusCode::kNotFound,
                         "parameter '{}' needs a model folder, and none is "
                         "given",
                         parameter.name);
  const auto copyTo = [&](uint8_t *out) {
    return parameter.parts
               ? copyStacked(*sources.model, parameter, layout, out)
               : copyStored(*sources.model, parameter.name, shapeOf(parameter),
                            layout, out);
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

static Status fillFrozenParameter(const ParameterSources &sources,
                                  const qlora_parameter &parameter,
                                  ArenaSink &arena) {
  const WeightFactors *const factors =
      sources.factors ? sources.factors->ofBase(parameter) : nullptr;
  if (parameter.quantization == QLORA_QUANTIZATION_NONE) {
    QLORA_ASSIGN_OR_RETURN(FileWeight weight, findWeight(sources, parameter));
    return copyWeight(weight, parameter, arena, factors);
  }
  const StoredLayout layout = StoredLayout::of(
      static_cast<qlora_dtype>(parameter.format), elementsOf(parameter),
      parameter.block, parameter.double_quant != 0);
  if (parameter.quantization == QLORA_QUANTIZATION_STORED)
    return fillStored(sources, parameter, layout, arena);
  if (parameter.parts == 0) {
    QLORA_ASSIGN_OR_RETURN(FileWeight weight, findWeight(sources, parameter));
    return quantizeWeight({{weight}, layout.elements}, parameter, layout,
                          arena, factors);
  }
  QLORA_ASSIGN_OR_RETURN(StackedFileWeight weight,
                         StackedFileWeight::find(sources.model, parameter));
  return quantizeWeight(weight, parameter, layout, arena);
}

Status fillFrozen(const LoadedModule &module, const ParameterSources &sources,
                  FillShare share, qlora_arena_kind kind, ArenaSink &arena) {
  if (arena.bytes() != module.arenaBytes(kind))
    return Status::error(StatusCode::kInternal,
                         "the {} arena has {} bytes instead of {}",
                         arenaKindName(kind), arena.bytes(),
                         module.arenaBytes(kind));
  std::vector<const qlora_parameter *> mine;
  uint64_t total = 0, done = 0;
  const auto parameters = module.parameters();
  for (size_t i = share.rank; i < parameters.size(); i += share.size)
    if (module.arenas()[parameters[i].arena].kind == kind) {
      mine.push_back(&parameters[i]);
      total += parameters[i].bytes;
    }
  for (const qlora_parameter *parameter : mine) {
    QLORA_RETURN_IF_ERROR(fillFrozenParameter(sources, *parameter, arena));
    done += parameter->bytes;
    if (sources.progress)
      sources.progress(done, total);
  }
  return Status::ok();
}

/// The tensor of the adapter to start from, or null where a model's own
/// weight is not in it.
static StatusOr<const SafetensorsTensor *>
findInAdapter(const LoadedModule &module, const SafetensorsFile &adapter,
              const qlora_parameter &parameter) {
  const std::string name = trainedName(module, parameter);
  if (parameter.role == QLORA_ROLE_ADAPTER)
    return adapter.get(name);
  return adapter.find(name);
}

/// An adapter tensor that no parameter takes would be lost without a word.
static Status checkAdapterUsed(const LoadedModule &module,
                               const SafetensorsFile &adapter) {
  std::set<std::string, std::less<>> taken;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (!isTrained(parameter.role))
      continue;
    taken.insert(trainedName(module, parameter));
  }
  for (const SafetensorsTensor &tensor : adapter.tensors())
    if (!taken.contains(tensor.name))
      return Status::invalid("'{}': tensor '{}' is no trained parameter of "
                             "train.so; compile it for this adapter's "
                             "targets",
                             adapter.path(), tensor.name);
  return Status::ok();
}

/// Rows of the weight of the module that the parameter is in.
static Status fillRows(const LoadedModule &module,
                       const ParameterSources &sources,
                       const qlora_parameter &parameter, ArenaSink &arena) {
  std::string_view name = parameter.name;
  name.remove_prefix(name.starts_with(kPeftPrefix) ? kPeftPrefix.size() : 0);
  const std::string weight =
      fmt::format("{}.weight", name.substr(0, name.find(".token_adapter.")));
  const qlora_parameter *table = module.parameter(weight);
  const auto count = static_cast<int64_t>(sources.tokens.size());
  if (!table || table->rank != 2 || parameter.rank != 2 ||
      parameter.shape[0] != count || parameter.shape[1] != table->shape[1])
    return Status::error(StatusCode::kDataLoss,
                         "'{}' is not of the {} trainable_token_indices of a "
                         "weight '{}'; compile it again",
                         parameter.name, count, weight);
  QLORA_ASSIGN_OR_RETURN(const FileWeight file, findWeight(sources, *table));
  const int64_t columns = parameter.shape[1];
  std::vector<uint8_t> row(static_cast<size_t>(columns) *
                           weightBytes(file.dtype));
  auto *out = reinterpret_cast<float *>(
      arena.map(parameter.offset, parameter.bytes).data());
  for (int64_t token : sources.tokens) {
    if (token < 0 || token >= table->shape[0])
      return Status::invalid("trainable_token_indices: '{}' has no row {}",
                             weight, token);
    QLORA_RETURN_IF_ERROR(file.read(token * columns, row));
    weightsToFloat(file.dtype, row.data(), columns, out);
    out += columns;
  }
  return arena.commit();
}

static Status fillTrainableParameter(const LoadedModule &module,
                                     const ParameterSources &sources,
                                     const qlora_parameter &parameter,
                                     ArenaSink &arena) {
  const SafetensorsTensor *tensor = nullptr;
  if (sources.adapter) {
    QLORA_ASSIGN_OR_RETURN(tensor, findInAdapter(module, *sources.adapter,
                                                 parameter));
  }
  if (!tensor && parameter.init == QLORA_INIT_FACTOR) {
    const auto values = sources.factors ? sources.factors->ofAdapter(parameter)
                                        : std::span<const float>();
    if (values.size_bytes() != parameter.bytes)
      return Status::error(StatusCode::kInternal, "'{}' has no factors",
                           parameter.name);
    std::ranges::copy(std::as_bytes(values),
                      reinterpret_cast<std::byte *>(
                          arena.map(parameter.offset, parameter.bytes).data()));
    return arena.commit();
  }
  if (!tensor && parameter.init == QLORA_INIT_ROWS)
    return fillRows(module, sources, parameter, arena);
  if (!tensor && parameter.init != QLORA_INIT_FILE) {
    uint8_t *out = arena.map(parameter.offset, parameter.bytes).data();
    initParameter(parameter, sources.seed, reinterpret_cast<float *>(out));
    return arena.commit();
  }
  QLORA_ASSIGN_OR_RETURN(FileWeight weight,
                         tensor ? FileWeight::of(*sources.adapter, *tensor,
                                                 shapeInFile(parameter))
                                : findWeight(sources, parameter));
  return copyWeight(weight, parameter, arena);
}

Status fillTrainable(const LoadedModule &module,
                     const ParameterSources &sources, ArenaSink &arena) {
  if (arena.bytes() != module.arenaBytes(QLORA_ARENA_TRAINABLE))
    return Status::error(
        StatusCode::kInternal, "the trainable arena has {} bytes instead of {}",
        arena.bytes(), module.arenaBytes(QLORA_ARENA_TRAINABLE));
  if (sources.adapter)
    QLORA_RETURN_IF_ERROR(checkAdapterUsed(module, *sources.adapter));
  for (const qlora_parameter &parameter : module.parameters())
    if (isTrained(parameter.role))
      QLORA_RETURN_IF_ERROR(fillTrainableParameter(module, sources, parameter,
                                                   arena));
  return Status::ok();
}

Status fillRounded(const LoadedModule &module, Device &device) {
  const auto from = module.arena(QLORA_ARENA_TRAINABLE);
  const auto to = module.arena(QLORA_ARENA_ROUNDED);
  if (!from || !to)
    return Status::ok();
  const uint64_t elements = module.arenaBytes(QLORA_ARENA_ROUNDED) / 2;
  std::vector<uint8_t> exact, rounded;
  for (uint64_t done = 0; done < elements;) {
    const uint64_t count = std::min<uint64_t>(kWindow, elements - done);
    exact.resize(4 * count);
    rounded.resize(2 * count);
    QLORA_RETURN_IF_ERROR(device.read(*from, 4 * done, exact));
    convertWeights(QLORA_DTYPE_F32, exact.data(), QLORA_DTYPE_BF16,
                   rounded.data(), static_cast<int64_t>(count));
    QLORA_RETURN_IF_ERROR(device.write(*to, 2 * done, rounded));
    done += count;
  }
  return Status::ok();
}

StatusOr<std::span<const uint8_t>> trainedBytes(const LoadedModule &module,
                                                Device &device,
                                                std::vector<uint8_t> &copy) {
  const auto arena = module.arena(QLORA_ARENA_TRAINABLE);
  if (!arena)
    return std::span<const uint8_t>();
  if (device.hasHostArenas())
    return std::span<const uint8_t>(device.hostArena(*arena));
  copy.resize(module.arenaBytes(QLORA_ARENA_TRAINABLE));
  QLORA_RETURN_IF_ERROR(device.read(*arena, 0, copy));
  return std::span<const uint8_t>(copy);
}

} // namespace qlora
