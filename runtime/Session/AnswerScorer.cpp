// SPDX-License-Identifier: MIT

// Calls qlora-data for end tokens and text metrics.

#include "runtime/Session/AnswerScorer.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Checkpoint/BestModel.h"
#include "runtime/Data/AnswerRows.h"
#include "runtime/Data/TokenCache.h"
#include "runtime/Data/TokenFiles.h"
#include "runtime/Options/OptionTable.h"
#include "runtime/Options/ParallelMesh.h"
#include "runtime/Watch/AnswersTable.h"

namespace qlora {

using nlohmann::ordered_json;

/// Whether a metric compares texts.
static bool isTextMetric(std::string_view metric) {
  static constexpr std::string_view kTextMetrics[] = {
      "f1", "rouge1", "rouge2", "rougeL", "rougeLsum"};
  return std::ranges::count(kTextMetrics, metric) > 0;
}

/// Checks that nothing needs the answers, which are not generated.
static Status checkWithoutAnswers(const Options &options) {
  const std::string metric = options.text("metric_for_best_model");
  if (comparesEvaluations(options) &&
      (isTextMetric(metric) || metric == "stopped"))
    return Status::invalid(
        "{} {}: needs generated answers. Fix: add --predict-with-generate",
        options.spelling("metric_for_best_model"), metric);
  if (!options.text("compute_metrics").empty())
    return Status::invalid(
        "{}: needs generated answers. Fix: add --predict-with-generate",
        options.spelling("compute_metrics"));
  return Status::ok();
}

Status checkAnswerOptions(const Options &options) {
  if (!options.boolean("predict_with_generate"))
    return checkWithoutAnswers(options);
  const std::string given = options.spelling("predict_with_generate");
  if (options.paths("validation_file").empty() &&
      options.number("val_set_size") == 0)
    return Status::invalid("{}: there are no rows to answer. Fix: add "
                           "--validation-file FILE, or --val-set-size",
                           given);
  if (options.text("rl") != "none")
    return Status::invalid("{} does not work with --rl {}. Fix: remove it, and "
                           "generate with the trained adapter",
                           given, options.text("rl"));
  const std::string file = options.text("compute_metrics");
  std::error_code ignored;
  if (!file.empty() && !std::filesystem::is_regular_file(file, ignored))
    return Status::notFound("{}: there is no file '{}'. Fix: name a Python "
                            "file with a function compute_metrics",
                            options.spelling("compute_metrics"), file);
  const std::string parallel = options.text("parallel");
  if (parallel == kAutoParallel)
    return Status::ok();
  QLORA_ASSIGN_OR_RETURN(const ParallelMesh mesh,
                         ParallelMesh::parse(parallel));
  if (!usesOnlyFsdpRanks(mesh))
    return Status::invalid(
        "{} does not work with --parallel {}, only with fsdp, zero1 and zero2. "
        "Fix: remove it, and run qlora eval on the trained adapter",
        given, parallel);
  return Status::ok();
}

/// Returns the ids of eos_token_id: one, or a list.
static std::vector<int32_t> idsOf(const ordered_json &value) {
  std::vector<int32_t> ids;
  for (const ordered_json &id :
       value.is_array() ? value : ordered_json::array({value}))
    if (id.is_number_unsigned() && id <= INT32_MAX)
      ids.push_back(id.get<int32_t>());
  return ids;
}

/// Returns the end tokens in the model's files. Without a tokenizer, these are
/// the only ones that are known.
static std::vector<int32_t> endTokensOfModel(const std::string &folder) {
  std::vector<int32_t> ends;
  for (const char *name : {"generation_config.json", "config.json"}) {
    const ordered_json config = jsonObjectIn(folder + "/" + name);
    const auto addFrom = [&](const ordered_json &source) {
      if (source.is_object() && source.contains("eos_token_id"))
        std::ranges::copy(idsOf(source["eos_token_id"]),
                          std::back_inserter(ends));
    };
    addFrom(config);
    if (config.contains("text_config"))
      addFrom(config["text_config"]);
  }
  return ends;
}

/// Runs qlora-data, and returns the JSON object that it prints.
static StatusOr<ordered_json> runData(std::vector<std::string> command) {
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output, runProgram(command));
  if (output.exitCode != 0)
    return Status::invalid("{}", converterError(output.errors));
  ordered_json object = ordered_json::parse(output.out, nullptr, false);
  if (!object.is_object())
    return Status::dataLoss("'{} {}' printed no JSON object. Fix: install "
                            "qlora and qlora-data of one version",
                            command[0], command[1]);
  return object;
}

/// Whether a tokenizer exists, because rows are tokenized during the run.
static bool readsText(const Options &options) {
  const auto files = options.paths(options.paths("validation_file").empty()
                                       ? "train_file"
                                       : "validation_file");
  return std::ranges::any_of(
      files, [](const WeightedPath &file) { return !isTokenData(file.path); });
}

