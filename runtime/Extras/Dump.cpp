// SPDX-License-Identifier: MIT

// Collects and writes a dump.

#include "runtime/Extras/Dump.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Extras/DropoutMasks.h"
#include "runtime/Kernels/Cpu/Decode.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Weights/ParameterWeight.h"

namespace qlora {

template <typename T>
static std::span<const uint8_t> asBytes(const std::vector<T> &values) {
  return {reinterpret_cast<const uint8_t *>(values.data()),
          values.size() * sizeof(T)};
}

void Dump::add(std::string name, SafetensorsDtype dtype,
               std::vector<int64_t> shape, std::span<const uint8_t> bytes) {
  storage.emplace_back(bytes.begin(), bytes.end());
  items.push_back({std::move(name), dtype, std::move(shape), storage.back()});
}

/// Returns whether a rank contributes to the dump. Ranks that shard the base,
/// sequences or layers must all join the gathers.
static bool contributes(const Run &run) {
  return run.group.rank() == 0 || run.module.meetsInEntries();
}

Status Dump::begin(const Run &run) {
  if (!run.train)
    return Status::invalid("--dump needs a training step. Fix: --max-steps 1");
  if (!contributes(run))
    return Status::ok();
  QLORA_RETURN_IF_ERROR(takeWeights(run));
  QLORA_RETURN_IF_ERROR(takeStages(run));
  return takeLogits(run);
}

Status Dump::firstGradients(const Run &run, int64_t step) {
  if (!contributes(run))
    return Status::ok();
  QLORA_RETURN_IF_ERROR(takeGradients(run));
  QLORA_RETURN_IF_ERROR(takeDropout(run, step));
  return run.group.rank() == 0 ? writeSafetensors(path, items, {})
                               : Status::ok();
}

/// Returns the step's label count, which divides the step's sums.
static StatusOr<float> countOf(const Run &run) {
  float count = 0;
  for (const qlora_entry &entry : run.module.entries()) {
    const qlora_binding *binding =
        entry.kind == QLORA_ENTRY_ACCUMULATE_LAST
            ? run.module.binding(entry, QLORA_RESULT_LABEL_COUNT)
            : nullptr;
    if (!binding)
      continue;
    QLORA_RETURN_IF_ERROR(run.device.read(
        binding->arena, binding->offset,
        {reinterpret_cast<uint8_t *>(&count), sizeof count}));
    break;
  }
  return count;
}

/// Gathers a parameter's bytes from the ranks that shard it. `arena`: the
/// parameter's own arena, or an arena with the same layout.
static StatusOr<std::vector<uint8_t>>
wholeOf(const Run &run, const qlora_parameter &parameter, uint32_t arena) {
  std::vector<uint8_t> bytes(arenaBytesOf(parameter));
  QLORA_RETURN_IF_ERROR(run.device.read(arena, parameter.offset, bytes));
  if (parameter.piece == 0)
    return bytes;
  Collectives &ranks = run.group.collectives(QLORA_GROUP_FSDP);
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<uint8_t>> pieces,
      ranks.allGatherValues(std::span<const uint8_t>(bytes)));
  bytes.clear();
  for (const std::vector<uint8_t> &piece : pieces)
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  const auto first =
      bytes.begin() + static_cast<std::ptrdiff_t>(parameter.first);
  return std::vector<uint8_t>(
      first, first + static_cast<std::ptrdiff_t>(parameter.bytes));
}

Status Dump::takeGradients(const Run &run) {
  const uint32_t arena = *run.module.arena(QLORA_ARENA_GRADIENT);
  QLORA_ASSIGN_OR_RETURN(const double labels, countOf(run));
  for (const qlora_parameter *parameter : trainedParameters(run.module)) {
    QLORA_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                           wholeOf(run, *parameter, arena));
    std::vector<float> gradient(parameter->bytes / sizeof(float));
    std::memcpy(gradient.data(), bytes.data(), bytes.size());
    for (float &value : gradient)
      value = static_cast<float>(value / labels);
    add("grad." + trainedName(run.module, *parameter), SafetensorsDtype::kF32,
        {parameter->shape, parameter->shape + parameter->rank},
        asBytes(gradient));
  }
  return Status::ok();
}

