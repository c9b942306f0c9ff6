// SPDX-License-Identifier: MIT

// Lists the tensors of a merged model, and combines base and adapter.

#include "runtime/Export/MergedModel.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Weights/ConvertWeights.h"
#include "runtime/Weights/ParameterWeight.h"
#include "runtime/Weights/StoredTensors.h"

namespace qlora {

using nlohmann::ordered_json;

/// Whether the tensor may have a weight's values.
static bool isFloat(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF32 || dtype == SafetensorsDtype::kBF16 ||
         dtype == SafetensorsDtype::kF16;
}

bool MergedTensor::isWeight() const { return isFloat(dtype); }

int64_t MergedTensor::elementCount() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1),
                         std::multiplies<>());
}

Status TensorValues::read(int64_t first, std::span<float> out) {
  QLORA_RETURN_IF_ERROR(base->read(first, out));
  if (change)
    change->apply(first, out);
  return Status::ok();
}

//===----------------------------------------------------------------------===//
// Tensors of the base
//===----------------------------------------------------------------------===//

Status MergedModel::readConfig() {
  const std::string path = files->folder() + "/config.json";
  QLORA_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path));
  baseConfig = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!baseConfig.is_object())
    return Status::invalid("'{}' is not a JSON object", path);
  // A multimodal model may have the type only in its text model's part.
  for (const ordered_json &part :
       {baseConfig, baseConfig.value("text_config", ordered_json::object())})
    for (const char *key : {"dtype", "torch_dtype"})
      if (part.is_object() && part.value(key, ordered_json()) == "float16")
        type = SafetensorsDtype::kF16;
  return Status::ok();
}

void MergedModel::addTensor(const std::string &name,
                            const std::vector<int64_t> &shape,
                            SafetensorsDtype dtype, bool isStored) {
  MergedTensor tensor{name, shape, dtype, false, isStored};
  all.push_back(std::move(tensor));
}

/// Whether a weight that is quantized in the files as [out, in] is [in, out] if
/// it is not quantized.
bool MergedModel::isTurned(const std::vector<int64_t> &shape) const {
  return shape.size() == 2   ? form.linearsAreInOut
         : shape.size() == 3 ? form.expertsAreInOut
                             : false;
}

/// Lists the tensors of the files: decoded weights in place of their parts.
Status MergedModel::listTensors() {
  std::set<std::string> parts;
  for (const std::string &name : storedWeights(*files)) {
    QLORA_ASSIGN_OR_RETURN(const StoredDescription stored,
                           describeStored(*files, name));
    for (const StoredPart &part : stored.parts)
      parts.insert(files->find(part.name).tensor->name);
    packedBytes.emplace(name, static_cast<uint64_t>(stored.layout.bytes));
    std::vector<int64_t> shape = stored.shape;
    if (isTurned(shape))
      std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
    addTensor(name, shape, type, true);
  }
  const std::vector<std::string> names = files->tensorNames();
  const bool is16Bit = std::ranges::any_of(names, [&](const std::string &name) {
    const SafetensorsDtype dtype = files->find(name).tensor->dtype;
    return dtype == SafetensorsDtype::kBF16 || dtype == SafetensorsDtype::kF16;
  });
  for (const std::string &name : names) {
    if (parts.contains(name))
      continue;
    const SafetensorsTensor &tensor = *files->find(name).tensor;
    const bool keepsType =
        !isFloat(tensor.dtype) ||
        (tensor.dtype == SafetensorsDtype::kF32 && is16Bit);
    addTensor(name, tensor.shape, keepsType ? tensor.dtype : type, false);
  }
  std::ranges::sort(all, {}, &MergedTensor::name);
  return Status::ok();
}

const MergedTensor *MergedModel::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(all, name, {}, &MergedTensor::name);
  return found != all.end() && found->name == name ? &*found : nullptr;
}

