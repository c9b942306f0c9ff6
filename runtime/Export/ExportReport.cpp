// SPDX-License-Identifier: MIT

// Formats the proofs of an export.

#include "runtime/Export/ExportReport.h"

#include <cmath>

#include "runtime/Base/Amounts.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Export/StagedFolder.h"

namespace qlora {

using nlohmann::ordered_json;

/// Fraction of what the training gained that an export may lose.
static constexpr double kMostLost = 0.01;

static ordered_json jsonOf(const std::optional<double> &value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

static std::optional<double> differenceOf(const std::optional<double> &loss,
                                          const std::optional<double> &from) {
  return loss && from ? std::optional(*loss - *from) : std::nullopt;
}

std::vector<std::string> ExportReport::warnings() const {
  std::vector<std::string> all;
  const std::optional<double> gain = differenceOf(lossBefore, lossTrained);
  if (!gain)
    return all;
  if (*gain <= 0)
    all.push_back(fmt::format("the training did not lower the loss on {}: "
                              "{:.4f} before, {:.4f} after",
                              dataName, *lossBefore, *lossTrained));
  const auto check = [&](const std::string &what, const std::string &cause,
                         const std::optional<double> &loss) {
    const std::optional<double> difference = differenceOf(loss, lossTrained);
    if (difference && *gain > 0 && std::fabs(*difference) > kMostLost * *gain)
      all.push_back(fmt::format(
          "the loss of {} is {:.4f}, {:+.4f} from the training's, which is "
          "{:.1f} % of what the training gained; cause: {}",
          what, *loss, *difference, 100 * std::fabs(*difference) / *gain,
          cause));
  };
  for (const Artefact &artefact : artefacts)
    if (artefact.isWritten) {
      check(artefact.name, artefact.cause, artefact.loss);
      const ReaderResult &reader = artefact.reader;
      check(fmt::format("{} in {}", artefact.name, reader.name),
            reader.cause.empty() ? artefact.cause : reader.cause, reader.loss);
    }
  return all;
}

ordered_json ExportReport::json() const {
  ordered_json rowsJson = nullptr;
  if (!dataName.empty())
    rowsJson = {{"name", dataName},
                {"rows", rows},
                {"is_training_data", usesTrainingRows}};
  ordered_json all = {{"format", format},
                      {"base_model", base},
                      {"adapter", adapter},
                      {"data", rowsJson},
                      {"loss_before_training", jsonOf(lossBefore)},
                      {"loss_after_training", jsonOf(lossTrained)},
                      {"artefacts", ordered_json::array()},
                      {"notes", notes},
                      {"warnings", warnings()}};
  for (const Artefact &artefact : artefacts)
    all["artefacts"].push_back(
        {{"artefact", artefact.name},
         {"written", artefact.isWritten},
         {"loss", jsonOf(artefact.loss)},
         {"difference", jsonOf(differenceOf(artefact.loss, lossTrained))},
         {"reader", artefact.reader.name},
         {"reader_loss", jsonOf(artefact.reader.loss)},
         {"reader_difference",
          jsonOf(differenceOf(artefact.reader.loss, lossTrained))},
         {"reader_equal_tensors", artefact.reader.equalTensors},
         {"not_checked", artefact.reader.notChecked}});
  return all;
}

static std::string lossText(const std::optional<double> &loss) {
  return loss ? fmt::format("{:.5f}", *loss) : std::string("-");
}

std::string ExportReport::table() const {
  std::string text =
      "| Artefact | Loss | From training | Reader | Its loss | From training "
      "|\n| --- | --- | --- | --- | --- | --- |\n";
  const auto difference = [&](const std::optional<double> &loss) {
    const std::optional<double> value = differenceOf(loss, lossTrained);
    return value ? fmt::format("{:+.5f}", *value) : std::string("-");
  };
  const auto add = [&](const std::string &name,
                       const std::optional<double> &loss,
                       const std::string &from, const ReaderResult &reader) {
    std::string readerText = reader.name;
    if (!reader.notChecked.empty())
      readerText += (readerText.empty() ? "not checked: " : "; no loss: ") +
                    reader.notChecked;
    if (readerText.empty())
      readerText = "-";
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", name,
                        lossText(loss), from, readerText, lossText(reader.loss),
                        difference(reader.loss));
  };
  add("base, before training", lossBefore, "-", {});
  add("base and adapter, after training", lossTrained, "-", {});
  for (const Artefact &artefact : artefacts)
    add((artefact.isWritten ? "" : "not written: ") + artefact.name,
        artefact.loss, difference(artefact.loss), artefact.reader);
  return text;
}

Status ExportReport::write(const std::string &folder) const {
  return replaceWholeFile(folder + "/" + kExportFile,
                          dumpJson(json(), 2) + "\n");
}

/// Escapes text for a line of Markdown.
static std::string markdown(const std::string &text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\`*_{}[]<>()#+!|~&$").find(c) !=
        std::string_view::npos)
      escaped += '\\';
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return escaped;
}

std::string modelCard(const ExportReport &report, const ModelCard &card) {
  const std::string base = dumpJson(ordered_json(report.base));
  const bool isMerged = !card.choice.empty();
  const std::string tag = dumpJson(
      ordered_json(fmt::format("base_model:{}:{}",
                               isMerged ? "finetune" : "adapter",
                               report.base)));
  std::string text = fmt::format(
      "---\nbase_model: {}\nlibrary_name: {}\n"
      "pipeline_tag: text-generation\ntags:\n- {}\n- qlora\n---\n\n"
      "# {}\n\n",
      base, card.library, tag, markdown(card.title));
  text += isMerged ? fmt::format("{} with the adapter {} merged into its "
                                 "weights. {}\n\n",
                                 markdown(report.base),
                                 markdown(report.adapter), card.choice)
                   : fmt::format("The adapter {} of {}.\n\n",
                                 markdown(report.adapter),
                                 markdown(report.base));
  if (!report.dataName.empty())
    text += fmt::format(
        "## Losses\n\nOn {}, {} rows{}, computed in float32:\n\n{}\n",
        markdown(report.dataName),
        formatCount(static_cast<uint64_t>(report.rows)),
        report.usesTrainingRows ? " that the training used, because the run "
                                  "has no validation data"
                                : "",
        report.table());
  for (const std::string &warning : report.warnings())
    text += "Warning: " + markdown(warning) + ".\n\n";
  for (const std::string &note : report.notes)
    text += markdown(note) + "\n\n";
  return text + "## How to load it\n\n" + card.usage;
}

} // namespace qlora
