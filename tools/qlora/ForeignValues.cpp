// SPDX-License-Identifier: MIT

// Translates keys whose values have structure, or whose meaning depends on the
// file's tool and objective.

#include "tools/qlora/ForeignTranslation.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Options/OptionValue.h"
#include "tools/qlora/HubData.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Functions for the keys whose values need more than the table.
const std::map<std::string_view, Translation::Handler> Translation::kHandlers =
    {{"dataset_dir", &Translation::checkFolder},
     {"disable_dropout", &Translation::skip}, // turnOffDropout()
     {"datasets", &Translation::translateData},
     {"dataset", &Translation::translateData},
     {"test_datasets", &Translation::translateData},
     {"eval_dataset", &Translation::translateData},
     {"dataset_name", &Translation::translateHubData},
     {"dataset_config", &Translation::skip}, // HubDataKeys
     {"dataset_train_split", &Translation::skip},
     {"dataset_test_split", &Translation::skip},
     {"dataset_revision", &Translation::skip},
     {"special_tokens", &Translation::translateSpecialTokens},
     {"tokens", &Translation::translateSpecialTokens},
     {"plugins", &Translation::translatePlugins},
     {"bnb_config_kwargs", &Translation::translateSection},
     {"peft", &Translation::translateSection},
     {"model_config", &Translation::translateModelConfig},
     {"overrides_of_model_config", &Translation::translateModelConfig},
     {"bfloat16", &Translation::translateBfloat16},
     {"dataset_exact_deduplication", &Translation::translateDuplicates},
     {"lora_target_modules", &Translation::translateTargets},
     {"gradient_checkpointing", &Translation::translateCheckpointing},
     {"gradient_accumulation_steps", &Translation::translateAccumulation},
     {"lora_model_dir", &Translation::translateStartAdapter},
     {"do_train", &Translation::translateDoTrain},
     {"max_length", &Translation::translateLength},
     {"pref_loss", &Translation::translatePrefLoss},
     {"do_sample", &Translation::translateDoSample},
     {"eval_sequence_len", &Translation::translateEvalLength},
     {"tokenized_path", &Translation::translateTokenized},
     {"accelerator_config", &Translation::translateAccelerator},
     {"tokenizer_config", &Translation::translateOtherModel},
     {"base_model_config", &Translation::translateOtherModel},
     {"lora_target", &Translation::translateNames},
     {"lora_target_linear", &Translation::translateAllLinear},
     {"report_to", &Translation::translateReports},
     {"ddp_timeout", &Translation::translateTimeout},
     {"chat_template", &Translation::translateTemplate},
     {"template", &Translation::translateLlamaTemplate},
     {"packing", &Translation::translatePacking},
     {"eval_batch_size", &Translation::translateEvalBatch},
     {"per_device_eval_batch_size", &Translation::translateEvalBatch},
     {"batch_size", &Translation::translateBatch},
     {"rl", &Translation::translateObjective},
     {"stage", &Translation::translateStage},
     {"unfrozen_parameters", &Translation::translateUnfrozen},
     {"finetuning_type", &Translation::translateTuning},
     {"freeze_trainable_layers", &Translation::skipIfFreeze},
     {"freeze_trainable_modules", &Translation::skipIfFreeze},
     {"freeze_extra_modules", &Translation::skipIfFreeze},
     {"use_llama_pro", &Translation::skipIfFreeze},
     {"curriculum_sampling", &Translation::translateCurriculum},
     {"pretraining_dataset", &Translation::translatePretraining},
     {"pretrain_multipack_attn", &Translation::checkPretraining},
     {"warmup_steps", &Translation::translateWarmup},
     {"warmup_ratio", &Translation::translateWarmup},
     {"lr_scheduler", &Translation::translateScheduler},
     {"cosine_min_lr_ratio", &Translation::translateLeastRate},
     {"evals_per_epoch", &Translation::translatePerEpoch},
     {"saves_per_epoch", &Translation::translatePerEpoch},
     {"train_on_inputs", &Translation::translateLossOfInputs},
     {"train_on_prompt", &Translation::translateLossOfInputs}};

