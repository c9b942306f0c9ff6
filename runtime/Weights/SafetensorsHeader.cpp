// SPDX-License-Identifier: MIT

// Parses, checks and prints safetensors headers according to the rules of the
// reference implementation's reader.

#include "runtime/Base/JsonText.h"
#include "runtime/Weights/Safetensors.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <tuple>

using nlohmann::json;

namespace qlora {

namespace {
struct DtypeInfo {
  std::string_view name;
  unsigned bits;
};
/// Indexed by SafetensorsDtype.
constexpr std::array<DtypeInfo, 22> kDtypes = {{
    {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
    {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
    {"I64", 64},    {"U64", 64},
}};

/// Nesting depth of a valid header: root object, tensor object, shape array.
constexpr int kMaxDepth = 3;
} // namespace

std::string_view safetensorsDtypeName(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

unsigned safetensorsDtypeBits(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

std::optional<SafetensorsDtype> parseSafetensorsDtype(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name)
      return static_cast<SafetensorsDtype>(i);
  return std::nullopt;
}

std::optional<qlora_dtype> toAbiDtype(SafetensorsDtype dtype) {
  switch (dtype) {
  case SafetensorsDtype::kF32:
    return QLORA_DTYPE_F32;
  case SafetensorsDtype::kBF16:
    return QLORA_DTYPE_BF16;
  case SafetensorsDtype::kF16:
    return QLORA_DTYPE_F16;
  case SafetensorsDtype::kI32:
    return QLORA_DTYPE_I32;
  case SafetensorsDtype::kU8:
    return QLORA_DTYPE_U8;
  default:
    return std::nullopt;
  }
}

std::optional<SafetensorsDtype> fromAbiDtype(qlora_dtype dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    const auto candidate = static_cast<SafetensorsDtype>(i);
    if (toAbiDtype(candidate) == dtype)
      return candidate;
  }
  return std::nullopt;
}

int64_t SafetensorsTensor::elementCount() const {
  int64_t count = 1;
  for (int64_t extent : shape)
    count *= extent;
  return count;
}

std::string formatShape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Parses JSON text more strictly than the library: refuses duplicate names in
/// an object, and nesting deeper than kMaxDepth.
static StatusOr<json> parseStrictJson(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf"))
    return Status::dataLoss("the header starts with a byte order mark");
  std::vector<std::set<std::string>> keys;
  std::string problem;
  auto check = [&](int depth, json::parse_event_t event, json &parsed) {
    if (depth > kMaxDepth && problem.empty())
      problem =
          fmt::format("the header nests deeper than {} levels", kMaxDepth);
    if (!problem.empty())
      return false;
    if (event == json::parse_event_t::object_start)
      keys.emplace_back();
    if (event == json::parse_event_t::object_end)
      keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second)
      problem = fmt::format("'{}' appears twice in the header",
                            parsed.get<std::string>());
    return problem.empty();
  };
  json root = json::parse(text, check, /*allow_exceptions=*/false);
  if (!problem.empty())
    return Status::dataLoss("{}", problem);
  if (root.is_discarded())
    return Status::dataLoss("the header is not UTF-8 JSON");
  if (!root.is_object())
    return Status::dataLoss("the header is not a JSON object");
  return root;
}

static StatusOr<uint64_t> readCount(const json &value, std::string_view what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() >
          static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return Status::dataLoss("{} holds {}, which is not a count", what,
                            dumpJson(value));
  return value.get<uint64_t>();
}

static Status readShape(const json &entry, SafetensorsTensor &tensor) {
  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array())
    return Status::dataLoss("no shape");
  for (const json &extent : *shape) {
    QLORA_ASSIGN_OR_RETURN(uint64_t count, readCount(extent, "shape"));
    tensor.shape.push_back(static_cast<int64_t>(count));
  }
  return Status::ok();
}

static Status readOffsets(const json &entry, SafetensorsTensor &tensor) {
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2)
    return Status::dataLoss("no pair of data_offsets");
  QLORA_ASSIGN_OR_RETURN(tensor.begin,
                         readCount((*offsets)[0], "data_offsets"));
  QLORA_ASSIGN_OR_RETURN(tensor.end, readCount((*offsets)[1], "data_offsets"));
  if (tensor.end < tensor.begin)
    return Status::dataLoss("data_offsets end at {}, before their start {}",
                            tensor.end, tensor.begin);
  return Status::ok();
}

