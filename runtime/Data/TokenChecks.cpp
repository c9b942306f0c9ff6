// SPDX-License-Identifier: MIT

// Checks of tokens and their messages.

#include "runtime/Data/TokenChecks.h"

#include <cstring>

#include "runtime/Data/Dataset.h"

namespace qlora {

StatusOr<std::vector<int32_t>> readInt32(const SafetensorsFile &file,
                                         std::string_view name,
                                         const std::vector<int64_t> &shape) {
  QLORA_ASSIGN_OR_RETURN(const SafetensorsTensor *tensor, file.get(name));
  if (tensor->dtype != SafetensorsDtype::kI32)
    return Status::invalid("'{}': {} expects I32, but is {}", file.path(), name,
                           safetensorsDtypeName(tensor->dtype));
  if (tensor->shape != shape)
    return Status::invalid("'{}': {} has the shape {}, but input_ids has {}",
                           file.path(), name, formatShape(tensor->shape),
                           formatShape(shape));
  std::span<const uint8_t> bytes = file.bytes(*tensor);
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  if (!values.empty())
    std::memcpy(values.data(), bytes.data(), bytes.size());
  file.release(*tensor);
  return values;
}

bool isToken(int32_t id, int64_t vocabSize) {
  return id >= 0 && id < vocabSize;
}

bool isLabel(int32_t label, int64_t vocabSize) {
  return label == kNoLabel || isToken(label, vocabSize);
}

Status badToken(const std::string &where, int32_t id, int32_t label,
                int64_t vocabSize) {
  if (!isToken(id, vocabSize))
    return Status::invalid("{}: token id {} is outside the model's vocabulary "
                           "[0, {}); is it another model's tokenizer?",
                           where, id, vocabSize);
  return Status::invalid("{}: label {} is neither -100 nor inside the model's "
                         "vocabulary [0, {})",
                         where, label, vocabSize);
}

Status noLabels(const std::string &path) {
  return Status::invalid("'{}' has no labelled token to predict: all labels "
                         "are -100 or the first of their row",
                         path);
}

} // namespace qlora