/// Splits lists such as "q_proj,v_proj". Other texts are regular expressions.
Status Translation::translateNames(const YamlEntry &entry) {
  std::string names = foreignNameOf(entry.value);
  if (names.find(',') == names.npos)
    return translateRow(entry);
  std::ranges::replace(names, ',', ' ');
  json list = json::array();
  for (const std::string_view name : splitWords(names))
    list.push_back(name);
  return add(entry, "lora_target_modules", std::move(list)), Status::ok();
}

/// Returns the paths, with a weight for each that is named several times.
static json distinctPaths(const json &paths) {
  json distinct = json::array();
  for (auto path = paths.begin(); path != paths.end(); ++path) {
    const auto count = std::count(paths.begin(), paths.end(), *path);
    if (std::find(paths.begin(), path, *path) != path)
      continue;
    distinct.push_back(
        count == 1 ? *path
                   : json(fmt::format("{}:{}", foreignNameOf(*path), count)));
  }
  return distinct;
}

Status Translation::translateData(const YamlEntry &entry) {
  const auto base = std::filesystem::path(path).parent_path().string();
  const json *folder = find("dataset_dir");
  const bool isTest =
      entry.key == "test_datasets" || entry.key == "eval_dataset";
  QLORA_ASSIGN_OR_RETURN(
      const ForeignData found,
      entry.key.ends_with("datasets")
          ? dataOfDatasets(distinctSets(entry.value), base, objective(), isTest)
          : dataOfNames(foreignNameOf(entry.value), base,
                        folder && folder->is_string()
                            ? folder->get<std::string>()
                            : "data",
                        isPretraining() ? "pt" : objective()));
  add(entry, isTest ? "validation_file" : "train_file",
      isTest ? found.paths : distinctPaths(found.paths));
  if (dataEntry.line == 0)
    dataEntry = entry;
  return data.add(found);
}

/// Translates TRL's name of a data set on the hub. As in TRL's scripts,
/// dataset_test_split is evaluated only if eval_strategy is set.
Status Translation::translateHubData(const YamlEntry &entry) {
  if (!flagOf("dataset_name").empty())
    return Status::ok(); // replaced by the flag
  const std::string name = foreignNameOf(entry.value);
  const auto base = std::filesystem::path(path).parent_path().string();
  std::error_code ignored;
  if (std::filesystem::exists(absolutePath(name, base), ignored))
    return Status::invalid("'{}' is here, not on the Hugging Face hub: name it "
                           "with train_file",
                           name);
  const HubDataKeys keys = HubDataKeys::of(request.flags, entries);
  QLORA_ASSIGN_OR_RETURN(const HubDataset rows,
                         keys.dataset(name, /*isTest=*/false));
  add(entry, "train_file", rows.reference());
  const json *strategy = find("eval_strategy");
  std::string evaluates = flagOf("eval_strategy");
  if (evaluates.empty() && strategy)
    evaluates = foreignNameOf(*strategy);
  if (evaluates.empty() || isOffWord(evaluates) || find("validation_file"))
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const HubDataset test,
                         keys.dataset(name, /*isTest=*/true));
  return add(entry, "validation_file", test.reference()), Status::ok();
}

/// Checks only the type. translateData() reads the folder.
Status Translation::checkFolder(const YamlEntry &entry) {
  if (entry.value.is_string())
    return Status::ok();
  return refused("is not the path of a folder with dataset_info.json");
}

