// SPDX-License-Identifier: MIT

// Reads the first lines of files of answers, and puts them side by side.

#include "runtime/Watch/AnswersTable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "runtime/Base/Amounts.h"
#include "runtime/Watch/RunFolder.h"

namespace qlora {

using nlohmann::json;

/// Rows of the table, and bytes of a cell.
static constexpr size_t kMostRows = 10, kMostBytes = 4000;

std::string answersFile(const std::string &folder, int64_t step) {
  return fmt::format("{}/{}/step-{}.jsonl", folder, kAnswersFolder, step);
}

static std::vector<json> firstRows(const std::string &path) {
  // A file may be of any size; the table needs its beginning.
  std::string text(size_t{4} << 20, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  std::istringstream lines(text);
  std::vector<json> rows;
  for (std::string line; rows.size() < kMostRows && std::getline(lines, line);)
    if (json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
        row.is_object())
      rows.push_back(std::move(row));
  return rows;
}

std::vector<FirstAnswers>
readLastAnswers(const std::string &folder,
                const std::vector<json> &evaluations) {
  constexpr size_t kShown = 2;
  std::vector<FirstAnswers> answers;
  for (auto line = evaluations.rbegin();
       line != evaluations.rend() && answers.size() < kShown; ++line) {
    const double number = numberOf(*line, "step");
    if (!(number >= 0 && number < 1e15))
      continue;
    const auto step = static_cast<int64_t>(number);
    // A resumed run may have repeated an evaluation.
    if (std::ranges::count(answers, step, &FirstAnswers::step))
      continue;
    auto rows = firstRows(answersFile(folder, step));
    if (!rows.empty())
      answers.push_back({step, std::move(rows)});
  }
  std::ranges::reverse(answers);
  return answers;
}

bool isOfEveryEvaluation(std::string_view metric) {
  static constexpr std::string_view kNames[] = {
      "loss", "perplexity", "token_accuracy",    "rows",
      "runtime", "aux_loss", "generation_runtime"};
  return std::ranges::count(kNames, metric) > 0;
}

std::string metricText(std::string_view metric, double value) {
  static constexpr std::string_view kShares[] = {
      "exact_match", "f1", "rouge1", "rouge2", "rougeL", "rougeLsum",
      "stopped"};
  if (metric == "unanswered")
    return fmt::format("{:.0f} unanswered", value);
  if (!std::ranges::count(kShares, metric))
    return fmt::format("{} {}", metric, formatShort(value));
  return fmt::format("{} {:.1f} %",
                     metric == "exact_match" ? "exact match" : metric,
                     100 * value);
}

std::string loggedMetricsText(const json &evaluation) {
  if (!evaluation.contains("eval_generation_runtime"))
    return "";
  constexpr std::string_view kPrefix = "eval_";
  std::vector<std::string> words;
  for (const auto &[key, value] : evaluation.items()) {
    if (!key.starts_with(kPrefix) || !value.is_number())
      continue;
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    if (!isOfEveryEvaluation(name))
      words.push_back(metricText(name, value.get<double>()));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

/// Returns the text of a row's field, else its token ids.
static std::string textOf(const json &row, const char *name, const char *ids) {
  if (const auto text = row.find(name); text != row.end() && text->is_string())
    return text->get<std::string>();
  std::vector<int64_t> numbers;
  if (const auto list = row.find(ids); list != row.end() && list->is_array())
    for (const json &number : *list)
      if (number.is_number_integer())
        numbers.push_back(number.get<int64_t>());
  return fmt::format("{}", fmt::join(numbers, " "));
}

static std::string firstBytes(std::string text) {
  if (text.size() <= kMostBytes)
    return text;
  size_t end = kMostBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
    --end; // not inside of a character
  return text.substr(0, end) + "…";
}

Table answersTable(const std::vector<FirstAnswers> &answers) {
  TextRow head = {"prompt", "reference"};
  for (const FirstAnswers &after : answers)
    head.push_back(fmt::format("after step {}", after.step));
  std::vector<TextRow> rows;
  for (size_t i = 0; !answers.empty() && i < answers.back().rows.size(); ++i) {
    const json &last = answers.back().rows[i];
    TextRow &row = rows.emplace_back(
        TextRow{firstBytes(textOf(last, "prompt", "prompt_ids")),
                firstBytes(textOf(last, "reference", "reference_ids"))});
    for (const FirstAnswers &after : answers)
      row.push_back(
          i < after.rows.size()
              ? firstBytes(textOf(after.rows[i], "prediction", "output_ids"))
              : "");
  }
  return {"First answers", std::move(rows), std::move(head), "", "answers"};
}

} // namespace qlora