/// Checks that the offsets match the bytes that shape and dtype require.
static Status checkByteCount(const SafetensorsTensor &tensor) {
  uint64_t elements = 1;
  uint64_t bits = 0;
  bool overflow = false;
  for (int64_t extent : tensor.shape)
    overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(extent),
                                       &elements);
  overflow |= __builtin_mul_overflow(
      elements, uint64_t{safetensorsDtypeBits(tensor.dtype)}, &bits);
  const std::string what = fmt::format(
      "{} {}", safetensorsDtypeName(tensor.dtype), formatShape(tensor.shape));
  if (overflow)
    return Status::dataLoss("the size of {} overflows", what);
  if (bits % 8 != 0)
    return Status::dataLoss("{} is {} bits, not a whole number of bytes", what,
                            bits);
  if (bits / 8 != tensor.byteCount())
    return Status::dataLoss("{} needs {} bytes, but its data_offsets span {}",
                            what, bits / 8, tensor.byteCount());
  return Status::ok();
}

static Status readTensor(const json &entry, SafetensorsTensor &tensor) {
  if (!entry.is_object())
    return Status::dataLoss("not a JSON object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string())
    return Status::dataLoss("no dtype");
  const auto known = parseSafetensorsDtype(dtype->get<std::string>());
  if (!known)
    return Status::dataLoss("unknown dtype {}", dumpJson(*dtype));
  tensor.dtype = *known;
  QLORA_RETURN_IF_ERROR(readShape(entry, tensor));
  QLORA_RETURN_IF_ERROR(readOffsets(entry, tensor));
  return checkByteCount(tensor);
}

static Status readMetadata(const json &entry, SafetensorsHeader &header) {
  if (entry.is_null())
    return Status::ok();
  if (!entry.is_object())
    return Status::dataLoss("__metadata__ is not a JSON object");
  for (const auto &[key, value] : entry.items()) {
    if (!value.is_string())
      return Status::dataLoss("__metadata__ '{}' is not a string", key);
    header.metadata.emplace(key, value.get<std::string>());
  }
  return Status::ok();
}

/// Checks that the sorted tensors tile the buffer, without hole or overlap.
static Status checkCoverage(const std::vector<SafetensorsTensor> &tensors,
                            uint64_t bufferBytes) {
  uint64_t end = 0;
  for (const SafetensorsTensor &tensor : tensors) {
    if (tensor.begin != end)
      return Status::dataLoss(
          "tensor '{}' starts at byte {}, but the data before it ends at {}",
          tensor.name, tensor.begin, end);
    end = tensor.end;
  }
  if (end != bufferBytes)
    return Status::dataLoss("the tensors end at byte {} of {} bytes of data{}",
                            end, bufferBytes,
                            end > bufferBytes ? "; the file is truncated" : "");
  return Status::ok();
}

StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text,
                                                   uint64_t bufferBytes) {
  QLORA_ASSIGN_OR_RETURN(json root, parseStrictJson(text));
  SafetensorsHeader header;
  for (const auto &[name, entry] : root.items()) {
    if (name == "__metadata__") {
      QLORA_RETURN_IF_ERROR(readMetadata(entry, header));
      continue;
    }
    SafetensorsTensor tensor;
    tensor.name = name;
    if (Status status = readTensor(entry, tensor); !status.isOk())
      return status.withContext(fmt::format("tensor '{}'", name));
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsTensor &a, const SafetensorsTensor &b) {
              return std::tie(a.begin, a.end, a.name) <
                     std::tie(b.begin, b.end, b.name);
            });
  QLORA_RETURN_IF_ERROR(checkCoverage(header.tensors, bufferBytes));
  return header;
}

std::string
formatSafetensorsHeader(const std::vector<SafetensorsTensor> &tensors,
                        const std::map<std::string, std::string> &metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty())
    root["__metadata__"] = metadata;
  for (const SafetensorsTensor &tensor : tensors) {
    nlohmann::ordered_json &entry = root[tensor.name];
    entry["dtype"] = safetensorsDtypeName(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {tensor.begin, tensor.end};
  }
  std::string text = dumpJson(root);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

} // namespace qlora
