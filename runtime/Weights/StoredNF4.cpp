// SPDX-License-Identifier: MIT

// Reading of bitsandbytes' tensors.

#include "runtime/Weights/StoredNF4.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

using nlohmann::json;

namespace qlora {

namespace {
/// The parsed quant_state of one weight.
struct QuantState {
  StoredNF4 weight;
  float nestedOffset = 0;
};
} // namespace

template <typename... Args>
static Status damaged(fmt::format_string<Args...> format, Args &&...args) {
  return Status::error(StatusCode::kDataLoss, format,
                       std::forward<Args>(args)...);
}

static Status readShape(const json &state, StoredNF4 &weight) {
  const auto shape = state.find("shape");
  if (shape == state.end() || !shape->is_array())
    return damaged("no shape");
  for (const json &extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > 1u << 30)
      return damaged("shape {}", shape->dump());
    weight.shape.push_back(extent.get<int64_t>());
  }
  return Status::ok();
}

static Status readNesting(const json &state, QuantState &result) {
  const auto nested = state.find("nested_blocksize");
  result.weight.doubleQuant = nested != state.end();
  if (!result.weight.doubleQuant)
    return Status::ok();
  if (*nested != kNF4NestedBlock)
    return damaged("nested_blocksize {} instead of {}", nested->dump(),
                   kNF4NestedBlock);
  const auto dtype = state.find("nested_dtype");
  if (dtype != state.end() && *dtype != "float32")
    return damaged("nested_dtype {} instead of float32", dtype->dump());
  const auto offset = state.find("nested_offset");
  if (offset == state.end() || !offset->is_number())
    return damaged("no nested_offset");
  result.nestedOffset = offset->get<float>();
  return Status::ok();
}

static StatusOr<QuantState> parseState(std::span<const uint8_t> text) {
  const json state = json::parse(text.begin(), text.end(), nullptr, false);
  if (!state.is_object())
    return damaged("not a JSON object");
  QuantState result;
  const auto type = state.find("quant_type");
  if (type == state.end() || *type != "nf4")
    return damaged("quant_type {} instead of nf4",
                   type == state.end() ? "missing" : type->dump());
  const auto block = state.find("blocksize");
  if (block == state.end() || !block->is_number_unsigned() ||
      block->get<uint64_t>() > 1u << 20)
    return damaged("no blocksize");
  result.weight.block = block->get<int64_t>();
  QLORA_RETURN_IF_ERROR(readShape(state, result.weight));
  QLORA_RETURN_IF_ERROR(readNesting(state, result));
  return result;
}

static StatusOr<QuantState> readState(const ModelFiles &model,
                                      std::string_view weight) {
  const std::string name =
      fmt::format("{}.quant_state.bitsandbytes__nf4", weight);
  if (model.find(fmt::format("{}.quant_state.bitsandbytes__fp4", weight))
          .tensor)
    return Status::error(StatusCode::kUnavailable,
                         "'{}' is stored as fp4; only nf4 is supported",
                         weight);
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(name));
  std::vector<uint8_t> text(entry.tensor->byteCount());
  QLORA_RETURN_IF_ERROR(entry.file->read(*entry.tensor, 0, text));
  auto state = parseState(text);
  if (!state.isOk())
    return state.status().withContext(
        fmt::format("'{}': tensor '{}'", entry.file->path(), name));
  return state;
}

StatusOr<StoredNF4> readStoredNF4(const ModelFiles &model,
                                  std::string_view name) {
  QLORA_ASSIGN_OR_RETURN(QuantState state, readState(model, name));
  return state.weight;
}

/// Copies a tensor whose size (and, unless it is a view, dtype) must fit.
static Status copyPart(const ModelFiles &model, const std::string &name,
                       std::optional<SafetensorsDtype> dtype, int64_t bytes,
                       uint8_t *out) {
  QLORA_ASSIGN_OR_RETURN(ModelFiles::Entry entry, model.get(name));
  const SafetensorsTensor &tensor = *entry.tensor;
  if ((dtype && tensor.dtype != *dtype) ||
      tensor.byteCount() != static_cast<uint64_t>(bytes))
    return damaged(
        "'{}': tensor '{}' is {} {}, {} bytes; expected {}{} bytes",
        entry.file->path(), name, safetensorsDtypeName(tensor.dtype),
        formatShape(tensor.shape), tensor.byteCount(),
        dtype ? std::string(safetensorsDtypeName(*dtype)) + ", " : "", bytes);
  return entry.file->read(tensor, 0, {out, static_cast<size_t>(bytes)});
}

static Status checkState(const StoredNF4 &weight,
                         std::span<const int64_t> shape,
                         const NF4Layout &layout) {
  if (!std::equal(shape.begin(), shape.end(), weight.shape.begin(),
                  weight.shape.end()))
    return damaged("it has shape {}, train.so was compiled for {}",
                   formatShape(weight.shape), formatShape(shape));
  if (weight.block != layout.block || weight.doubleQuant != layout.doubleQuant)
    return damaged("it has block {} with{} double quantisation, train.so was "
                   "compiled for block {} with{}",
                   weight.block, weight.doubleQuant ? "" : "out", layout.block,
                   layout.doubleQuant ? "" : "out");
  return Status::ok();
}

Status copyStoredNF4(const ModelFiles &model, std::string_view name,
                     std::span<const int64_t> shape, const NF4Layout &layout,
                     uint8_t *out) {
  const std::string weight(name);
  QLORA_ASSIGN_OR_RETURN(QuantState state, readState(model, name));
  QLORA_RETURN_IF_ERROR(checkState(state.weight, shape, layout)
                            .withContext(fmt::format("weight '{}' in '{}'",
                                                     name, model.folder())));
  std::memset(out, 0, static_cast<size_t>(layout.bytes));
  QLORA_RETURN_IF_ERROR(copyPart(model, weight, std::nullopt,
                                 (layout.elements + 1) / 2,
                                 out + layout.packed));
  QLORA_RETURN_IF_ERROR(copyPart(
      model, weight + ".absmax",
      layout.doubleQuant ? SafetensorsDtype::kU8 : SafetensorsDtype::kF32,
      layout.blocks * (layout.doubleQuant ? 1 : 4), out + layout.scales));
  QLORA_RETURN_IF_ERROR(copyPart(model, weight + ".quant_map",
                                 SafetensorsDtype::kF32, 16 * 4,
                                 out + layout.codeBook));
  if (!layout.doubleQuant)
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      copyPart(model, weight + ".nested_absmax", SafetensorsDtype::kF32,
               layout.nestedBlocks * 4, out + layout.nestedAbsmax));
  QLORA_RETURN_IF_ERROR(copyPart(model, weight + ".nested_quant_map",
                                 SafetensorsDtype::kF32, 256 * 4,
                                 out + layout.nestedMap));
  std::memcpy(out + layout.offset, &state.nestedOffset,
              sizeof(state.nestedOffset));
  return Status::ok();
}

} // namespace qlora
