// SPDX-License-Identifier: MIT

// Lists the trainable parameters and fills their arenas.

#include "runtime/Weights/Parameters.h"

#include "runtime/Module/ParameterCounts.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/ParameterInit.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/WholeTensor.h"

#include <algorithm>
#include <set>
#include <vector>

namespace qlora {

/// Elements rounded at a time.
static constexpr int64_t kWindow = int64_t{1} << 22;

//===----------------------------------------------------------------------===//
// Trainable parameters and their names
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
  return std::ranges::any_of(
      module.parameters(), [&](const qlora_parameter &parameter) {
        return std::string_view(parameter.name).starts_with(start);
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

/// Returns the names that an adapter may use for a trainable parameter:
/// trainedName() first, then the names that RenamedTensor describes.
static std::vector<std::string> adapterNames(const LoadedModule &module,
                                             const qlora_parameter &parameter) {
  constexpr std::string_view kInside = "base_model.model.model.language_model.";
  std::vector<std::string> names = {trainedName(module, parameter)};
  if (!names.front().starts_with(kInside))
    return names;
  const std::string rest = names.front().substr(kInside.size());
  names.push_back(fmt::format("{}model.{}", kPeftPrefix, rest));
  names.push_back(fmt::format("{}language_model.model.{}", kPeftPrefix, rest));
  return names;
}

static const SafetensorsTensor *
findByNames(const SafetensorsFile &adapter,
            std::span<const std::string> names) {
  for (const std::string &name : names)
    if (const SafetensorsTensor *tensor = adapter.find(name))
      return tensor;
  return nullptr;
}

const SafetensorsTensor *findAdapterTensor(const LoadedModule &module,
                                           const SafetensorsFile &adapter,
                                           const qlora_parameter &parameter) {
  return findByNames(adapter, adapterNames(module, parameter));
}

/// Finds the parameter's tensor in the starting adapter. Returns null if the
/// adapter lacks a trainable weight of the model, such as a bias.
static StatusOr<const SafetensorsTensor *>
findInAdapter(const LoadedModule &module, const SafetensorsFile &adapter,
              const qlora_parameter &parameter) {
  const SafetensorsTensor *tensor =
      findAdapterTensor(module, adapter, parameter);
  if (!tensor && parameter.role == QLORA_ROLE_ADAPTER)
    return adapter.get(trainedName(module, parameter));
  return tensor;
}

std::string RenamedTensor::warning(const std::string &adapter,
                                   const std::string &model) const {
  return fmt::format(
      "tensor names in '{}' differ from the class that AutoModelForCausalLM "
      "loads for '{}': '{}' is read as '{}'. This run writes its adapter with "
      "the names of that class",
      adapter, model, inFile, ours);
}

std::optional<RenamedTensor> findRenamed(const LoadedModule &module,
                                         const SafetensorsFile &adapter) {
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    const std::vector<std::string> names = adapterNames(module, *parameter);
    const SafetensorsTensor *tensor = findByNames(adapter, names);
    if (tensor && tensor->name != names.front())
      return RenamedTensor{tensor->name, names.front()};
  }
  return std::nullopt;
}

// Refuses an adapter tensor without a parameter: its values would be lost.
Status checkAdapterTensors(const LoadedModule &module,
                           const SafetensorsFile &adapter) {
  Status missing;
  std::set<std::string, std::less<>> taken;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (!isTrained(parameter.role))
      continue;
    const auto tensor = findInAdapter(module, adapter, parameter);
    if (!tensor.isOk())
      missing = tensor.status();
    else if (tensor.value())
      taken.insert(tensor.value()->name);
  }
  for (const SafetensorsTensor &tensor : adapter.tensors())
    if (!taken.contains(tensor.name))
      return Status::invalid(
          "'{}': tensor '{}' is not a trainable parameter of train.so",
          adapter.path(), tensor.name);
  return missing;
}

namespace {
/// A rank's shard of a trainable parameter: a range of elements, and the byte
/// offset of the range in the arena.
struct OwnPart {
  ElementRange range;
  uint64_t offset;

