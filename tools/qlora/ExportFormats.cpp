// SPDX-License-Identifier: MIT

// Measures, reads back and prints, for all forms.

#include "tools/qlora/ExportFormats.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "runtime/Base/FindProgram.h"
#include "runtime/Base/JsonText.h"
#include "runtime/Base/Subprocess.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenCache.h"
#include "tools/qlora/Tools.h"

namespace qlora {

namespace fs = std::filesystem;

static std::string lastName(const std::string &path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path())
      .filename()
      .string();
}

Status checkFindings(const ExportJob &job, const std::vector<Finding> &findings,
                     std::vector<std::string> &notes) {
  for (const Finding &finding : findings) {
    if (finding.fit == Fit::kNo)
      return Status::invalid("--to {}: {}. Fix: {}", job.format, finding.why,
                             finding.todo);
    notes.push_back(finding.why);
  }
  return Status::ok();
}

ExportReport startReport(const ExportJob &job,
                         const std::vector<std::string> &notes) {
  ExportReport report;
  report.format = job.format;
  report.base = job.baseName;
  report.adapter = lastName(job.run);
  for (const std::string &text : notes)
    report.notes.push_back(text + ".");
  return report;
}

StatusOr<std::optional<LossMeter>> startMeter(const ExportJob &job,
                                              ExportReport &report) {
  if (!job.own.boolean("verify"))
    return std::optional<LossMeter>();
  QLORA_ASSIGN_OR_RETURN(LossMeter meter, LossMeter::create(job));
  note(fmt::format("measuring losses on {}{}", meter.dataName(),
                   meter.isOfTraining()
                       ? ", training rows: the run has no validation data. "
                         "--validation-file FILE names some"
                       : ""));
  QLORA_ASSIGN_OR_RETURN(report.lossBefore, meter.ofBase());
  QLORA_ASSIGN_OR_RETURN(report.lossTrained, meter.ofTrained());
  QLORA_RETURN_IF_ERROR(meter.makeRows());
  report.dataName = meter.dataName();
  report.usesTrainingRows = meter.isOfTraining();
  report.rows = meter.rowCount();
  return std::optional(std::move(meter));
}

/// Returns the Python of --reader-python, or an empty text.
static StatusOr<std::string> readerPython(const ExportJob &job) {
  std::string python = job.own.text("reader_python");
  if (const char *named = std::getenv("QLORA_READER_PYTHON");
      python.empty() && named)
    python = named;
  if (!python.empty()) {
    if (std::error_code ignored; fs::exists(python, ignored))
      return python;
    return Status::notFound("--reader-python: there is no '{}'. Fix: name a "
                            "Python that has the reader",
                            python);
  }
  return findProgram("python3").value_or("");
}

/// Parses what read_back.py printed.
static StatusOr<ReaderResult> parseResult(const std::string &form,
                                          const std::string &text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ReaderResult result;
  if (!json.is_object())
    return Status::error(StatusCode::kInternal, "read_back.py printed '{}'",
                         text);
  if (json.contains("error"))
    return Status::invalid("the reader cannot load the export: {}. Fix: "
                           "another --reader-python, or --no-verify",
                           json["error"].get<std::string>());
  if (json.contains("missing")) {
    result.notChecked = json["missing"].get<std::string>();
    return result;
  }
  result.name = json["reader"].get<std::string>();
  if (json["loss"].is_null())
    result.notChecked = json["unmeasured"].get<std::string>();
  else
    result.loss = json["loss"].get<double>();
  result.equalTensors = json["tensors"].get<int64_t>();
  if (const auto &different = json["different"]; !different.empty())
    return Status::error(StatusCode::kInternal,
                         "{} reads other values than were written: {} of {} "
                         "tensors of --to {} differ, such as '{}'",
                         result.name, different.size(),
                         different.size() + static_cast<size_t>(
                                                result.equalTensors),
                         form, different[0].get<std::string>());
  return result;
}

StatusOr<ReaderResult> readBack(const ExportJob &job, const LossMeter &meter,
                                const std::string &form,
                                const std::string &path,
                                const std::vector<std::string> &more) {
  ReaderResult none;
  QLORA_ASSIGN_OR_RETURN(const std::string python, readerPython(job));
  if (python.empty()) {
    none.notChecked = "there is no python3";
    return none;
  }
  QLORA_ASSIGN_OR_RETURN(const std::string converter, findConverter());
  std::error_code ignored;
  const fs::path script = fs::canonical(converter, ignored).parent_path() /
                          "qlora_data/read_back.py";
  std::vector<std::string> words = {python, script.string(), form, path,
                                    meter.rowsFile()};
  words.insert(words.end(), more.begin(), more.end());
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output, runProgram(words));
  if (output.exitCode != 0)
    return Status::unavailable("'{}' ended with code {}: {}", python,
                               output.exitCode, output.errors);
  return parseResult(form, output.out);
}

StatusOr<std::string>
writeDigests(const LossMeter &meter,
             const std::map<std::string, std::string> &digests) {
  const std::string path = meter.scratchFile("digests.json");
  QLORA_RETURN_IF_ERROR(
      replaceWholeFile(path, dumpJson(nlohmann::ordered_json(digests))));
  return "--digests=" + path;
}

void printReport(const ExportJob &job, const ExportReport &report) {
  if (!report.dataName.empty())
    fmt::print("\n{}\n", report.table());
  for (const std::string &text : report.notes)
    note(text);
  for (const std::string &warning : report.warnings())
    note("warning: " + warning);
  fmt::print("written to {}\n", shownPath(job.output));
}

} // namespace qlora
