// SPDX-License-Identifier: MIT

// Filling of the frozen and trainable arenas.

#include "runtime/Weights/Parameters.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ParameterCounts.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/ParameterInit.h"
#include "runtime/Weights/QuantizeWeight.h"
#include "runtime/Weights/StoredTensors.h"

#include <algorithm>
#include <set>
#include <vector>

namespace qlora {

/// Elements that are read at a time.
static constexpr int64_t kWindow = int64_t{1} << 22;
/// How PEFT names a weight of the model in an adapter.
static constexpr std::string_view kPeftPrefix = "base_model.model.";

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

static Status copyWeight(const FileWeight &weight, const qlora_parameter &parameter,
                         ArenaSink &arena) {
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
                             const StoredLayout &layout, ArenaSink &arena) {
  UnquantizedWeight source;
  source.name = parameter.name;
  source.fileType = weight.parts.front().dtype;
  source.read = [&](int64_t first, std::span<uint8_t> out) {
    return weight.read(first, out);
  };
  const size_t size = weightBytes(source.fileType);
  std::vector<uint8_t> turned;
  if (isTurned(parameter)) {
    turned.resize(static_cast<size_t>(layout.elements) * size);
    std::vector<uint8_t> stored(turned.size());
    QLORA_RETURN_IF_ERROR(weight.read(0, stored));
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
    return copyStored(*sources.model, parameter.name, shapeOf(parameter),
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
  if (parameter.quantization == QLORA_QUANTIZATION_NONE) {
    QLORA_ASSIGN_OR_RETURN(FileWeight weight, findWeight(sources, parameter));
    return copyWeight(weight, parameter, arena);
  }
  const StoredLayout layout = StoredLayout::of(
      static_cast<qlora_dtype>(parameter.format), elementsOf(parameter),
      parameter.block, parameter.double_quant != 0);
  if (parameter.quantization == QLORA_QUANTIZATION_STORED)
    return fillStored(sources, parameter, layout, arena);
  if (parameter.parts == 0) {
    QLORA_ASSIGN_OR_RETURN(FileWeight weight, findWeight(sources, parameter));
    return quantizeWeight({{weight}, layout.elements}, parameter, layout,
                          arena);
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
findInAdapter(const SafetensorsFile &adapter,
              const qlora_parameter &parameter) {
  if (const SafetensorsTensor *tensor = adapter.find(parameter.name))
    return tensor;
  if (parameter.role == QLORA_ROLE_ADAPTER)
    return adapter.get(parameter.name);
  return adapter.find(fmt::format("{}{}", kPeftPrefix, parameter.name));
}

/// An adapter tensor that no parameter takes would be lost without a word.
static Status checkAdapterUsed(const LoadedModule &module,
                               const SafetensorsFile &adapter) {
  std::set<std::string, std::less<>> taken;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (!isTrained(parameter.role))
      continue;
    taken.insert(parameter.name);
    taken.insert(fmt::format("{}{}", kPeftPrefix, parameter.name));
  }
  for (const SafetensorsTensor &tensor : adapter.tensors())
    if (!taken.contains(tensor.name))
      return Status::invalid("'{}': tensor '{}' is no trained parameter of "
                             "train.so; compile it for this adapter's "
                             "targets",
                             adapter.path(), tensor.name);
  return Status::ok();
}

static Status fillTrainableParameter(const ParameterSources &sources,
                                     const qlora_parameter &parameter,
                                     ArenaSink &arena) {
  const SafetensorsTensor *tensor = nullptr;
  if (sources.adapter) {
    QLORA_ASSIGN_OR_RETURN(tensor, findInAdapter(*sources.adapter, parameter));
  }
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
      QLORA_RETURN_IF_ERROR(fillTrainableParameter(sources, parameter, arena));
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