/// Adds row_format and dataset_columns, which apply to both training and
/// validation data.
void Translation::addData() {
  // Without formats, the file has qlora's train_file instead of a name from
  // dataset_info.json. Even then, instruction rows become turns, as in
  // LLaMA-Factory.
  if (isOf(ForeignTool::kLlamaFactory) && data.formats.empty())
    data.formats = {"text", "completion", "chat", "turns"};
  if (!data.formats.empty())
    add(dataEntry, "row_format", json(data.formats));
  for (SpecialToken &token : file.specialTokens)
    token.isUnused = data.formats == std::set<std::string>{"text"};
  if (data.dropsSystem)
    add(dataEntry, "drop_system_messages", "true");
  json columns = json::object();
  for (const auto &[name, column] : data.columns)
    if (name != column)
      columns[name] = column;
  if (!columns.empty())
    add(dataEntry, "dataset_columns", columns);
}

/// Returns the token that ends texts in LLaMA-Factory's pretraining.
static const char *endTokenOf(std::string_view name) {
  return name == "llama3"            ? "<|end_of_text|>"
         : name.starts_with("gemma") ? "<end_of_turn>"
         : name == "phi"             ? "<|end|>"
                                     : "<|im_end|>";
}

/// Translates the names of LLaMA-Factory's templates that qlora includes.
Status Translation::translateLlamaTemplate(const YamlEntry &entry) {
  static const std::map<std::string_view, const char *> kTemplates = {
      {"chatml", "llamafactory-chatml"},
      {"gemma", "llamafactory-gemma"},
      {"gemma3", "llamafactory-gemma"},
      {"llama3", "llamafactory-llama3"},
      {"phi", "llamafactory-phi"},
      {"phi4", "llamafactory-phi4"},
      {"qwen", "llamafactory-qwen"},
      {"qwen3", "llamafactory-qwen3"},
      {"qwen3_nothink", "llamafactory-chatml"}};
  const auto found = kTemplates.find(foreignNameOf(entry.value));
  if (found == kTemplates.end())
    return Status::invalid("'{}' is an unsupported template of LLaMA-Factory: "
                           "write chat_template: FILE with an equal Jinja "
                           "template, or remove it to use the model's template",
                           foreignNameOf(entry.value));
  if (isPretraining()) // the template has only the end token
    return add(entry, "eos_token", endTokenOf(found->first)), Status::ok();
  // LLaMA-Factory's preference trainers remove reasoning from earlier turns.
  if (found->first == "qwen3" && objective() != "none")
    return refused(
        "qwen3 writes earlier turns of preferences without thoughts, which is "
        "not supported: write qwen3_nothink, or chat_template: FILE instead");
  return add(entry, "chat_template", found->second), Status::ok();
}

/// Refuses LLaMA-Factory's packing without neat_packing, because packed rows
/// would attend to each other. In pretraining they do (translateStage()).
Status Translation::translatePacking(const YamlEntry &entry) {
  const json *neat = find("neat_packing");
  if (isPretraining())
    return Status::ok();
  if (isOf(ForeignTool::kLlamaFactory) &&
      !isOffWord(foreignNameOf(entry.value)) &&
      !(neat && foreignNameOf(*neat) == "true"))
    return refused("lets rows attend to each other, which is not supported: "
                   "write neat_packing: true");
  return translateRow(entry);
}

/// Translates report_to, a name or a list of names.
Status Translation::translateReports(const YamlEntry &entry) {
  if (!entry.value.is_array())
    return translateRow(entry);
  const size_t before = file.entries.size();
  for (const json &name : entry.value)
    QLORA_RETURN_IF_ERROR(translateRow({entry.key, name, entry.line}));
  json names = json::array();
  for (size_t i = before; i < file.entries.size(); ++i)
    if (std::ranges::find(names, file.entries[i].value) == names.end())
      names.push_back(file.entries[i].value);
  file.entries.resize(before);
  return add(entry, "report_to", std::move(names)), Status::ok();
}

