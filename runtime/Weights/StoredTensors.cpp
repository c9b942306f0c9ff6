// SPDX-License-Identifier: MIT

// Readers of bitsandbytes' NF4, FP4 and LLM.int8, and of MXFP4. StoredFp8.cpp
// and StoredIntegers.cpp have the other formats.

#include "runtime/Weights/StoredReaders.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Kernels/StoredTables.h"

using nlohmann::json;

namespace qlora {

static int64_t productOf(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1),
                         std::multiplies<>());
}

// bitsandbytes NF4 and FP4 ----------------------------------------------------

/// Returns the name of the tensor with the format's metadata.
static std::string stateName(const std::string &weight,
                             const StoredFormat &format) {
  return fmt::format("{}.quant_state.bitsandbytes__{}", weight, format.name);
}

static Status readShape(const json &state, StoredDescription &weight) {
  const auto shape = state.find("shape");
  if (shape == state.end() || !shape->is_array())
    return damaged("no shape");
  for (const json &extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > 1u << 30)
      return damaged("shape {}", dumpJson(*shape));
    weight.shape.push_back(extent.get<int64_t>());
  }
  return Status::ok();
}

static Status readNesting(const json &state, bool &doubleQuant,
                          float &correction) {
  const auto nested = state.find("nested_blocksize");
  doubleQuant = nested != state.end();
  if (!doubleQuant)
    return Status::ok();
  if (*nested != kNestedRun)
    return damaged("nested_blocksize {} instead of {}", dumpJson(*nested),
                   kNestedRun);
  const auto dtype = state.find("nested_dtype");
  if (dtype != state.end() && *dtype != "float32")
    return damaged("nested_dtype {} instead of float32", dumpJson(*dtype));
  const auto offset = state.find("nested_offset");
  if (offset == state.end() || !offset->is_number())
    return damaged("no nested_offset");
  correction = offset->get<float>();
  return Status::ok();
}

static Status parseState(std::span<const uint8_t> text,
                         const StoredFormat &format,
                         StoredDescription &result) {
  const json state = json::parse(text.begin(), text.end(), nullptr, false);
  if (!state.is_object())
    return damaged("not a JSON object");
  const auto type = state.find("quant_type");
  if (type == state.end() || *type != format.name)
    return damaged("quant_type {} instead of {}",
                   type == state.end() ? "missing" : dumpJson(*type),
                   format.name);
  const auto block = state.find("blocksize");
  if (block == state.end() || !block->is_number_unsigned() ||
      block->get<uint64_t>() > 1u << 20)
    return damaged("no blocksize");
  if (!format.takesBlock(block->get<int64_t>()))
    return damaged("blocks of {}; supported are powers of two from {} to {}",
                   dumpJson(*block), format.leastBlock, format.mostBlock);
  bool doubleQuant = false;
  QLORA_RETURN_IF_ERROR(readShape(state, result));
  QLORA_RETURN_IF_ERROR(readNesting(state, doubleQuant, result.correction));
  if (result.shape.empty() || result.shape.size() > 2 ||
      productOf(result.shape) <= 0)
    return damaged("shape {}", formatShape(result.shape));
  result.layout = StoredLayout::of(format.dtype, productOf(result.shape),
                                   block->get<int64_t>(), doubleQuant);
  return Status::ok();
}

std::vector<StoredPart> blockParts(const std::string &weight,
                                   const StoredLayout &layout,
                                   int64_t stateBytes) {
  constexpr auto kF32 = SafetensorsDtype::kF32;
  constexpr auto kU8 = SafetensorsDtype::kU8;
  // No dtype for the codes: FSDP checkpoints may view them in another dtype.
  std::vector<StoredPart> parts = {
      {stateName(weight, layout.format()), kU8, {stateBytes}},
      {weight, std::nullopt, {layout.packedBytes}, layout.packed},
      {weight + ".absmax", layout.doubleQuant ? kU8 : kF32, {layout.blocks},
       layout.scales},
      {weight + ".quant_map", kF32, {16}, layout.codeBook}};
  if (layout.doubleQuant)
    parts.insert(parts.end(),
                 {{weight + ".nested_absmax", kF32, {layout.nestedBlocks},
                   layout.nestedAbsmax},
                  {weight + ".nested_quant_map", kF32, {256},
                   layout.nestedMap}});
  return parts;
}