StatusOr<AnswerScorer> AnswerScorer::find(const Options &options,
                                          StatusOr<std::string> converter) {
  AnswerScorer scorer;
  const std::string model = options.text("model_name_or_path");
  scorer.flags = {"--model", model};
  if (const std::string file = options.text("chat_template"); !file.empty())
    scorer.flags.insert(scorer.flags.end(), {"--chat-template", file});
  if (const std::string token = options.text("eos_token"); !token.empty())
    scorer.flags.insert(scorer.flags.end(), {"--eos-token", token});
  StatusOr<ordered_json> ends = converter.status();
  if (converter.isOk()) {
    std::vector<std::string> command = {*converter, "end-tokens"};
    std::ranges::copy(scorer.flags, std::back_inserter(command));
    ends = runData(std::move(command));
  }
  if (ends.isOk()) {
    scorer.converter = *converter;
    scorer.ends = idsOf(ends->value("end_tokens", ordered_json::array()));
    if (const auto stops = ends->value("stop_strings", ordered_json::array());
        !stops.empty())
      scorer.warning = fmt::format("answers do not end at the stop_strings of "
                                   "generation_config.json ({}), because "
                                   "training has no text",
                                   dumpJson(stops));
    if (const std::string file = options.text("compute_metrics"); !file.empty())
      scorer.flags.insert(scorer.flags.end(), {"--compute-metrics", file});
    return scorer;
  }
  const Status &why = ends.status();
  const bool needsText = readsText(options) ||
                         !options.text("compute_metrics").empty() ||
                         (comparesEvaluations(options) &&
                          isTextMetric(options.text("metric_for_best_model")));
  if (needsText)
    return why.withContext(options.spelling("predict_with_generate"));
  scorer.ends = endTokensOfModel(model);
  scorer.warning = fmt::format("generated answers are compared as token ids, "
                               "without f1 and ROUGE: {}",
                               why.message());
  return scorer;
}

static const char *finishOf(const ComparedAnswer &answer) {
  return answer.hasStopped ? "stop" : "length";
}

/// Writes a line of JSON for each answer and its index.
template <typename LineOf>
static Status writeLines(const std::vector<ComparedAnswer> &answers,
                         const std::string &path, const LineOf &lineOf) {
  QLORA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  for (size_t i = 0; i < answers.size(); ++i)
    QLORA_RETURN_IF_ERROR(
        file.write(dumpJson(ordered_json(lineOf(answers[i], i))) + "\n"));
  return file.commit();
}

/// Checks a metric, which may be one of --compute-metrics. It is logged with
/// the prefix eval_, like the evaluation's own values.
static Status checkMetric(const std::string &name, const ordered_json &value) {
  if (isOfEveryEvaluation(name) || name == "unanswered")
    return Status::invalid("--compute-metrics: '{}' is a metric that every "
                           "evaluation has. Fix: give it another name",
                           name);
  if (!value.is_number())
    return Status::invalid("--compute-metrics: the metric '{}' is not a "
                           "number, but {}. Fix: return numbers only",
                           name, dumpJson(value));
  return Status::ok();
}

/// Writes the ids to a file that qlora-data reads, and removes it afterwards.
StatusOr<ordered_json>
AnswerScorer::scoreText(const std::vector<ComparedAnswer> &answers,
                        const std::string &path) const {
  const std::string input = path + ".ids";
  QLORA_RETURN_IF_ERROR(
      writeLines(answers, input, [](const ComparedAnswer &answer, size_t) {
        return ordered_json{{"prompt_ids", answer.prompt},
                            {"output_ids", answer.output},
                            {"reference_ids", answer.reference},
                            {"finish_reason", finishOf(answer)}};
      }));
  std::vector<std::string> command = {converter, "metrics",  "--input",
                                      input,     "--output", path};
  std::ranges::copy(flags, std::back_inserter(command));
  StatusOr<ordered_json> metrics = runData(std::move(command));
  std::error_code ignored;
  std::filesystem::remove(input, ignored);
  QLORA_RETURN_IF_ERROR(metrics.status());
  metrics->erase("rows");
  for (const auto &[name, value] : metrics->items())
    QLORA_RETURN_IF_ERROR(checkMetric(name, value));
  return metrics;
}

StatusOr<ordered_json>
AnswerScorer::score(const std::vector<ComparedAnswer> &answers,
                    const std::string &path) const {
  if (!converter.empty())
    return scoreText(answers, path);
  const auto isMatch = [&](const ComparedAnswer &answer) {
    return std::ranges::equal(withoutEnd(answer.output, ends),
                              withoutEnd(answer.reference, ends));
  };
  QLORA_RETURN_IF_ERROR(writeLines(
      answers, path, [&](const ComparedAnswer &answer, size_t index) {
        return ordered_json{{"index", index},
                            {"prompt_ids", answer.prompt},
                            {"output_ids", answer.output},
                            {"reference_ids", answer.reference},
                            {"exact_match", isMatch(answer) ? 1 : 0},
                            {"finish_reason", finishOf(answer)}};
      }));
  const auto share = [&](auto &&holds) {
    return static_cast<double>(std::ranges::count_if(answers, holds)) /
           static_cast<double>(answers.size());
  };
  return ordered_json{{"exact_match", share(isMatch)},
                      {"stopped", share([](const ComparedAnswer &answer) {
                         return answer.hasStopped;
                       })}};
}

} // namespace qlora