/// Limits ddp_timeout to the option's maximum, because some files contain years
/// to mean "no limit".
Status Translation::translateTimeout(const YamlEntry &entry) {
  const OptionRow *row = findOption(optionTable(), "ddp_timeout");
  const std::string word = foreignNameOf(entry.value);
  int64_t seconds = 0;
  const auto [end, error] =
      std::from_chars(word.data(), word.data() + word.size(), seconds);
  const bool isLonger = error == std::errc() &&
                        end == word.data() + word.size() &&
                        seconds > static_cast<int64_t>(row->maximum);
  if (isLonger)
    add(entry, row->name, std::to_string(static_cast<int64_t>(row->maximum)));
  else
    add(entry, row->name, entry.value);
  return Status::ok();
}

Status Translation::translateTemplate(const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  if (word.find("{%") != word.npos || word.find("{{") != word.npos ||
      word == "jinja")
    return refused("is a Jinja text: write it into a file, and name that file "
                   "with chat_template");
  return translateRow(entry);
}

Status Translation::translateAllLinear(const YamlEntry &entry) {
  if (!isOffWord(foreignNameOf(entry.value)))
    file.entries.push_back(entry);
  return Status::ok();
}

/// Ignores the evaluation batch size: qlora uses the training batch size.
/// Refuses a different size if a row's result depends on its micro-batch.
Status Translation::translateEvalBatch(const YamlEntry &entry) {
  std::string batch = flagOf("per_device_train_batch_size");
  for (const YamlEntry &other : entries) {
    const OptionRow *row = findOption(optionTable(), other.key);
    if (batch.empty() && row && !other.value.is_null() &&
        row->name == std::string_view("per_device_train_batch_size"))
      batch = foreignNameOf(other.value);
  }
  const std::string word = foreignNameOf(entry.value), rl = objective();
  if (word == "0" || word == batch)
    return Status::ok();
  const json *loss = find("loss_type"), *bits = find("load_in_8bit");
  const json *activations = find("llm_int8_activations");
  const bool addsTokens =
      loss && dumpJson(*loss).find("\"sft\"") != std::string::npos;
  if (rl == "orpo" || (rl == "cpo" && !find("pref_loss")) || addsTokens ||
      (rl == "kto" && !(loss && foreignNameOf(*loss) == "apo_zero_unpaired")))
    return Status::invalid(
        "differs from the training batch size, which evaluation uses, and "
        "results of --rl {} depend on the batch size: remove this key",
        rl);
  if (bits && foreignNameOf(*bits) == "true" && activations &&
      foreignNameOf(*activations) == "int8")
    return refused(
        "differs from the training batch size, which evaluation uses, and "
        "results of llm_int8_activations depend on the batch size: remove this "
        "key");
  note(entry, "is not needed: evaluation uses the training batch size, and its "
              "results do not depend on it (except a router loss)");
  return Status::ok();
}

/// Adds the loss of axolotl's objectives ipo and simpo, which are DPO and CPO
/// with these losses. LLaMA-Factory's loss simpo is CPO without the loss of
/// chosen tokens.
Status Translation::translateObjective(const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  if (word == "ipo" || word == "simpo")
    add(entry, "loss_type", word);
  const json *loss = find("pref_loss");
  if (word != "dpo" || !loss || foreignNameOf(*loss) != "simpo")
    return translateRow(entry);
  add(entry, "rl", "cpo");
  add(entry, "cpo_alpha", "0");
  return Status::ok();
}

/// Translates axolotl's batch_size, the rows per step, to accumulation steps.
Status Translation::translateBatch(const YamlEntry &entry) {
  if (!isOf(ForeignTool::kAxolotl))
    return file.entries.push_back(entry), Status::ok();
  const json *micro = find("micro_batch_size");
  const std::string rows = foreignNameOf(entry.value);
  const std::string each = micro ? foreignNameOf(*micro) : "1";
  int64_t all = 0, part = 0;
  std::from_chars(rows.data(), rows.data() + rows.size(), all);
  std::from_chars(each.data(), each.data() + each.size(), part);
  if (part < 1 || all < part)
    return Status::invalid("is {}, less than micro_batch_size {}: write "
                           "gradient_accumulation_steps instead",
                           rows, each);
  add(entry, "gradient_accumulation_steps", std::to_string(all / part));
  return Status::ok();
}