/// Finds the tensor that a tied model's embedding and head share, and drops a
/// second copy of it, which transformers does not read.
void MergedModel::tieHead() {
  if (form.tiedHead.empty())
    return;
  const auto nameOf = [&](const std::string &name) {
    const SafetensorsTensor *tensor = files->find(name).tensor;
    return tensor ? tensor->name : std::string();
  };
  const std::string embedding = nameOf(form.tiedEmbedding);
  const std::string head = nameOf(form.tiedHead);
  shared = embedding.empty() ? head : embedding;
  other = embedding.empty() ? form.tiedEmbedding : form.tiedHead;
  if (!embedding.empty() && !head.empty()) {
    other = head;
    std::erase_if(all, [&](const MergedTensor &tensor) {
      return tensor.name == head;
    });
  }
}

/// Makes a tensor of the head if the adapter changes only one of embedding and
/// head. Trained tokens change both.
void MergedModel::untieHead() {
  auto &changes = adapter->changes;
  const auto changeOf = [&](const std::string &name) {
    const auto found = changes.find(name);
    return found == changes.end() ? nullptr : &found->second;
  };
  const TensorChange *const ofShared = changeOf(shared);
  const TensorChange *const ofOther = changeOf(other);
  if (!ofShared && !ofOther)
    return;
  if (const TensorChange *tokens = ofShared ? ofShared : ofOther;
      tokens->tokens) {
    changes[shared] = *tokens;
    changes.erase(other);
    return;
  }
  untied = other;
  MergedTensor tensor = *find(shared);
  tensor.name = other;
  all.push_back(std::move(tensor));
  std::ranges::sort(all, {}, &MergedTensor::name);
}

//===----------------------------------------------------------------------===//
// Opening
//===----------------------------------------------------------------------===//

Status MergedModel::applyAdapter(const MergeRequest &request) {
  if (request.adapter.empty())
    return Status::ok();
  BaseShapes shapes(request.form);
  for (const MergedTensor &tensor : all)
    shapes.add(tensor.name, tensor.shape);
  if (const MergedTensor *tensor = find(shared))
    shapes.add(other, tensor->shape);
  QLORA_ASSIGN_OR_RETURN(
      AdapterChanges changes,
      AdapterChanges::read(request.adapter, shapes, request.form));
  adapter = std::make_shared<AdapterChanges>(std::move(changes));
  untieHead();
  for (MergedTensor &tensor : all)
    tensor.isAdapted = adapter->changes.contains(tensor.name);
  return Status::ok();
}

/// Finds the weights that the program's runs quantize when they read them.
void MergedModel::findQuantized(const LoadedModule &of) {
  program = &of;
  for (const qlora_parameter &parameter : of.parameters()) {
    if (!storedFormat(parameter.format) ||
        parameter.quantization == QLORA_QUANTIZATION_NONE ||
        parameter.quantization == QLORA_QUANTIZATION_STORED)
      continue;
    int64_t part = 0;
    for (const char *name : fileNamesOf(parameter))
      if (const SafetensorsTensor *tensor = files->find(name).tensor)
        quantized[tensor->name] = {&parameter, part++};
  }
  for (MergedTensor &tensor : all)
    tensor.isQuantized |= quantized.contains(tensor.name);
}

StatusOr<MergedModel> MergedModel::open(const MergeRequest &request) {
  MergedModel model;
  model.form = request.form;
  QLORA_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::open(request.base));
  model.files = std::make_shared<const ModelFiles>(std::move(files));
  QLORA_RETURN_IF_ERROR(model.readConfig());
  QLORA_RETURN_IF_ERROR(model.listTensors());
  model.tieHead();
  QLORA_RETURN_IF_ERROR(model.applyAdapter(request));
  if (request.quantized)
    model.findQuantized(*request.quantized);
  return model;
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

StatusOr<std::shared_ptr<const PackedWeight>>
MergedModel::quantizedOf(const qlora_parameter &parameter) const {
  for (const auto &[of, packed] : *recent)
    if (of == &parameter)
      return packed;
  if (recent->size() == 2)
    recent->erase(recent->begin()); // first, so that three never exist
  QLORA_ASSIGN_OR_RETURN(PackedWeight made,
                         PackedWeight::quantize(*program, *files, parameter));
  auto shared = std::make_shared<const PackedWeight>(std::move(made));
  recent->emplace_back(&parameter, shared);
  return shared;
}

