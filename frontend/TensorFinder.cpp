// SPDX-License-Identifier: MIT

// Finds and checks single tensors.

#include "frontend/TensorFinder.h"

#include <algorithm>
#include <fnmatch.h>
#include <regex>

namespace qlora {

static Status wrongShape(const ModelFiles &files, const std::string &name,
                         const std::vector<int64_t> &found,
                         const std::vector<int64_t> &expected) {
  return Status::dataLoss("'{}': tensor '{}' has shape {}; config.json implies "
                          "{}",
                          files.find(name).file->path(), name,
                          formatShape(found), formatShape(expected));
}

StatusOr<Weight> TensorFinder::take(const std::string &name) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files.get(name));
  QLORA_ASSIGN_OR_RETURN(std::string file, files.fileOf(name));
  skip(name);
  return Weight{name, std::move(file), entry.tensor->dtype,
                entry.tensor->shape};
}

StatusOr<Weight> TensorFinder::dense(const std::string &name,
                                     const std::vector<int64_t> &shape) {
  const ModelFiles::Entry entry = files.find(name);
  if (!entry.tensor)
    return files.get(name).status().withContext(
        fmt::format("expected '{}' {}", name, formatShape(shape)));
  if (isStoredWeight(files, name))
    return Status::unavailable(
        "'{}': tensor '{}' is quantized, but only linears "
        "of layers may be quantized",
        entry.file->path(), name);
  QLORA_ASSIGN_OR_RETURN(Weight weight, take(name));
  if (weight.shape != shape)
    return wrongShape(files, name, weight.shape, shape);
  if (weight.dtype != SafetensorsDtype::kBF16 &&
      weight.dtype != SafetensorsDtype::kF16 &&
      weight.dtype != SafetensorsDtype::kF32)
    return Status::unavailable(
        "'{}': tensor '{}' is {}; only BF16, F16, F32 and the "
        "stored formats of docs/formats.md are supported",
        entry.file->path(), name, safetensorsDtypeName(weight.dtype));
  return weight;
}

/// True if the regular expression matches a prefix of `module`.
/// compressed-tensors uses Python's re.match. False for an invalid expression.
static bool startsAs(const std::string &module, const std::string &pattern) {
  try {
    return std::regex_search(module, std::regex(pattern),
                             std::regex_constants::match_continuous);
  } catch (const std::regex_error &) {
    return false;
  }
}

/// True if config.json allows `module` to be unquantized. As in transformers,
/// an entry of its list of unquantized modules matches the start or the end of
/// a module path. Entries may contain "*".
bool TensorFinder::isLeftUnquantized(const std::string &module) const {
  constexpr std::string_view kPattern = "re:";
  const auto matches = [&](const std::string &entry) {
    if (entry.starts_with(kPattern))
      return startsAs(module, entry.substr(kPattern.size()));
    return fnmatch((entry + "*").c_str(), module.c_str(), 0) == 0 ||
           fnmatch(("*" + entry).c_str(), module.c_str(), 0) == 0;
  };
  return config.isChosenByFiles ||
         std::ranges::any_of(config.unquantizedModules, matches);
}

StatusOr<LinearWeight> TensorFinder::linear(const std::string &module,
                                            int64_t out, int64_t in) {
  const std::string name = module + ".weight";
  const ModelFiles::Entry entry = files.find(name);
  LinearWeight linear;
  linear.module = module;
  if (isStoredWeight(files, name)) {
    QLORA_ASSIGN_OR_RETURN(linear.weight, stored(name, {out, in}));
    return linear;
  }
  if (entry.tensor && config.storedFormat && !isLeftUnquantized(module))
    return Status::invalid("'{}': tensor '{}' is not quantized, but "
                           "config.json has a quantization_config; list the "
                           "module in its {}",
                           entry.file->path(), name, config.unquantizedKey);
  linear.layout = config.family->layout;
  std::vector<int64_t> shape = {out, in};
  if (linear.layout == LinearLayout::kInOut)
    std::swap(shape[0], shape[1]);
  QLORA_ASSIGN_OR_RETURN(linear.weight, dense(name, shape));
  return linear;
}

StatusOr<Weight> TensorFinder::stored(const std::string &name,
                                      const std::vector<int64_t> &shape) {
  const std::string codes = storedTensorName(files, name);
  QLORA_ASSIGN_OR_RETURN(Weight weight, take(codes));
  QLORA_ASSIGN_OR_RETURN(const StoredDescription found,
                         describeStored(files, name));
  const std::string &path = files.find(codes).file->path();
  const StoredFormat &format = found.layout.format();
  if (!config.storedFormat)
    return Status::invalid("'{}': tensor '{}' is quantized, but config.json "
                           "has no quantization_config",
                           path, codes);
  if (config.storedFormat->dtype != format.dtype)
    return Status::invalid("'{}': tensor '{}' is stored as {}, but config.json "
                           "says {}",
                           path, codes, format.title,
                           config.storedFormat->title);
  if (found.shape != shape)
    return wrongShape(files, codes, found.shape, shape);
  const int64_t block = config.storedBlock.value_or(found.layout.block);
  if (found.layout.block != (block < 0 ? shape.back() : block))
    return Status::invalid(
        "'{}': tensor '{}' has groups of {}, but config.json "
        "says group_size {}",
        path, codes, found.layout.block, block);
  for (const StoredPart &part : found.parts)
    skip(part.name);
  weight.name = name;
  weight.stored = found.layout;
  weight.shape = {found.layout.elements / shape.back(), shape.back()};
  ++quantizedCount;
  return weight;
}

Status TensorFinder::checkQuantization() const {
  if (!config.storedFormat || quantizedCount)
    return Status::ok();
  return Status::invalid("config.json has a quantization_config, but no "
                         "tensor in '{}' is quantized; remove it and let "
                         "qloracc quantize (--load-in-4bit)",
                         files.folder());
}

} // namespace qlora