/// Translates axolotl's warm-up. axolotl rounds fractions down. A value of 1
/// means 2 steps. The default is 3 % of the steps, at most 100.
Status Translation::translateWarmup(const YamlEntry &entry) {
  if (!isOf(ForeignTool::kAxolotl))
    return file.entries.push_back(entry), Status::ok();
  const std::string word = foreignNameOf(entry.value);
  if (entry.key == "warmup_steps") {
    add(entry, "warmup_steps", word == "1" ? json("2") : entry.value);
    add(entry, "warmup_rule", "transformers");
  } else if (!find("warmup_steps")) {
    add(entry, "warmup_rule", "axolotl");
    if (word != "auto")
      add(entry, "warmup_ratio", entry.value);
  }
  return Status::ok();
}

/// Leaves axolotl's cosine with a least rate to translateLeastRate().
Status Translation::translateScheduler(const YamlEntry &entry) {
  const json *least = find("cosine_min_lr_ratio");
  if (!least || isOffWord(foreignNameOf(*least)) ||
      foreignNameOf(entry.value) != "cosine")
    file.entries.push_back(entry);
  return Status::ok();
}

/// As in axolotl, the least rate changes only the schedules cosine, which is
/// the default, and rex.
Status Translation::translateLeastRate(const YamlEntry &entry) {
  const json *named = find("lr_scheduler");
  const std::string scheduler = named ? foreignNameOf(*named) : "cosine";
  const std::string least = foreignNameOf(entry.value);
  if (isOffWord(least))
    return Status::ok();
  if (scheduler != "cosine" && scheduler != "rex")
    return note(entry, "has no effect with lr_scheduler {}", scheduler),
           Status::ok();
  if (scheduler == "cosine")
    add(entry, "lr_scheduler_type", "cosine_with_min_lr");
  add(entry, "lr_scheduler_kwargs", {{"min_lr_rate", least}});
  return Status::ok();
}

/// axolotl divides all steps equally. If that is one step or more for an epoch,
/// it evaluates or saves after each epoch.
Status Translation::translatePerEpoch(const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  std::string epochs = flagOf("num_train_epochs");
  for (const char *key : {"num_epochs", "num_train_epochs"})
    if (const json *value = find(key); value && epochs.empty())
      epochs = foreignNameOf(*value);
  StatusOr<double> times = parseNumber<double>(word);
  double all = 1;
  std::from_chars(epochs.data(), epochs.data() + epochs.size(), all);
  const bool saves = entry.key == "saves_per_epoch";
  const char *strategy = saves ? "save_strategy" : "eval_strategy";
  if (isOffWord(word))
    return add(entry, strategy, "no"), Status::ok();
  if (!times.isOk() || !(*times * all > 0))
    return refused("takes a number above 0");
  if (*times * all <= 1)
    return add(entry, strategy, "epoch"), Status::ok();
  add(entry, strategy, "steps");
  add(entry, saves ? "save_steps" : "eval_steps",
      fmt::format("{}", 1 / (*times * all)));
  return Status::ok();
}

/// Sets completion_only_loss and assistant_only_loss to "not train_on_inputs".
Status Translation::translateLossOfInputs(const YamlEntry &entry) {
  const std::string word = foreignNameOf(entry.value);
  if (word != "true" && word != "false")
    return refused("takes true or false");
  const char *onlyAnswers = word == "true" ? "false" : "true";
  add(entry, "completion_only_loss", onlyAnswers);
  add(entry, "assistant_only_loss", onlyAnswers);
  return Status::ok();
}

} // namespace qlora