/// Returns batch * length of a step's longest micro-batch, in tokens.
static int64_t longestRows(const Run &run, int64_t step) {
  int64_t rows = 0;
  Schedule &schedule = run.train->schedule();
  const int64_t count = schedule.microBatches(step, run.stepShape);
  for (int64_t index = 0; index < count; ++index) {
    const BatchShape shape = schedule.at(step, index, run.stepShape).shape;
    rows = std::max(rows, shape.batch * shape.length);
  }
  return rows;
}

Status Dump::takeDropout(const Run &run, int64_t step) {
  QLORA_ASSIGN_OR_RETURN(std::vector<AdapterDropout> dropouts,
                         recordedDropout(run.module, run.options));
  if (dropouts.empty())
    return Status::ok();
  const auto seed = static_cast<uint64_t>(run.options.integer("seed"));
  const int64_t count = run.train->schedule().microBatches(step, run.stepShape);
  const int64_t rows = longestRows(run, step);
  for (const AdapterDropout &dropout : dropouts) {
    const int64_t bytes = rows * dropout.columns;
    std::vector<uint8_t> masks(count * bytes);
    for (int64_t index = 0; index < count; ++index)
      drawMask(dropout, seed,
               static_cast<uint64_t>(step * run.perStep() + index), rows,
               std::span(masks).subspan(index * bytes, bytes));
    add("dropout." + dropout.module, SafetensorsDtype::kU8,
        {count, rows, dropout.columns}, masks);
    add("dropout." + dropout.module + ".op", SafetensorsDtype::kI64, {1},
        asBytes(std::vector<int64_t>{dropout.op}));
  }
  return Status::ok();
}

static std::vector<float> decoded(const StoredLayout &layout, int64_t columns,
                                  std::span<const uint8_t> bytes) {
  std::vector<float> values(layout.elements);
  StoredWeight::of(layout, columns)
      .decode(bytes.data(), 0, layout.elements, QLORA_DTYPE_F32, values.data());
  return values;
}

void Dump::addWeight(const qlora_parameter &parameter,
                     std::span<const uint8_t> bytes) {
  std::vector<int64_t> shape(parameter.shape, parameter.shape + parameter.rank);
  const StoredLayout l = layoutOf(parameter);
  auto part = [&](int64_t offset, int64_t count) {
    return bytes.subspan(offset, count);
  };
  const std::string name = parameter.name;
  add(name + ".dequantized", SafetensorsDtype::kF32, shape,
      asBytes(decoded(l, shape.back(), bytes)));
  if (l.bits == 8) {
    add(name + ".CB", SafetensorsDtype::kI8, shape,
        part(l.packed, l.packedBytes));
    add(name + ".SCB", SafetensorsDtype::kF32, {l.blocks},
        part(l.scales, 4 * l.blocks));
    return;
  }
  add(name + ".packed", SafetensorsDtype::kU8, {l.packedBytes, 1},
      part(l.packed, l.packedBytes));
  add(name + ".quant_map", SafetensorsDtype::kF32, {16}, part(l.codeBook, 64));
  if (!l.doubleQuant) {
    add(name + ".absmax", SafetensorsDtype::kF32, {l.blocks},
        part(l.scales, 4 * l.blocks));
    return;
  }
  add(name + ".absmax", SafetensorsDtype::kU8, {l.blocks},
      part(l.scales, l.blocks));
  add(name + ".nested_absmax", SafetensorsDtype::kF32, {l.nestedBlocks},
      part(l.nestedAbsmax, 4 * l.nestedBlocks));
  add(name + ".nested_quant_map", SafetensorsDtype::kF32, {256},
      part(l.nestedMap, 4 * 256));
  add(name + ".nested_offset", SafetensorsDtype::kF32, {1},
      part(l.correction, 4));
}

std::vector<uint8_t> joinSlices(const LoadedModule &module,
                                const qlora_parameter &parameter,
                                std::span<const std::vector<uint8_t>> slices) {
  const uint32_t dimension = parameter.slice_dimension;
  size_t outer = 1;
  for (uint32_t i = 0; i < dimension; ++i)
    outer *= static_cast<size_t>(parameter.shape[i]);
  const size_t line = slices[0].size() / outer;
  const size_t inner = line / static_cast<size_t>(parameter.shape[dimension]);
  std::vector<uint8_t> whole;
  for (size_t first = 0; first < slices[0].size(); first += line)
    for (size_t run = 0, at = first; run < parameter.segments; ++run) {
      const auto length = static_cast<size_t>(
          module.table().constants[parameter.first_segment + run]);
      const size_t bytes = length / parameter.slices * inner;
      for (const std::vector<uint8_t> &slice : slices) {
        const auto part = std::span(slice).subspan(at, bytes);
        whole.insert(whole.end(), part.begin(), part.end());
      }
      at += bytes;
    }
  return whole;
}

