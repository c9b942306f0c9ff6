// SPDX-License-Identifier: MIT

// The checks of single tensors.

#include "frontend/TensorFinder.h"

#include <algorithm>

#include "runtime/Weights/StoredNF4.h"

namespace qlora {

static Status wrongShape(const ModelFiles &files, const std::string &name,
                         const std::vector<int64_t> &found,
                         const std::vector<int64_t> &expected) {
  return Status::error(StatusCode::kDataLoss,
                       "'{}': tensor '{}' has shape {}; config.json implies "
                       "{}",
                       files.find(name).file->path(), name, formatShape(found),
                       formatShape(expected));
}

StatusOr<Weight> TensorFinder::take(const std::string &name) {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files.get(name));
  QLORA_ASSIGN_OR_RETURN(std::string file, files.fileOf(name));
  skip(name);
  return Weight{name, std::move(file), entry.tensor->dtype,
                entry.tensor->shape};
}

bool TensorFinder::isStoredQuantized(const std::string &name) const {
  return files.find(name + ".quant_state.bitsandbytes__nf4").tensor ||
         files.find(name + ".quant_state.bitsandbytes__fp4").tensor;
}

StatusOr<Weight> TensorFinder::dense(const std::string &name,
                                     const std::vector<int64_t> &shape) {
  const ModelFiles::Entry entry = files.find(name);
  if (!entry.tensor)
    return files.get(name).status().withContext(
        fmt::format("expected '{}' {}", name, formatShape(shape)));
  if (isStoredQuantized(name))
    return Status::error(StatusCode::kUnavailable,
                         "'{}': tensor '{}' is quantised; only the linears "
                         "of the layers may be",
                         entry.file->path(), name);
  QLORA_ASSIGN_OR_RETURN(Weight weight, take(name));
  if (weight.shape != shape)
    return wrongShape(files, name, weight.shape, shape);
  if (weight.dtype != SafetensorsDtype::kBF16 &&
      weight.dtype != SafetensorsDtype::kF16 &&
      weight.dtype != SafetensorsDtype::kF32)
    return Status::error(StatusCode::kUnavailable,
                         "'{}': tensor '{}' is {}; only BF16, F16, F32 and "
                         "bitsandbytes' NF4 are supported",
                         entry.file->path(), name,
                         safetensorsDtypeName(weight.dtype));
  return weight;
}

/// transformers' rule: an entry is the start or the end of a module's path.
bool TensorFinder::isLeftUnquantized(const std::string &module) const {
  return std::any_of(
      config.unquantizedModules.begin(), config.unquantizedModules.end(),
      [&](const std::string &entry) {
        return module.starts_with(entry) || module.ends_with(entry);
      });
}

StatusOr<LinearWeight> TensorFinder::linear(const std::string &module,
                                            int64_t out, int64_t in) {
  const std::string name = module + ".weight";
  const ModelFiles::Entry entry = files.find(name);
  LinearWeight linear;
  linear.module = module;
  if (isStoredQuantized(name)) {
    if (!config.quantized)
      return Status::invalid("'{}': tensor '{}' is quantised, but config.json "
                             "has no quantization_config",
                             entry.file->path(), name);
    QLORA_ASSIGN_OR_RETURN(linear.weight, quantized(name, {out, in}));
    return linear;
  }
  if (entry.tensor && config.quantized && !isLeftUnquantized(module))
    return Status::invalid("'{}': tensor '{}' has no quant_state, but "
                           "config.json has a quantization_config; list the "
                           "module in its llm_int8_skip_modules",
                           entry.file->path(), name);
  linear.layout = config.family->layout;
  std::vector<int64_t> shape = {out, in};
  if (linear.layout == LinearLayout::kInOut)
    std::swap(shape[0], shape[1]);
  QLORA_ASSIGN_OR_RETURN(linear.weight, dense(name, shape));
  return linear;
}

Status TensorFinder::takePart(const std::string &name, SafetensorsDtype dtype,
                              int64_t count) {
  QLORA_ASSIGN_OR_RETURN(const Weight part, take(name));
  if (part.dtype == dtype && files.find(name).tensor->elementCount() == count)
    return Status::ok();
  return Status::error(
      StatusCode::kDataLoss, "'{}': tensor '{}' is {} {}; expected {} [{}]",
      files.find(name).file->path(), name, safetensorsDtypeName(part.dtype),
      formatShape(part.shape), safetensorsDtypeName(dtype), count);
}

StatusOr<Weight> TensorFinder::quantized(const std::string &name,
                                         const std::vector<int64_t> &shape) {
  QLORA_ASSIGN_OR_RETURN(Weight weight, take(name));
  QLORA_ASSIGN_OR_RETURN(const StoredNF4 stored, readStoredNF4(files, name));
  skip(name + ".quant_state.bitsandbytes__nf4");
  if (stored.shape != shape)
    return wrongShape(files, name, stored.shape, shape);
  const std::string &path = files.find(name).file->path();
  if (stored.block < 64 || stored.block > 4096 ||
      (stored.block & (stored.block - 1)))
    return Status::error(StatusCode::kUnavailable,
                         "'{}': tensor '{}' has blocks of {}; supported are "
                         "powers of two from 64 to 4096",
                         path, name, stored.block);
  // The packed codes may be stored as a view in another dtype, for FSDP.
  const NF4Layout layout =
      NF4Layout::of(shape[0] * shape[1], stored.block, stored.doubleQuant);
  const uint64_t bytes = files.find(name).tensor->byteCount();
  if (bytes != static_cast<uint64_t>(layout.elements + 1) / 2)
    return Status::error(StatusCode::kDataLoss,
                         "'{}': tensor '{}' has {} bytes; {} in 4 bits are "
                         "{}",
                         path, name, bytes, formatShape(shape),
                         (layout.elements + 1) / 2);
  const auto scaleType =
      stored.doubleQuant ? SafetensorsDtype::kU8 : SafetensorsDtype::kF32;
  QLORA_RETURN_IF_ERROR(takePart(name + ".absmax", scaleType, layout.blocks));
  QLORA_RETURN_IF_ERROR(
      takePart(name + ".quant_map", SafetensorsDtype::kF32, 16));
  if (stored.doubleQuant) {
    QLORA_RETURN_IF_ERROR(takePart(
        name + ".nested_absmax", SafetensorsDtype::kF32, layout.nestedBlocks));
    QLORA_RETURN_IF_ERROR(
        takePart(name + ".nested_quant_map", SafetensorsDtype::kF32, 256));
  }
  weight.shape = shape;
  weight.nf4Block = stored.block;
  weight.doubleQuant = stored.doubleQuant;
  ++quantizedCount;
  return weight;
}

Status TensorFinder::checkQuantization() const {
  if (!config.quantized || quantizedCount)
    return Status::ok();
  return Status::invalid("config.json has a quantization_config, but no "
                         "tensor in '{}' is quantised; remove it and let "
                         "qloracc quantise (--load-in-4bit)",
                         files.folder());
}

} // namespace qlora
