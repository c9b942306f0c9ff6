// SPDX-License-Identifier: MIT

// Sections of the model card, from top to bottom.

#include "runtime/Extras/ModelCard.h"

#include <yaml-cpp/yaml.h>

#include <cmath>
#include <filesystem>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/HubReference.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/Adapter.h"
#include "runtime/Data/DataFiles.h"
#include "runtime/Options/ObjectiveOptions.h"
#include "runtime/Session/RunSummary.h"
#include "runtime/Session/Training.h"
#include "runtime/Watch/RunFolder.h"

namespace qlora {

namespace fs = std::filesystem;
using nlohmann::json;

/// Marks a README.md that this program wrote.
static constexpr std::string_view kMark =
    "<!-- Written by qlora. A README.md without this line is not replaced. -->";

/// Returns text in UTF-8, as model cards need; file names may be any bytes.
static std::string validText(const std::string &text) {
  return json::parse(dumpJson(json(text)));
}

/// Escapes text for one line of Markdown, also in a table.
static std::string markdown(const std::string &text) {
  static constexpr std::string_view kSpecial = "\\`*_{}[]<>()#+!|~&$";
  std::string escaped;
  for (const char c : validText(text)) {
    const bool isControl = static_cast<unsigned char>(c) < ' ';
    if (kSpecial.find(c) != kSpecial.npos)
      escaped += '\\';
    escaped += isControl ? ' ' : c;
  }
  return escaped;
}

static std::string row(const std::string &name, const std::string &value) {
  return fmt::format("| {} | {} |\n", markdown(name), markdown(value));
}

static std::string header(const std::string &base, bool isModel,
                          const std::string &rl) {
  YAML::Emitter yaml;
  yaml << YAML::BeginMap;
  yaml << YAML::Key << "base_model" << YAML::Value << YAML::DoubleQuoted
       << base;
  yaml << YAML::Key << "library_name" << YAML::Value
       << (isModel ? "transformers" : "peft");
  yaml << YAML::Key << "pipeline_tag" << YAML::Value << "text-generation";
  yaml << YAML::Key << "tags" << YAML::Value << YAML::BeginSeq
       << YAML::DoubleQuoted
       << (isModel ? "base_model:finetune:" : "base_model:adapter:") + base;
  if (!isModel)
    yaml << "lora";
  if (rl != "none")
    yaml << rl;
  yaml << "qlora" << YAML::EndSeq;
  yaml << YAML::EndMap;
  return fmt::format("---\n{}\n---\n", yaml.c_str());
}

/// Returns the adapter's name on the hub, else the name of its folder.
static std::string adapterName(const Run &run) {
  const std::string id = run.options.text("hub_model_id");
  return id.empty() ? fs::path(run.outputFolder).filename().string() : id;
}

static std::string loadingText(const Run &run, const std::string &base) {
  const std::string name = dumpJson(json(validText(adapterName(run))));
  if (trainsModel(run.module))
    return fmt::format("## How to load it\n\n"
                       "```python\n"
                       "from transformers import AutoModelForCausalLM, "
                       "AutoTokenizer\n\n"
                       "model = AutoModelForCausalLM.from_pretrained({0})\n"
                       "tokenizer = AutoTokenizer.from_pretrained({0})\n"
                       "```\n\n",
                       name);
  return fmt::format("## How to load it\n\n"
                     "```python\n"
                     "from peft import PeftModel\n"
                     "from transformers import AutoModelForCausalLM, "
                     "AutoTokenizer\n\n"
                     "base = AutoModelForCausalLM.from_pretrained({0})\n"
                     "model = PeftModel.from_pretrained(base, {1})\n"
                     "tokenizer = AutoTokenizer.from_pretrained({1})\n"
                     "```\n\n",
                     dumpJson(json(base)), name);
}

static std::string plainText(const nlohmann::ordered_json &value) {
  return value.is_string() ? value.get<std::string>() : dumpJson(value);
}

/// Returns rows of the training objective; none for the cross-entropy of
/// tokens.
static std::string objectiveRows(const Options &options) {
  const std::string rl = options.text("rl");
  std::string text;
  if (rl != "none")
    text = row("rl", rl) + row("beta", plainText(options.value("beta")));
  const Options defaults;
  const nlohmann::ordered_json loss = lossOf(rl, options.value("loss_type"));
  if (loss != "" && loss != "nll")
    text += row("loss_type", plainText(loss));
  for (const char *name :
       {"loss_weights", "label_smoothing", "label_smoothing_factor",
        "discopop_tau", "simpo_gamma", "cpo_alpha", "desirable_weight",
        "undesirable_weight"})
    if (options.value(name) != defaults.value(name))
      text += row(name, plainText(options.value(name)));
  return text;
}

static std::string settingsText(const Run &run) {
  static constexpr std::string_view kNames =
      "learning_rate lr_scheduler_type warmup_ratio warmup_steps "
      "per_device_train_batch_size max_length num_train_epochs optim "
      "weight_decay max_grad_norm seed finetuning_type lora_r lora_alpha "
      "lora_dropout lora_target_modules use_rslora use_dora lora_bias "
      "modules_to_save trainable_token_indices load_in_4bit compute_dtype";
  std::string text = "## Settings\n\n| Setting | Value |\n| --- | --- |\n" +
                     objectiveRows(run.options);
  for (const std::string_view name : splitWords(kNames)) {
    const nlohmann::ordered_json &value = run.options.value(name);
    text += row(std::string(name), plainText(value));
  }
  const StepShape step = run.stepShape;
  text += row("gradient_accumulation_steps", std::to_string(step.accumulation));
  text +=
      row("rows per step",
          std::to_string(step.count() *
                         run.options.integer("per_device_train_batch_size")));
  text += row("processes", std::to_string(run.group.size()));
  return text + row("device", std::string(run.device.traits.name)) + "\n";
}

static std::string rowsText(const Run &run, const DataSummary &data) {
  const std::string name = dataTitle(dataName(run.options, "train_file"));
  const auto count = [](int64_t number) {
    return formatCount(static_cast<uint64_t>(number));
  };
  return "## Data\n\n| | |\n| --- | --- |\n" + row("data", name) +
         row("rows", count(data.rows)) + row("tokens", count(data.tokens)) +
         row("tokens in the loss", count(data.labelledTokens)) + "\n";
}

/// Returns text such as "3.1416 (perplexity 23.14) after step 20", or for pairs
/// "0.6512 (reward accuracy 75.0 %, margin 0.0912) after step 20".
static std::string evaluationText(const json &line) {
  const double loss = line["eval_loss"].get<double>();
  if (line.contains("eval_rewards/accuracies"))
    return fmt::format(
        "{:.4f} (reward accuracy {:.1f} %, margin {:.4f}) after "
        "step {}",
        loss, 100 * line["eval_rewards/accuracies"].get<double>(),
        line["eval_rewards/margins"].get<double>(), dumpJson(line["step"]));
  const std::string perplexity =
      line.contains("eval_perplexity")
          ? fmt::format(" (perplexity {:.2f})", std::exp(loss))
          : "";
  return fmt::format("{:.4f}{} after step {}", loss, perplexity,
                     dumpJson(line["step"]));
}

static std::string resultsText(const Run &run, const TrainingResult &result,
                               std::string_view metrics) {
  const json *last = nullptr, *best = nullptr;
  const LoggedLines logged(metrics);
  for (const json &line : logged.evaluations)
    if (line["eval_loss"].is_number()) {
      last = &line;
      if (!best || line["eval_loss"] < (*best)["eval_loss"])
        best = last;
    }
  std::string text =
      "## Results\n\n| | |\n| --- | --- |\n" +
      row("steps", std::to_string(result.steps)) +
      row("epochs", fmt::format("{:.2f}", result.epoch)) +
      row("mean training loss", fmt::format("{:.4f}", result.totals.meanLoss));
  if (last)
    text += row("last evaluation loss", evaluationText(*last)) +
            row("best evaluation loss", evaluationText(*best));
  if (result.takesBest(run.options))
    text += row(trainsModel(run.module) ? "this model" : "this adapter",
                fmt::format("saved after step {}", result.bestStep));
  return text + "\n";
}

/// Returns the model card. `metrics`: text of metrics.jsonl, with evaluations.
static std::string cardOf(const Run &run, const DataSummary &data,
                          const TrainingResult &result,
                          std::string_view metrics) {
  const std::string base = validText(modelName(run.options));
  const bool isModel = trainsModel(run.module);
  const std::string rl = run.options.text("rl");
  return fmt::format("{}{}\n\n# {} {}\n\nTrained with qlora {}{}.\n\n",
                     header(base, isModel, rl), kMark,
                     isModel ? "Fine-tuned" : "LoRA adapter of", markdown(base),
                     QLORA_VERSION,
                     rl == "none" ? ""
                                  : " on preferences (`--rl " + rl + "`)") +
         loadingText(run, base) + rowsText(run, data) + settingsText(run) +
         resultsText(run, result, metrics);
}

static Status writeCard(const Run &run, const DataSummary &data,
                        const TrainingResult &result) {
  const std::string path = run.outputFolder + "/README.md";
  const auto old = readWholeFile(path);
  if (old.isOk() && old.value().find(kMark) == std::string::npos)
    return Status::invalid("'{}' was not written by qlora and is not replaced; "
                           "it may not describe this adapter",
                           shownPath(path));
  const auto metrics =
      readWholeFile(run.outputFolder + "/" + std::string(kMetricsFile));
  return replaceWholeFile(
      path, cardOf(run, data, result,
                   metrics.isOk() ? metrics.value() : std::string()));
}

Status RunCard::end(const Run &run, const DataSummary &data,
                    const TrainingResult &result) {
  const Status written = writeCard(run, data, result);
  if (!written.isOk())
    run.metrics->warn(written.message()); // the adapter is written
  return Status::ok();
}

} // namespace qlora