static Status describeBlocks(const ModelFiles &model, const std::string &weight,
                             const StoredFormat &format,
                             StoredDescription &result) {
  const std::string name = stateName(weight, format);
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(name));
  constexpr uint64_t kMostBytes = 1 << 16;
  if (entry.tensor->byteCount() > kMostBytes)
    return damaged("'{}': tensor '{}' has {} bytes; at most {} are supported",
                   entry.file->path(), name, entry.tensor->byteCount(),
                   kMostBytes);
  std::vector<uint8_t> text(entry.tensor->byteCount());
  QLORA_RETURN_IF_ERROR(entry.file->read(*entry.tensor, 0, text));
  if (Status status = parseState(text, format, result); !status.isOk())
    return status.withContext(
        fmt::format("'{}': tensor '{}'", entry.file->path(), name));
  result.parts =
      blockParts(weight, result.layout, static_cast<int64_t>(text.size()));
  return Status::ok();
}

// LLM.int8 --------------------------------------------------------------------

std::string moduleOfWeight(const std::string &weight) {
  constexpr std::string_view kSuffix = ".weight";
  return weight.ends_with(kSuffix)
             ? weight.substr(0, weight.size() - kSuffix.size())
             : weight;
}

/// Requires format 0 ("row"), the only byte order that bitsandbytes saves.
static Status needRowFormat(std::span<uint8_t> bytes, uint8_t *) {
  return bytes[0] == 0 ? Status::ok()
                       : damaged("weight_format {} instead of 0 (row)",
                                 bytes[0]);
}

static Status describeRows(const ModelFiles &model, const std::string &weight,
                           const StoredFormat &format,
                           StoredDescription &result) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(weight));
  const std::vector<int64_t> &shape = entry.tensor->shape;
  if (shape.size() != 2 || productOf(shape) <= 0)
    return damaged("'{}': tensor '{}' has shape {}; expected a matrix",
                   entry.file->path(), weight, formatShape(shape));
  result.shape = shape;
  result.layout =
      StoredLayout::of(format.dtype, productOf(shape), shape[1], false);
  const std::string module = moduleOfWeight(weight);
  result.parts = {{weight, SafetensorsDtype::kI8, shape, result.layout.packed},
                  {module + ".SCB", SafetensorsDtype::kF32, {shape[0]},
                   result.layout.scales}};
  const std::string order = module + ".weight_format";
  if (model.find(order).tensor)
    result.parts.push_back(
        {order, SafetensorsDtype::kU8, {}, -1, needRowFormat});
  return Status::ok();
}

// MXFP4 -----------------------------------------------------------------------

/// Moves even elements to the high nibble. The file has them in the low nibble.
static Status swapNibbles(std::span<uint8_t> bytes, uint8_t *) {
  for (uint8_t &byte : bytes)
    byte = static_cast<uint8_t>(byte << 4 | byte >> 4);
  return Status::ok();
}

/// Refuses NaN, the only E8M0 code that is not a power of two.
static Status needPowers(std::span<uint8_t> bytes, uint8_t *) {
  const auto bad = std::find(bytes.begin(), bytes.end(), uint8_t{255});
  return bad == bytes.end() ? Status::ok()
                            : damaged("scale {} is 255, not a number",
                                      bad - bytes.begin());
}

std::vector<StoredPart> microscalingParts(const std::string &weight,
                                          const std::vector<int64_t> &shape,
                                          const StoredLayout &layout) {
  constexpr auto kU8 = SafetensorsDtype::kU8;
  std::vector<int64_t> scales = shape;
  scales.back() /= layout.block;
  std::vector<int64_t> blocks = scales;
  blocks.push_back(layout.block / 2);
  return {{weight + "_blocks", kU8, blocks, layout.packed, swapNibbles},
          {weight + "_scales", kU8, scales, layout.scales, needPowers}};
}

