// SPDX-License-Identifier: MIT

// Chooses the batch and the lengths of answers.

#include "tools/qlora/AnswerSettings.h"

#include <algorithm>

#include "frontend/HfConfig.h"

namespace qlora {

static constexpr const char *kOption = "predict_with_generate";
static constexpr int64_t kMaxNewTokens = 256;

static Status addDefault(const char *name, int64_t value, Options &options) {
  return options.isGiven(name)
             ? Status::ok()
             : options.applySetting(name, fmt::to_string(value),
                                    options.spelling(kOption));
}

/// Returns the tokens of the longest row with an answer, as far as the model
/// has positions for them.
static StatusOr<int64_t> rowLength(const Options &options) {
  const auto &most = options.value("generation_max_new_tokens");
  const int64_t tokens = options.lengths("max_length").back() +
                         (most.is_number() ? most.get<int64_t>() : 0);
  const std::string model = options.text("model_name_or_path");
  if (model.empty()) // which is refused later
    return tokens;
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config, readHfConfig(model, {}));
  return config.maxPositions > 0 ? std::min(tokens, config.maxPositions)
                                 : tokens;
}

Status addAnswerSettings(Options &options) {
  if (!options.boolean(kOption))
    return Status::ok();
  if (const std::string entries = options.text("entries");
      entries == "train" || entries == "generate")
    return Status::invalid("{} needs a program that trains and generates, not "
                           "{} {}. Fix: write --entries both",
                           options.spelling(kOption),
                           options.spelling("entries"), entries);
  QLORA_RETURN_IF_ERROR(addDefault("generation_batch", 8, options));
  if (options.isGiven("generation_length"))
    return Status::ok();
  QLORA_RETURN_IF_ERROR(
      addDefault("generation_max_new_tokens", kMaxNewTokens, options));
  QLORA_ASSIGN_OR_RETURN(const int64_t length, rowLength(options));
  return addDefault("generation_length", length, options);
}

} // namespace qlora
