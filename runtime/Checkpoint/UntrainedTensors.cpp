// SPDX-License-Identifier: MIT

// Finds and copies the tensors that full fine-tuning leaves unchanged.

#include "runtime/Checkpoint/UntrainedTensors.h"

#include <algorithm>

#include "runtime/Module/ParameterCounts.h"
#include "runtime/Weights/FileWeight.h"
#include "runtime/Weights/Parameters.h"

namespace qlora {

/// Name of every family's LM head.
static constexpr const char *kHead = "lm_head.weight";

StatusOr<UntrainedTensors> UntrainedTensors::find(const LoadedModule &module,
                                                  const Options &options) {
  UntrainedTensors untrained;
  if (!trainsModel(module))
    return untrained;
  QLORA_ASSIGN_OR_RETURN(ModelFiles files,
                         ModelFiles::open(options.text("model_name_or_path")));
  untrained.files = std::make_shared<const ModelFiles>(std::move(files));
  const auto &all = *untrained.files;
  for (const std::string &name : all.tensorNames())
    untrained.entries.emplace(name, all.find(name));
  bool hasHead = false;
  const auto remove = [&](std::string_view name) {
    if (const SafetensorsTensor *tensor = all.find(name).tensor)
      untrained.entries.erase(tensor->name);
  };
  for (const qlora_parameter &parameter : module.parameters())
    for (const char *name : fileNamesOf(parameter)) {
      hasHead |= std::string_view(name).ends_with(kHead);
      if (isTrained(parameter.role))
        remove(name);
    }
  // A copy of the embedding, from before it was trained. transformers would not
  // tie the two if it found both.
  if (!hasHead)
    remove(kHead);
  return untrained;
}

void UntrainedTensors::addTo(std::vector<SafetensorsItem> &items) const {
  for (const auto &[name, entry] : entries)
    items.push_back(
        {name,
         entry.tensor->dtype,
         entry.tensor->shape,
         {static_cast<const uint8_t *>(nullptr), entry.tensor->byteCount()}});
}

NextBytes UntrainedTensors::joined(std::vector<SafetensorsItem> items,
                                   NextBytes trained) const {
  sortAsInFile(items);
  return [own = *this, items = std::move(items), trained = std::move(trained),
          number = size_t(0),
          given = uint64_t(0)](std::span<uint8_t> out) mutable {
    while (!out.empty()) {
      const SafetensorsItem &item = items[number];
      const auto part =
          out.first(std::min<uint64_t>(out.size(), item.bytes.size() - given));
      const auto found = own.entries.find(item.name);
      const auto &[file, tensor] = found == own.entries.end()
                                       ? ModelFiles::Entry{nullptr, nullptr}
                                       : found->second;
      QLORA_RETURN_IF_ERROR(file ? file->read(*tensor, given, part)
                                 : trained(part));
      given += part.size();
      out = out.subspan(part.size());
      if (given == item.bytes.size())
        ++number, given = 0;
    }
    return Status::ok();
  };
}

} // namespace qlora