StatusOr<BaseValues> MergedModel::baseOf(const MergedTensor &tensor) const {
  const std::string &source = sourceOf(tensor.name);
  if (const auto part = quantized.find(source); part != quantized.end()) {
    const qlora_parameter &parameter = *part->second.parameter;
    QLORA_ASSIGN_OR_RETURN(const auto packed, quantizedOf(parameter));
    BaseValues values = BaseValues::packed(
        packed, part->second.part * tensor.elementCount());
    if (isTransposed(parameter))
      values.transpose(parameter.shape[0], parameter.shape[1]);
    return values;
  }
  if (packedBytes.contains(source)) {
    QLORA_ASSIGN_OR_RETURN(PackedWeight packed,
                           PackedWeight::read(*files, source));
    const bool turns = isTurned(tensor.shape);
    BaseValues values = BaseValues::packed(
        std::make_shared<const PackedWeight>(std::move(packed)), 0);
    if (turns)
      values.transpose(tensor.shape.back(),
                       tensor.shape[tensor.shape.size() - 2]);
    return values;
  }
  QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry, files->get(source));
  QLORA_ASSIGN_OR_RETURN(
      const FileWeight weight,
      FileWeight::of(*entry.file, *entry.tensor, entry.tensor->shape));
  return BaseValues::dense(weight);
}

StatusOr<TensorValues> MergedModel::values(const MergedTensor &tensor) const {
  TensorValues values;
  const TensorChange *change = nullptr;
  if (adapter)
    if (const auto found = adapter->changes.find(tensor.name);
        found != adapter->changes.end())
      change = &found->second;
  if (change && change->replacement) {
    QLORA_ASSIGN_OR_RETURN(const FileWeight whole,
                           FileWeight::of(adapter->file, *change->replacement,
                                          change->replacement->shape));
    values.base = std::make_shared<BaseValues>(BaseValues::dense(whole));
  } else {
    QLORA_ASSIGN_OR_RETURN(BaseValues base, baseOf(tensor));
    values.base = std::make_shared<BaseValues>(std::move(base));
  }
  if (!change)
    return values;
  QLORA_ASSIGN_OR_RETURN(
      values.change,
      AppliedChange::make(adapter->file, *change, tensor.shape,
                          [&](int64_t first, std::span<float> out) {
                            return values.base->read(first, out);
                          }));
  return values;
}

Status MergedModel::readBytes(const MergedTensor &tensor, uint64_t firstByte,
                              std::span<uint8_t> out) const {
  QLORA_ASSIGN_OR_RETURN(const ModelFiles::Entry entry,
                         files->get(tensor.name));
  return entry.file->read(*entry.tensor, firstByte, out);
}

uint64_t MergedModel::largestBytes() const {
  uint64_t largest = 0;
  for (const MergedTensor &tensor : all)
    largest =
        std::max(largest, 2 * static_cast<uint64_t>(tensor.elementCount()));
  return largest;
}

uint64_t MergedModel::peakBytes() const {
  uint64_t peak = 0, packed = 0;
  for (const auto &[name, part] : quantized)
    packed = std::max(packed, static_cast<uint64_t>(
                                  layoutOf(*part.parameter).bytes));
  for (const MergedTensor &tensor : all) {
    uint64_t bytes = 2 * packed;
    const auto elements = static_cast<uint64_t>(tensor.elementCount());
    if (const auto stored = packedBytes.find(tensor.name);
        stored != packedBytes.end())
      bytes = stored->second + (isTurned(tensor.shape) ? 4 * elements : 0);
    if (const auto part = quantized.find(tensor.name); part != quantized.end())
      if (isTransposed(*part->second.parameter))
        bytes += 8 * elements;
    if (tensor.isAdapted)
      bytes += AppliedChange::bytes(adapter->changes.find(tensor.name)->second);
    peak = std::max(peak, bytes);
  }
  return peak;
}

} // namespace qlora