  uint64_t count() const {
    return static_cast<uint64_t>(range.end - range.begin);
  }
  std::span<float> map(ArenaSink &arena) const {
    return {reinterpret_cast<float *>(
                arena.map(offset, count() * sizeof(float)).data()),
            count()};
  }
};
} // namespace

/// Returns all elements of a parameter that is not sharded, else the elements
/// in fsdp shard `piece`, which may be none.
static OwnPart ownPart(const qlora_parameter &parameter, uint32_t piece) {
  if (parameter.piece == 0)
    return {{0, elementsOf(parameter)}, parameter.offset};
  const uint64_t start = piece * parameter.piece;
  const uint64_t end = parameter.first + parameter.bytes;
  const uint64_t from = std::clamp(start, parameter.first, end);
  const uint64_t to = std::clamp(start + parameter.piece, from, end);
  const auto elementAt = [&](uint64_t byte) {
    return static_cast<int64_t>((byte - parameter.first) / sizeof(float));
  };
  return {{elementAt(from), elementAt(to)},
          parameter.offset + (to > from ? from - start : 0)};
}

/// Reads the rows of sources.tokens from the embedding that the parameter
/// (trainable_token_indices) adapts.
static StatusOr<std::vector<float>> readRows(const LoadedModule &module,
                                             const ParameterSources &sources,
                                             const qlora_parameter &parameter) {
  std::string_view name = parameter.name;
  name.remove_prefix(name.starts_with(kPeftPrefix) ? kPeftPrefix.size() : 0);
  const std::string weight =
      fmt::format("{}.weight", name.substr(0, name.find(".token_adapter.")));
  const qlora_parameter *found = module.parameterOfModel(weight);
  const qlora_parameter table = found ? wholeOf(*found) : qlora_parameter();
  const auto count = static_cast<int64_t>(sources.tokens.size());
  if (table.rank != 2 || parameter.rank != 2 || parameter.shape[0] != count ||
      parameter.shape[1] != table.shape[1])
    return Status::dataLoss("parameter '{}' does not fit the {} "
                            "trainable_token_indices of weight '{}'. Fix: "
                            "compile the program again",
                            parameter.name, count, weight);
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight file,
                         findWeight(sources, table));
  const int64_t columns = parameter.shape[1];
  std::vector<uint8_t> row(static_cast<size_t>(columns) *
                           weightBytes(file.dtype()));
  std::vector<float> rows(static_cast<size_t>(count * columns));
  float *out = rows.data();
  for (int64_t token : sources.tokens) {
    if (token < 0 || token >= table.shape[0])
      return Status::invalid("trainable_token_indices: '{}' has no row {}",
                             weight, token);
    QLORA_RETURN_IF_ERROR(file.read(token * columns, row));
    weightsToFloat(file.dtype(), row.data(), columns, out);
    out += columns;
  }
  return rows;
}

/// Copies a shard to the arena; `values` has the complete tensor.
static Status copyPart(std::span<const float> values, const OwnPart &part,
                       ArenaSink &arena) {
  std::ranges::copy(
      values.subspan(static_cast<size_t>(part.range.begin), part.count()),
      part.map(arena).begin());
  return arena.commit();
}

/// Fills a parameter that no file has, according to its init kind.
static Status fillByInit(const LoadedModule &module,
                         const ParameterSources &sources,
                         const qlora_parameter &parameter, const OwnPart &part,
                         ArenaSink &arena) {
  if (parameter.init == QLORA_INIT_FACTOR) {
    const auto values = sources.factors ? sources.factors->ofAdapter(parameter)
                                        : std::span<const float>();
    if (values.size_bytes() != parameter.bytes)
      return Status::error(StatusCode::kInternal, "'{}' has no factors",
                           parameter.name);
    return copyPart(values, part, arena);
  }
  if (parameter.init == QLORA_INIT_ROWS) {
    QLORA_ASSIGN_OR_RETURN(const std::vector<float> rows,
                           readRows(module, sources, parameter));
    return copyPart(rows, part, arena);
  }
  initParameter(parameter, sources.seed,
                static_cast<uint64_t>(part.range.begin), part.map(arena));
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
  const OwnPart part = ownPart(parameter, sources.piece);
  if (part.count() == 0)
    return Status::ok();
  if (!tensor && parameter.init != QLORA_INIT_FILE)
    return fillByInit(module, sources, parameter, part, arena);
  qlora_parameter placed = parameter;
  placed.offset = part.offset;
  if (tensor) {
    QLORA_ASSIGN_OR_RETURN(const FileWeight weight,
                           FileWeight::of(*sources.adapter, *tensor,
                                          shapeInFile(parameter)));
    return copyWeight({{weight}, elementsOf(parameter)}, placed, part.range,
                      arena);
  }
  QLORA_ASSIGN_OR_RETURN(const StackedFileWeight weight,
                         findWeight(sources, parameter));
  return copyWeight(weight, placed, part.range, arena);
}

Status fillTrainable(const LoadedModule &module,
                     const ParameterSources &sources, ArenaSink &arena) {
  if (arena.bytes() != module.arenaBytes(QLORA_ARENA_TRAINABLE))
    return Status::error(
        StatusCode::kInternal, "the trainable arena has {} bytes instead of {}",
        arena.bytes(), module.arenaBytes(QLORA_ARENA_TRAINABLE));
  if (sources.adapter)
    QLORA_RETURN_IF_ERROR(checkAdapterTensors(module, *sources.adapter));
  for (const qlora_parameter &parameter : module.parameters())
    if (isTrained(parameter.role))
      QLORA_RETURN_IF_ERROR(fillTrainableParameter(module, sources, parameter,
                                                   arena));
  return Status::ok();
}

Status fillStates(const LoadedModule &module, uint64_t seed, Device &device) {
  std::vector<float> values;
  for (const qlora_parameter &parameter : module.parameters()) {
    if (parameter.role != QLORA_ROLE_STATE || parameter.init == QLORA_INIT_ZERO)
      continue;
    values.resize(static_cast<size_t>(elementsOf(parameter)));
    initParameter(parameter, seed, 0, values);
    QLORA_RETURN_IF_ERROR(device.write(
        parameter.arena, parameter.offset,
        {reinterpret_cast<const uint8_t *>(values.data()), parameter.bytes}));
  }
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

} // namespace qlora
