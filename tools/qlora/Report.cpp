// SPDX-License-Identifier: MIT

// `qlora report`: writes report.html, and summarizes the run in five lines.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Watch/ReportPage.h"
#include "tools/qlora/Commands.h"

namespace qlora {

using nlohmann::json;

const Tool &reportTool() {
  static const Tool tool = {
      .version = "qlora " QLORA_VERSION "\n",
      .usage = "usage: qlora report DIR\n\n"
               "Prints a summary of a run, and writes its page, report.html, "
               "into DIR, also\nwhile it trains. DIR is the --output-dir of a "
               "run, or one of its sessions/v1.\n",
      .input = "DIR",
      .example = "  qlora report out\n"};
  return tool;
}

/// Formats the option's value, or a dash for a run without settings.
static std::string settingText(const RunFolder &run, const char *option) {
  if (!run.settings)
    return "–";
  const auto &value = run.settings->value(option);
  return value.is_string() ? value.get<std::string>() : dumpJson(value);
}

static std::string methodText(const RunFolder &run) {
  if (settingText(run, "finetuning_type") == "full")
    return "all weights";
  const std::string objective = settingText(run, "rl");
  return fmt::format(
      "LoRA r {}, alpha {}{}{}", settingText(run, "lora_r"),
      settingText(run, "lora_alpha"),
      settingText(run, "load_in_4bit") == "true" ? ", 4 bits" : "",
      objective == "none" || objective == "–" ? "" : ", " + objective);
}

/// Formats a logged number; a dash if there is none.
static std::string numberText(double value, const char *form = "{:.4f}") {
  return std::isfinite(value) ? fmt::format(fmt::runtime(form), value) : "–";
}

static std::string stepsText(const RunFolder &run, const json &last) {
  const bool hasEnded = !run.logged.totals.empty();
  const double step = numberOf(hasEnded ? run.logged.totals : last, "step");
  return fmt::format(
      "{} steps, {} epochs, {} tokens{}", numberText(step, "{:.0f}"),
      numberText(numberOf(last, "epoch"), "{:.2f}"),
      numberText(numberOf(last, "num_input_tokens_seen"), "{:.0f}"),
      hasEnded ? "" : "; has not ended, or was interrupted");
}

static std::string lossText(const RunFolder &run, const json &first,
                            const json &last) {
  std::string text = fmt::format("{} at the first logged step, {} at the last",
                                 numberText(numberOf(first, "loss")),
                                 numberText(numberOf(last, "loss")));
  if (!run.logged.evaluations.empty())
    text += fmt::format(
        "; {} on validation data",
        numberText(numberOf(run.logged.evaluations.back(), "eval_loss")));
  return text;
}

static std::string costText(const RunFolder &run) {
  const json &totals = run.logged.totals;
  const double seconds = numberOf(totals, "train_runtime");
  const double peak = numberOf(totals, "peak_memory_bytes");
  return fmt::format("{}, peak memory {}",
                     std::isfinite(seconds) ? formatDuration(seconds) : "–",
                     peak > 0 ? formatBytes(static_cast<uint64_t>(peak)) : "–");
}

static std::string summaryOf(const RunFolder &run) {
  const json none = json::object();
  const json &first = run.logged.steps.empty() ? none : run.logged.steps[0];
  const json &last = run.logged.steps.empty() ? none : run.logged.steps.back();
  const auto line = [](const char *name, const std::string &text) {
    return fmt::format("{:<8} {}\n", name, text);
  };
  return line("run",
              fmt::format("{}, {}",
                          shownPath(settingText(run, "model_name_or_path")),
                          methodText(run))) +
         line("data", shownPath(settingText(run, "train_file"))) +
         line("steps", stepsText(run, last)) +
         line("loss", lossText(run, first, last)) + line("time", costText(run));
}

StatusOr<std::string> report(Words words) {
  QLORA_ASSIGN_OR_RETURN(const CommandLine command,
                         parseCommandLine(words, reportTool()));
  if (!command.answer.empty())
    return command.answer;
  if (command.rest.size() != 1)
    return Status::invalid("expects one folder of a run; usage: qlora report "
                           "DIR, with the --output-dir of a run");
  const std::string &folder = command.rest[0];
  QLORA_ASSIGN_OR_RETURN(const RunFolder run, RunFolder::read(folder));
  QLORA_RETURN_IF_ERROR(writeReport(folder));
  return summaryOf(run) + fmt::format("report written to {}/{}\n",
                                      shownPath(folder), kReportFile);
}

} // namespace qlora