static Status describeMicroscaling(const ModelFiles &model,
                                   const std::string &weight,
                                   const StoredFormat &format,
                                   StoredDescription &result) {
  const std::string blocks = weight + "_blocks";
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(blocks));
  const std::vector<int64_t> &shape = entry.tensor->shape;
  if (shape.size() < 3 || shape.back() != 16 || productOf(shape) <= 0)
    return damaged("'{}': tensor '{}' has shape {}; expected [..., rows, "
                   "columns / 32, 16]",
                   entry.file->path(), blocks, formatShape(shape));
  result.shape.assign(shape.begin(), shape.end() - 1);
  result.shape.back() *= 32;
  result.layout = StoredLayout::of(format.dtype, productOf(result.shape), 32,
                                   /*doubleQuant=*/true);
  result.parts = microscalingParts(weight, result.shape, result.layout);
  return Status::ok();
}

namespace {
/// A format, recognised by a tensor that has the suffix `mark`.
struct StoredReader {
  qlora_dtype dtype;
  bool ofModule; ///< names begin with "a.q_proj", not with "a.q_proj.weight"
  const char *mark;
  const char *codes; ///< suffix of the tensor with the codes
  Status (*describe)(const ModelFiles &, const std::string &weight,
                     const StoredFormat &, StoredDescription &);

  std::string nameOf(const std::string &weight, const char *part) const {
    return (ofModule ? moduleOfWeight(weight) : weight) + part;
  }
  /// Returns the weight of a tensor that ends in `mark`.
  std::string weightOf(const std::string &marked) const {
    return marked.substr(0, marked.size() - std::string_view(mark).size()) +
           (ofModule ? ".weight" : "");
  }
};
} // namespace

static constexpr StoredReader kReaders[] = {
    {QLORA_DTYPE_NF4, false, ".quant_state.bitsandbytes__nf4", "",
     describeBlocks},
    {QLORA_DTYPE_FP4, false, ".quant_state.bitsandbytes__fp4", "",
     describeBlocks},
    {QLORA_DTYPE_LLM_INT8, true, ".SCB", ".weight", describeRows},
    {QLORA_DTYPE_MXFP4, false, "_blocks", "_blocks", describeMicroscaling},
    {QLORA_DTYPE_FP8, true, ".weight_scale_inv", ".weight", describeFp8},
    {QLORA_DTYPE_FP8, true, ".weight_scale", ".weight", describeFp8},
    {QLORA_DTYPE_INT4, true, ".qweight", ".qweight", describeIntegers},
};

static const StoredReader *findReader(const ModelFiles &model,
                                      const std::string &weight) {
  for (const StoredReader &reader : kReaders)
    if (model.find(reader.nameOf(weight, reader.mark)).tensor)
      return &reader;
  return nullptr;
}

bool isStoredWeight(const ModelFiles &model, std::string_view name) {
  return findReader(model, std::string(name));
}

std::vector<std::string> storedWeights(const ModelFiles &model) {
  std::set<std::string> weights;
  for (const std::string &name : model.tensorNames())
    for (const StoredReader &reader : kReaders)
      if (name.ends_with(reader.mark))
        weights.insert(reader.weightOf(name));
  std::erase_if(weights, [&](const std::string &weight) {
    return !isStoredWeight(model, weight);
  });
  return {weights.begin(), weights.end()};
}

std::string storedTensorName(const ModelFiles &model, std::string_view name) {
  const std::string weight(name);
  const StoredReader *reader = findReader(model, weight);
  return reader ? reader->nameOf(weight, reader->codes) : weight;
}

