// SPDX-License-Identifier: MIT

// Translates keys that choose the trainable weights, their start, and how
// micro-batches count.

#include <algorithm>
#include <charconv>

#include "frontend/HfConfig.h"
#include "runtime/Base/JsonText.h"
#include "tools/qlora/ForeignTranslation.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// axolotl sets its Trainer's model_accepts_loss_kwargs to false for models
/// whose forward passes keyword arguments on (core/trainers/base.py).
Status Translation::translateAccumulation(const YamlEntry &entry) {
  if (isOf(ForeignTool::kAxolotl) && foreignNameOf(entry.value) != "1" &&
      objective() == "none")
    note(entry, "counts all tokens of a step the same, as transformers does; "
                "axolotl averages the means of micro-batches");
  return add(entry, "gradient_accumulation_steps", entry.value), Status::ok();
}

/// If DPOTrainer gets a model with an adapter, it copies the adapter as the
/// reference.
Status Translation::translateStartAdapter(const YamlEntry &entry) {
  if (objective() == "dpo" || objective() == "kto")
    return refused("would be the reference of the preferences too, which is "
                   "not supported: merge it into the model (qlora export "
                   "RUN_DIR --to merged), and train that");
  return translateRow(entry);
}

/// With an adapter, axolotl compares the names of PEFT's model, all of which
/// begin with "base_model": names of the base match none of them.
Status Translation::translateUnfrozen(const YamlEntry &entry) {
  const json *adapter = find("adapter");
  if (!adapter || isOffWord(foreignNameOf(*adapter)))
    return translateRow(entry);
  const auto isOfBase = [](const json &pattern) {
    const std::string text = foreignNameOf(pattern);
    const std::string_view name =
        std::string_view(text).substr(text.starts_with('^') ? 1 : 0);
    return name.starts_with("model") || name.starts_with("lm_head");
  };
  const json patterns =
      entry.value.is_array() ? entry.value : json::array({entry.value});
  if (!std::ranges::all_of(patterns, isOfBase))
    return refused("chooses weights of an adapter, which is not supported: "
                   "write lora_target_modules");
  return note(entry, "names weights of the base, which stay frozen: the "
                     "adapter is trained (axolotl would freeze it too)"),
         Status::ok();
}

/// Returns the texts of "a,b" or of a list.
static std::vector<std::string> listOf(const json *value) {
  std::string words = !value              ? ""
                      : value->is_array() ? ""
                                          : foreignNameOf(*value);
  std::ranges::replace(words, ',', ' ');
  std::vector<std::string> list;
  for (const std::string_view word : splitWords(words))
    list.emplace_back(word);
  if (value && value->is_array())
    for (const json &word : *value)
      list.push_back(foreignNameOf(word));
  return list;
}

/// Translates LLaMA-Factory's freeze tuning to full fine-tuning. chooseLayers()
/// adds unfrozen_parameters.
Status Translation::translateTuning(const YamlEntry &entry) {
  if (foreignNameOf(entry.value) != "freeze")
    return file.entries.push_back(entry), Status::ok();
  FreezeTuning &freeze = file.freeze.emplace();
  if (const json *layers = find("freeze_trainable_layers")) {
    const std::string text = foreignNameOf(*layers);
    std::from_chars(text.data(), text.data() + text.size(), freeze.layers);
  }
  if (const json *modules = find("freeze_trainable_modules"))
    freeze.modules = listOf(modules);
  freeze.others = listOf(find("freeze_extra_modules"));
  const json *isPro = find("use_llama_pro");
  freeze.isEven = isPro && foreignNameOf(*isPro) == "true";
  return add(entry, "finetuning_type", "full"), Status::ok();
}

Status Translation::skipIfFreeze(const YamlEntry &entry) {
  const json *type = find("finetuning_type");
  return type && foreignNameOf(*type) == "freeze" ? Status::ok()
                                                  : translateRow(entry);
}

/// Returns the indices of the layers, as _setup_freeze_tuning() in
/// LLaMA-Factory's model/adapter.py does.
static StatusOr<std::vector<int64_t>> layersOf(const FreezeTuning &freeze,
                                               int64_t count) {
  const int64_t chosen = std::abs(freeze.layers);
  if (freeze.isEven && (freeze.layers < 1 || count % freeze.layers != 0))
    return Status::invalid("use_llama_pro needs a freeze_trainable_layers that "
                           "divides the model's {} layers, but got {}",
                           count, freeze.layers);
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < count; ++layer) {
    const bool isChosen = freeze.isEven
                              ? (layer + 1) % (count / freeze.layers) == 0
                          : freeze.layers > 0 ? layer >= count - chosen
                                              : layer < chosen;
    if (isChosen)
      layers.push_back(layer);
  }
  return layers;
}

Status chooseLayers(const ForeignFile &file, Options &options) {
  if (!file.freeze)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const ModelConfig config,
                         readHfConfig(options.text("model_name_or_path"), {}));
  QLORA_ASSIGN_OR_RETURN(const std::vector<int64_t> layers,
                         layersOf(*file.freeze, config.layers));
  json patterns = json::array();
  for (const std::string &module : file.freeze->modules)
    for (const int64_t layer : layers)
      patterns.push_back(
          fmt::format(".+.{}.{}", layer, module == "all" ? "" : module));
  for (const std::string &module : file.freeze->others)
    patterns.push_back(fmt::format("(.+)?{}", module));
  if (patterns.empty())
    return Status::invalid("finetuning_type: freeze chooses no layer: write "
                           "freeze_trainable_layers above or below 0");
  const std::string text = dumpJson(patterns);
  return options.applySetting("unfrozen_parameters", text, text);
}

} // namespace qlora