/// Adds only decoded values: a shard lacks the tensor's original scales.
Status Dump::takeSlices(const Run &run, const qlora_parameter &parameter,
                        std::span<const uint8_t> own) {
  auto dtype = static_cast<qlora_dtype>(parameter.dtype);
  std::vector<float> values;
  if (parameter.dtype == parameter.format) {
    values =
        decoded(layoutOf(parameter), parameter.shape[parameter.rank - 1], own);
    own = asBytes(values);
    dtype = QLORA_DTYPE_F32;
  }
  QLORA_ASSIGN_OR_RETURN(
      const std::vector<std::vector<uint8_t>> slices,
      run.group.collectives(sliceGroup(run.module)).allGatherValues(own));
  add(std::string(parameter.name) + ".dequantized", *fromAbiDtype(dtype),
      wholeShapeOf(parameter), joinSlices(run.module, parameter, slices));
  return Status::ok();
}

Status Dump::takeWeights(const Run &run) {
  for (const qlora_parameter &parameter : run.module.parameters()) {
    if (parameter.quantization == QLORA_QUANTIZATION_NONE)
      continue;
    QLORA_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                           wholeOf(run, parameter, parameter.arena));
    if (parameter.slices != 0) {
      QLORA_RETURN_IF_ERROR(takeSlices(run, parameter, bytes));
      continue;
    }
    if (parameter.dtype == parameter.format) {
      addWeight(parameter, bytes);
      continue;
    }
    // A weight that was decoded on load has no packed form, only values.
    add(std::string(parameter.name) + ".dequantized",
        *fromAbiDtype(static_cast<qlora_dtype>(parameter.dtype)),
        {parameter.shape, parameter.shape + parameter.rank}, bytes);
  }
  return Status::ok();
}

/// Adds the base weights of other stages. All ranks of a pipeline call it.
Status Dump::takeStages(const Run &run) {
  Collectives &stages = run.group.collectives(QLORA_GROUP_PP);
  std::set<std::string> known;
  for (int stage = 0; stage < stages.size(); ++stage) {
    const std::vector<SafetensorsItem> own =
        stage == stages.rank() ? items : std::vector<SafetensorsItem>();
    std::vector<std::string> names;
    for (const SafetensorsItem &item : own)
      names.push_back(item.name);
    QLORA_ASSIGN_OR_RETURN(const auto all, stages.allGather(fmt::format(
                                               "{}", fmt::join(names, "\n"))));
    std::istringstream list(all[static_cast<size_t>(stage)]);
    size_t number = 0;
    for (std::string name; std::getline(list, name); ++number)
      if (known.insert(name).second && stage > 0)
        QLORA_RETURN_IF_ERROR(takeItem(stages, stage, name,
                                       own.empty() ? nullptr : &own[number]));
  }
  return Status::ok();
}

/// Sends an item from rank `of` to all ranks: `own` is null on other ranks.
Status Dump::takeItem(Collectives &ranks, int of, const std::string &name,
                      const SafetensorsItem *own) {
  std::vector<int64_t> form;
  std::span<const uint8_t> bytes;
  if (own) {
    form = own->shape;
    form.push_back(static_cast<int64_t>(own->dtype));
    bytes = own->bytes;
  }
  QLORA_ASSIGN_OR_RETURN(const auto forms,
                         ranks.allGatherValues(std::span<const int64_t>(form)));
  QLORA_ASSIGN_OR_RETURN(const auto values, ranks.allGatherValues(bytes));
  if (own)
    return Status::ok();
  form = forms[static_cast<size_t>(of)];
  const auto dtype = static_cast<SafetensorsDtype>(form.back());
  form.pop_back();
  add(name, dtype, form, values[static_cast<size_t>(of)]);
  return Status::ok();
}

} // namespace qlora
