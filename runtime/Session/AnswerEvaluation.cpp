// SPDX-License-Identifier: MIT

// Distributes rows over ranks and slots, and collects their answers.

#include "runtime/Session/AnswerEvaluation.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>

#include "runtime/Base/JsonText.h"
#include "runtime/Base/StopSignal.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Data/AnswerRows.h"
#include "runtime/Data/TokenCache.h"

namespace qlora {

using nlohmann::ordered_json;

StatusOr<std::unique_ptr<AnswerEvaluation>>
AnswerEvaluation::open(const LoadedModule &module, Device &device,
                       const Options &options, RankGroup &group,
                       Metrics *metrics) {
  QLORA_RETURN_IF_ERROR(checkAnswerOptions(options));
  if (!options.boolean("predict_with_generate"))
    return std::unique_ptr<AnswerEvaluation>();
  std::unique_ptr<AnswerEvaluation> evaluation(new AnswerEvaluation());
  evaluation->limits = generationLimits(options);
  // Check before the weights are read that the program generates.
  QLORA_RETURN_IF_ERROR(
      Generator::of(module, device, evaluation->limits).status());
  const auto &most = options.value("generation_max_new_tokens");
  evaluation->maxNewTokens =
      most.is_number() ? most.get<int64_t>() : evaluation->limits.capacity;
  if (group.rank() == 0) {
    QLORA_ASSIGN_OR_RETURN(evaluation->scorer,
                           AnswerScorer::find(options, findConverter()));
    evaluation->endTokens = evaluation->scorer->endTokens();
    if (metrics && !evaluation->scorer->remark().empty())
      metrics->warn(evaluation->scorer->remark());
  }
  QLORA_ASSIGN_OR_RETURN(auto ends,
                         group.collectives().allGatherValues(
                             std::span<const int32_t>(evaluation->endTokens)));
  evaluation->endTokens = std::move(ends.front());
  return evaluation;
}

void AnswerEvaluation::removeAfter(const std::string &outputFolder,
                                   int64_t step) {
  const auto files = listFolder(outputFolder + "/" + kAnswersFolder);
  if (!files.isOk())
    return;
  for (const std::filesystem::path &file : files.value()) {
    constexpr std::string_view kBefore = "step-";
    const std::string name = file.filename();
    if (!name.starts_with(kBefore))
      continue;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(
        name.data() + kBefore.size(), name.data() + name.size(), number);
    std::error_code ignored;
    if (error == std::errc() && number > step)
      std::filesystem::remove(file, ignored);
  }
}

/// Adds rows of this rank until enough of them wait for a slot.
Status AnswerEvaluation::addRows(const Run &run, Generator &generator) {
  for (; generator.waiting() < generator.slotCount() &&
         nextRow < run.validation->rows();
       nextRow += run.group.dataRanks()) {
    QLORA_ASSIGN_OR_RETURN(std::vector<AnswerRow> rows,
                           readAnswerRows(*run.validation, nextRow));
    for (size_t part = 0; part < rows.size(); ++part) {
      answers.push_back({nextRow, static_cast<int64_t>(part)});
      if (std::ssize(rows[part].prompt) >= generator.capacity()) {
        answers.back().outcome = Outcome::kTooLong;
        ++finished;
        continue;
      }
      GenerationRequest request;
      request.id = std::ssize(answers) - 1;
      request.prompt = std::move(rows[part].prompt);
      request.maxNewTokens = maxNewTokens;
      request.sampling.temperature = 0;
      request.endTokens = endTokens;
      QLORA_RETURN_IF_ERROR(generator.add(std::move(request)));
    }
  }
  return Status::ok();
}

/// Adds a token to its answer. Returns whether the row continues.
bool AnswerEvaluation::take(const GeneratedToken &token) {
  Answer &answer = answers[static_cast<size_t>(token.id)];
  if (token.token)
    answer.output.push_back(*token.token);
  finished += token.finish != FinishReason::kNone;
  if (token.finish == FinishReason::kStop)
    answer.outcome = Outcome::kStop;
  if (token.finish == FinishReason::kNotFinite) {
    answer.outcome = Outcome::kNotFinite;
    answer.output.clear();
  }
  return true;
}

/// Answers this rank's rows. In lockstep, all ranks run the same entries until
/// all have finished. Returns whether a stop signal ended it.
StatusOr<bool> AnswerEvaluation::answerOwn(const Run &run,
                                           Generator &generator) {
  ProgressListener progress;
  if (run.metrics)
    progress = run.metrics->progress("generating answers", "rows");
  const auto rows = static_cast<uint64_t>(run.validation->rows());
  const auto ranks = static_cast<uint64_t>(run.group.dataRanks());
  const auto onToken = [&](const GeneratedToken &token) { return take(token); };
  while (true) {
    QLORA_RETURN_IF_ERROR(addRows(run, generator));
    const GenerationWork work = generator.work();
    int64_t counts[] = {work.hasPrompt, work.hasRunning, stopSignal() != 0};
    if (run.stepShape.inLockstep)
      QLORA_RETURN_IF_ERROR(run.group.sum(std::span(counts)));
    const auto [prompts, running, stopped] = counts;
    if (stopped || (!prompts && !running))
      return stopped > 0;
    QLORA_RETURN_IF_ERROR(prompts ? generator.prefill(onToken)
                                  : generator.decode(onToken));
    if (progress)
      progress(std::min(static_cast<uint64_t>(finished) * ranks, rows), rows);
  }
}

/// Makes `answers` those of all ranks, in the order of the rows. Returns
/// whether any rank was stopped.
StatusOr<bool> AnswerEvaluation::gather(RankGroup &group, bool hasStopped) {
  std::vector<int64_t> flat = {hasStopped};
  for (const Answer &answer : answers) {
    flat.insert(flat.end(),
                {answer.row, answer.part, static_cast<int64_t>(answer.outcome),
                 std::ssize(answer.output)});
    flat.insert(flat.end(), answer.output.begin(), answer.output.end());
  }
  QLORA_ASSIGN_OR_RETURN(const auto all, group.collectives().allGatherValues(
                                             std::span<const int64_t>(flat)));
  answers.clear();
  bool anyStopped = false;
  for (const std::vector<int64_t> &values : all) {
    anyStopped |= values.front() != 0;
    for (auto at = values.begin() + 1; at != values.end();) {
      Answer answer{at[0], at[1], static_cast<Outcome>(at[2])};
      answer.output.assign(at + 4, at + 4 + at[3]);
      at += 4 + at[3];
      answers.push_back(std::move(answer));
    }
  }
  std::ranges::sort(answers, {}, [](const Answer &answer) {
    return std::tuple(answer.row, answer.part);
  });
  return anyStopped;
}

StatusOr<std::vector<ComparedAnswer>>
AnswerEvaluation::compared(const Run &run) const {
  std::vector<ComparedAnswer> all;
  std::vector<AnswerRow> rows;
  for (const Answer &answer : answers) {
    if (answer.part == 0) {
      QLORA_ASSIGN_OR_RETURN(rows, readAnswerRows(*run.validation, answer.row));
    }
    AnswerRow &row = rows[static_cast<size_t>(answer.part)];
    all.push_back({std::move(row.prompt), answer.output,
                   std::move(row.reference),
                   answer.outcome == Outcome::kStop});
  }
  return all;
}

/// Warns of rows without an answer, and returns their number.
int64_t AnswerEvaluation::warnOfUnanswered(const Run &run) {
  const auto count = [&](Outcome outcome) {
    return std::ranges::count(answers, outcome, &Answer::outcome);
  };
  const int64_t tooLong = count(Outcome::kTooLong);
  const int64_t notFinite = count(Outcome::kNotFinite);
  if (tooLong && !std::exchange(hasWarned, true))
    run.metrics->warn(fmt::format(
        "{} validation rows are not answered, because their prompts have at "
        "least --generation-length {} tokens; they count as wrong. Fix: a "
        "longer --generation-length",
        tooLong, limits.capacity));
  if (notFinite)
    run.metrics->warn(fmt::format(
        "{} validation rows are not answered, because a logit is NaN or "
        "infinite; they count as wrong",
        notFinite));
  return tooLong + notFinite;
}

/// Scores all answers, on rank 0.
StatusOr<ordered_json> AnswerEvaluation::score(const Run &run, int64_t step) {
  const int64_t unanswered = warnOfUnanswered(run);
  QLORA_ASSIGN_OR_RETURN(const auto all, compared(run));
  const std::string folder = run.outputFolder + "/" + kAnswersFolder;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return Status::unavailable("cannot create '{}': {}. Fix: choose another "
                               "--output-dir",
                               folder, error.message());
  QLORA_ASSIGN_OR_RETURN(
      ordered_json metrics,
      scorer->score(all, answersFile(run.outputFolder, step)));
  if (unanswered)
    metrics["unanswered"] = unanswered;
  return metrics;
}

StatusOr<std::optional<ordered_json>> AnswerEvaluation::evaluate(const Run &run,
                                                                 int64_t step) {
  answers.clear();
  nextRow = run.group.dataRank();
  finished = 0;
  QLORA_ASSIGN_OR_RETURN(Generator generator,
                         Generator::of(run.module, run.device, limits));
  QLORA_ASSIGN_OR_RETURN(bool hasStopped, answerOwn(run, generator));
  QLORA_ASSIGN_OR_RETURN(hasStopped, gather(run.group, hasStopped));
  if (hasStopped)
    return std::optional<ordered_json>();
  // An empty text: a signal ended the scoring.
  std::string text;
  if (scorer) {
    StatusOr<ordered_json> metrics = score(run, step);
    if (!metrics.isOk() && stopSignal() == 0)
      return metrics.status().withContext("--predict-with-generate");
    if (metrics.isOk())
      text = dumpExact(*metrics);
  }
  QLORA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         run.group.collectives().allGather(text));
  if (texts.front().empty())
    return std::optional<ordered_json>();
  return std::optional(ordered_json::parse(texts.front()));
}

} // namespace qlora
