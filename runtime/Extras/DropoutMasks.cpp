// SPDX-License-Identifier: MIT

// Reads recorded dropouts and draws their masks.

#include "runtime/Extras/DropoutMasks.h"

#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Kernels/Math/Philox.h"

namespace qlora {

using nlohmann::ordered_json;

static constexpr std::string_view kSuffix = ".lora_A.weight";

/// Checks that an adapter's entry has all fields.
static bool isComplete(const ordered_json &entry) {
  return entry.is_object() && entry.contains("op") &&
         entry["op"].is_number_integer() && entry.contains("probability") &&
         entry["probability"].is_number();
}

StatusOr<std::vector<AdapterDropout>>
recordedDropout(const LoadedModule &module, const Options &options) {
  std::vector<AdapterDropout> dropouts;
  const ordered_json &recorded = options.recordedMetadata("adapter_dropout");
  if (recorded.is_null())
    return dropouts;
  auto damaged = [&](const std::string &what) {
    return Status::dataLoss("'{}': adapter_dropout {}; compile it again",
                            module.path(), what);
  };
  if (!recorded.is_object())
    return damaged("is not an object");
  for (const qlora_parameter *parameter : trainedParameters(module)) {
    std::string name = parameter->name;
    if (!name.ends_with(kSuffix))
      continue;
    auto entry = recorded.find(name);
    if (entry == recorded.end() || !isComplete(*entry))
      return damaged("has no op and probability for '" + name + "'");
    dropouts.push_back({name.substr(0, name.size() - kSuffix.size()),
                        parameter->shape[parameter->rank - 1],
                        (*entry)["op"].get<int64_t>(),
                        (*entry)["probability"].get<float>()});
  }
  if (dropouts.size() != recorded.size())
    return damaged("names adapters that are not in the program");
  return dropouts;
}

void drawMask(const AdapterDropout &dropout, uint64_t seed, uint64_t microBatch,
              int64_t rows, std::span<uint8_t> mask) {
  const uint64_t op = static_cast<uint64_t>(dropout.op);
  uint8_t *kept = mask.data();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < dropout.columns; ++column)
      *kept++ = qlora_uniform(seed, microBatch, op, row, column) >=
                dropout.probability;
}

} // namespace qlora