/// Checks a tensor's size and, unless it is a view, its dtype and shape.
static Status checkPart(const ModelFiles &model, const StoredPart &part) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(part.name));
  const SafetensorsTensor &tensor = *entry.tensor;
  const bool fits =
      part.dtype ? tensor.dtype == *part.dtype && tensor.shape == part.shape
                 : tensor.byteCount() ==
                       static_cast<uint64_t>(productOf(part.shape));
  if (fits)
    return Status::ok();
  if (!part.dtype)
    return damaged("'{}': tensor '{}' has {} bytes; expected {}",
                   entry.file->path(), part.name, tensor.byteCount(),
                   productOf(part.shape));
  return damaged("'{}': tensor '{}' is {} {}; expected {} {}",
                 entry.file->path(), part.name,
                 safetensorsDtypeName(tensor.dtype), formatShape(tensor.shape),
                 safetensorsDtypeName(*part.dtype), formatShape(part.shape));
}

StatusOr<StoredDescription> describeStored(const ModelFiles &model,
                                           std::string_view name) {
  const std::string weight(name);
  const StoredReader *reader = findReader(model, weight);
  if (!reader)
    return Status::notFound("'{}' has no quantized tensors for '{}'",
                            model.folder(), name);
  StoredDescription result;
  QLORA_RETURN_IF_ERROR(reader->describe(
      model, weight, *storedFormat(reader->dtype), result));
  for (const StoredPart &part : result.parts)
    QLORA_RETURN_IF_ERROR(checkPart(model, part));
  return result;
}

// Copying ---------------------------------------------------------------------

static Status copyPart(const ModelFiles &model, const StoredPart &part,
                       uint8_t *out) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(part.name));
  const uint64_t count = entry.tensor->byteCount();
  std::vector<uint8_t> small(part.offset < 0 ? count : 0);
  const std::span<uint8_t> bytes(
      part.offset < 0 ? small.data() : out + part.offset, count);
  QLORA_RETURN_IF_ERROR(entry.file->read(*entry.tensor, 0, bytes));
  if (!part.arrange)
    return Status::ok();
  return part.arrange(bytes, out).withContext(
      fmt::format("'{}': tensor '{}'", entry.file->path(), part.name));
}

static Status checkCompiled(const StoredDescription &stored,
                            std::span<const int64_t> shape,
                            const StoredLayout &layout) {
  std::vector<int64_t> joined = stored.shape;
  while (joined.size() > shape.size() && joined.size() > 1) {
    joined[1] *= joined[0];
    joined.erase(joined.begin());
  }
  if (!std::equal(shape.begin(), shape.end(), joined.begin(), joined.end()))
    return damaged("it has shape {}, but train.so was compiled for {}",
                   formatShape(stored.shape), formatShape(shape));
  const StoredLayout &l = stored.layout;
  if (l.dtype != layout.dtype || l.block != layout.block ||
      l.doubleQuant != layout.doubleQuant)
    return damaged("it has {} in blocks of {} with{} double quantization, but "
                   "train.so was compiled for {} in blocks of {} with{}",
                   l.format().title, l.block, l.doubleQuant ? "" : "out",
                   layout.format().title, layout.block,
                   layout.doubleQuant ? "" : "out");
  return Status::ok();
}

Status copyStored(const ModelFiles &model, std::string_view name,
                  std::span<const int64_t> shape, const StoredLayout &layout,
                  uint8_t *out) {
  QLORA_ASSIGN_OR_RETURN(const StoredDescription stored,
                         describeStored(model, name));
  QLORA_RETURN_IF_ERROR(checkCompiled(stored, shape, layout)
                            .withContext(fmt::format("weight '{}' in '{}'",
                                                     name, model.folder())));
  std::memset(out, 0, static_cast<size_t>(layout.bytes));
  writeTables(layout, out);
  if (layout.doubleQuant)
    std::memcpy(out + layout.correction, &stored.correction,
                sizeof(stored.correction));
  for (const StoredPart &part : stored.parts)
    if (part.offset >= 0 || part.arrange)
      QLORA_RETURN_IF_ERROR(copyPart(model, part, out));
  return Status::ok();
}

} // namespace qlora
