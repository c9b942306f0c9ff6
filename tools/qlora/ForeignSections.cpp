// SPDX-License-Identifier: MIT

// Translates keys with a list or a section of their own, such as `plugins`, and
// keys whose effect depends on another key of the file.

#include "tools/qlora/ForeignTranslation.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Options/OptionTable.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Plugins of axolotl, without "axolotl.integrations.", that change only speed,
/// memory, layout and logs.
static constexpr const char *kSamePlugins =
    "liger.LigerPlugin cut_cross_entropy.CutCrossEntropyPlugin "
    "kernels.KernelsPlugin expert_parallel.ExpertParallelPlugin "
    "swanlab.SwanLabPlugin lm_eval.LMEvalPlugin";

Status Translation::translatePlugins(const YamlEntry &entry) {
  constexpr std::string_view kPrefix = "axolotl.integrations.";
  std::string others;
  for (const json &plugin :
       entry.value.is_array() ? entry.value : json::array({entry.value})) {
    const std::string name = foreignNameOf(plugin);
    if (name == "none")
      continue;
    // "liger.LigerPlugin" and "liger.plugin.LigerPlugin" are the same class.
    const std::string_view rest = std::string_view(name).substr(
        name.starts_with(kPrefix) ? kPrefix.size() : 0);
    const std::string type(rest.substr(rest.rfind('.') + 1));
    const std::string shorter =
        std::string(rest.substr(0, rest.find('.'))) + "." + type;
    if (!name.starts_with(kPrefix) ||
        !std::ranges::count(splitWords(kSamePlugins), shorter))
      others += (others.empty() ? "" : ", ") + name;
  }
  if (!others.empty())
    return Status::invalid("has plugins that would change the training in an "
                           "unsupported way: {}; remove them",
                           others);
  return note(entry, "chooses kernels and logs: not needed"), Status::ok();
}

/// Remembers the tokens, to compare them with the model's, whose folder is not
/// known yet. pad_token is ignored, because padding is never in the loss.
Status Translation::translateSpecialTokens(const YamlEntry &entry) {
  if (entry.value.is_array() && entry.key == "tokens") {
    file.specialTokens.push_back({entry.key, entry.value, entry.line});
    return Status::ok();
  }
  if (!entry.value.is_object())
    return refused("expects names of tokens, such as {eos_token: </s>}");
  for (const auto &[token, text] : entry.value.items())
    if (token != "pad_token" && !text.is_null()) {
      file.specialTokens.push_back({token, text, entry.line});
      if (token == "eos_token")
        add(entry, "eos_token", text);
    }
  return Status::ok();
}

/// Translates a section whose keys are options or keys of the table.
Status Translation::translateSection(const YamlEntry &entry) {
  static const std::map<std::string_view, std::string_view> kKnown = {
      {"bnb_config_kwargs",
       "bnb_4bit_use_double_quant bnb_4bit_quant_type bnb_4bit_quant_storage "
       "bnb_4bit_compute_dtype"},
      {"peft", "loftq_config"}};
  if (!entry.value.is_object())
    return isOffWord(foreignNameOf(entry.value))
               ? Status::ok()
               : refused("expects names and values");
  for (const auto &[key, value] : entry.value.items()) {
    if (!std::ranges::count(splitWords(kKnown.at(entry.key)), key))
      return Status::invalid("has '{}', which is not supported: remove it",
                             key);
    if (value.is_null())
      continue;
    QLORA_RETURN_IF_ERROR(translateRow({key, value, entry.line, entry.key}));
    // PEFT replaces the base by its NF4 values, without double quantization.
    if (key == "loftq_config") {
      add(entry, "init_lora_weights", "loftq");
      add(entry, "load_in_4bit", "true");
      add(entry, "bnb_4bit_use_double_quant", "false");
    }
  }
  return Status::ok();
}

/// Translates changes of config.json: only whether the routers have a loss.
Status Translation::translateModelConfig(const YamlEntry &entry) {
  if (isOffWord(foreignNameOf(entry.value)))
    return Status::ok();
  if (!entry.value.is_object())
    return refused("expects names and values");
  for (const auto &[key, value] : entry.value.items()) {
    const std::string word = foreignNameOf(value);
    if (key != "output_router_logits" || (word != "true" && word != "false"))
      return Status::invalid("has '{}', which would change the model's "
                             "configuration: write it into config.json",
                             key);
    file.modelKeys[key] = word == "true";
  }
  return Status::ok();
}

/// With bf16, bfloat16 only says how axolotl loads the base.
Status Translation::translateBfloat16(const YamlEntry &entry) {
  const json *bf16 = find("bf16");
  const std::string word = bf16 ? foreignNameOf(*bf16) : "false";
  if (word != "true" && word != "auto")
    return translateRow(entry);
  return note(entry, "has no effect with bf16"), Status::ok();
}

/// Returns the data sets to read. If axolotl removes duplicates, a data set
/// that is named again adds nothing.
json Translation::distinctSets(const json &sets) const {
  const json *key = find("dataset_exact_deduplication");
  if (!key || isOffWord(foreignNameOf(*key)) || !sets.is_array())
    return sets;
  json distinct = json::array();
  for (const json &set : sets)
    if (!std::ranges::count(distinct, set))
      distinct.push_back(set);
  return distinct;
}

/// axolotl compares the rows of all data sets. qlora compares those of each.
Status Translation::translateDuplicates(const YamlEntry &entry) {
  const json *sets = find("datasets");
  if (isOffWord(foreignNameOf(entry.value)))
    return Status::ok();
  if ((sets && distinctSets(*sets).size() > 1) || find("test_datasets"))
    return refused("compares the rows of several data sets, which is not "
                   "supported: use one data set");
  return add(entry, "drop_duplicates", entry.value), Status::ok();
}

/// axolotl adapts the union of lora_target_linear and lora_target_modules.
Status Translation::translateTargets(const YamlEntry &entry) {
  const json *linear = find("lora_target_linear");
  const auto isLinear = [](const json &name) {
    const std::string word = foreignNameOf(name);
    return word.find("embed") == word.npos && word.find("head") == word.npos;
  };
  if (isOf(ForeignTool::kAxolotl) && linear &&
      foreignNameOf(*linear) == "true" && entry.value.is_array() &&
      std::ranges::all_of(entry.value, isLinear))
    return Status::ok();
  return translateRow(entry);
}

/// Translates axolotl's words for checkpointing with offloaded activations;
/// translateParallel() adds --offload.
Status Translation::translateCheckpointing(const YamlEntry &entry) {
  return add(entry, "gradient_checkpointing",
             offloadsCheckpoints(entry) ? json("true") : entry.value),
         Status::ok();
}

/// TRL's commands train whatever do_train is.
Status Translation::translateDoTrain(const YamlEntry &entry) {
  if (isOf(ForeignTool::kTrl) || foreignNameOf(entry.value) == "true")
    return Status::ok();
  return refused("trains nothing: remove it");
}

/// LLaMA-Factory's max_length is for answers without max_new_tokens.
Status Translation::translateLength(const YamlEntry &entry) {
  if (!isOf(ForeignTool::kLlamaFactory))
    return translateRow(entry);
  return note(entry, "is for answers in LLaMA-Factory: cutoff_len cuts rows"),
         Status::ok();
}

/// LLaMA-Factory uses its loss of preferences only with stage: dpo.
Status Translation::translatePrefLoss(const YamlEntry &entry) {
  const std::string rl = objective();
  return rl == "none" || rl == "kto" ? Status::ok() : translateRow(entry);
}

/// Sampling matters only for the answers of evaluations.
Status Translation::translateDoSample(const YamlEntry &entry) {
  const json *answers = find("predict_with_generate");
  if (isOffWord(foreignNameOf(entry.value)) || !answers ||
      foreignNameOf(*answers) != "true")
    return Status::ok();
  return refused("samples answers, but --predict-with-generate answers "
                 "greedily: write false");
}

/// Evaluations cut rows at the same length as the training.
Status Translation::translateEvalLength(const YamlEntry &entry) {
  const json *length = find("sequence_len");
  if (isOffWord(foreignNameOf(entry.value)) ||
      foreignNameOf(entry.value) == (length ? foreignNameOf(*length) : "512"))
    return Status::ok();
  return refused("differs from sequence_len, with which rows are evaluated: "
                 "remove it");
}

/// LLaMA-Factory reads this folder if it exists, and writes it otherwise.
Status Translation::translateTokenized(const YamlEntry &entry) {
  std::error_code ignored;
  if (std::filesystem::exists(foreignNameOf(entry.value), ignored))
    return refused("has tokens of LLaMA-Factory, which are not supported: "
                   "remove it");
  return note(entry, "is not needed: rows are tokenized when training starts"),
         Status::ok();
}

/// Accepts accelerate's settings except those that change the batch.
Status Translation::translateAccelerator(const YamlEntry &entry) {
  const json batches = entry.value.is_object()
                           ? entry.value.value("split_batches", json())
                           : entry.value;
  if (!isOffWord(foreignNameOf(batches)))
    return refused("divides a batch among ranks, which is not supported: "
                   "remove split_batches");
  return note(entry, "tunes the other tool: not needed"), Status::ok();
}

/// Refuses optimizers that need whole tensors if all weights are trained in
/// shards.
Status Translation::checkShards() const {
  static constexpr const char *kOfShards = "adamw_torch lion rmsprop";
  const std::string mesh = valueOf("parallel");
  const OptionRow *row = findOption(optionTable(), "optim");
  if (valueOf("finetuning_type") != "full" || request.ranks.all == 1 ||
      !(mesh.find("fsdp") != mesh.npos || mesh.find("zero2") != mesh.npos))
    return Status::ok();
  for (const YamlEntry &entry : file.entries) {
    if (findOption(optionTable(), entry.key) != row || !flagOf("optim").empty())
      continue;
    QLORA_ASSIGN_OR_RETURN(const json optimizer,
                           parseOptionText(*row, foreignNameOf(entry.value)));
    if (!std::ranges::count(splitWords(kOfShards), foreignNameOf(optimizer)))
      return Status::invalid("{}:{}: '{}': {} cannot update shards of weights "
                             "({}): write adamw_torch or lion",
                             path, entry.line, entry.spelling(),
                             foreignNameOf(optimizer), mesh);
  }
  return Status::ok();
}

/// Accepts the name of a second model if it is the model.
Status Translation::translateOtherModel(const YamlEntry &entry) {
  const json *model = find("base_model");
  if (model && *model == entry.value)
    return Status::ok();
  return translateRow(entry);
}

} // namespace qlora
