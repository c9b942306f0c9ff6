// SPDX-License-Identifier: MIT

// Tokenises text files if needed, and opens token files.

#include "runtime/Data/DataFiles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenFiles.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

namespace fs = std::filesystem;

/// Returns whether any rank is still working. All ranks call this together.
/// Working ranks call it every second, so the call of a waiting rank takes at
/// most about a second. Fails if a rank has died.
static StatusOr<bool> someWork(RankGroup &group, bool thisWorks) {
  int64_t working[] = {thisWorks};
  QLORA_RETURN_IF_ERROR(group.sum(working));
  return working[0] > 0;
}

TokenRequest tokenRequest(const Options &options, const std::string &file,
                          int64_t maxLength, int64_t vocabSize) {
  TokenRequest tokens;
  tokens.dataFile = file;
  tokens.modelFolder = options.text("model_name_or_path");
  tokens.maxLength = maxLength;
  tokens.vocabSize = vocabSize;
  tokens.completionOnlyLoss = options.boolean("completion_only_loss");
  tokens.assistantOnlyLoss = options.boolean("assistant_only_loss");
  tokens.allowTemplateDrops = options.boolean("allow_template_drops");
  tokens.unpaired = options.text("rl") == "kto";
  tokens.pairs = options.text("rl") != "none" && !tokens.unpaired;
  tokens.chatTemplate = options.text("chat_template");
  tokens.formats = options.names("row_format");
  tokens.excess = options.text("excess_length_strategy");
  tokens.columns = options.textMap("dataset_columns");
  if (const std::string text = options.text("dataset_text_field");
      text != "text")
    tokens.columns.emplace("text", text);
  tokens.workers = options.integer("dataset_num_proc");
  return tokens;
}

static StatusOr<std::string> tokenise(const DataRequest &request,
                                      const std::string &file,
                                      int64_t vocabSize, RankGroup &group) {
  TokenRequest tokens = tokenRequest(
      request.options, file, request.variants.lengths.back(), vocabSize);
  QLORA_ASSIGN_OR_RETURN(tokens.converter, findConverter());
  QLORA_ASSIGN_OR_RETURN(tokens.cacheFolder, tokenCacheFolder());
  QLORA_ASSIGN_OR_RETURN(std::string rows, cachedRowsPath(tokens));
  // The first rank of each machine tokenises, even if machines share the cache:
  // waiting for another machine would take as long.
  if (group.isFirstOfMachine())
    QLORA_RETURN_IF_ERROR(
        makeCachedRows(tokens, rows, request.progress,
                       [&] { return someWork(group, true).status(); }));
  for (bool waits = true; waits;) {
    QLORA_ASSIGN_OR_RETURN(waits, someWork(group, false));
  }
  QLORA_ASSIGN_OR_RETURN(const ConversionNotes notes, conversionNotes(rows));
  if (request.note && !notes.note.empty())
    request.note(fmt::format("'{}': {}", shownPath(file), notes.note));
  if (request.warn && !notes.warning.empty())
    request.warn(fmt::format("'{}': {}", shownPath(file), notes.warning));
  return rows;
}

/// Adds qlora-data's counts of cut and dropped rows from the file's metadata.
static Status addCounts(const std::string &path, DataSummary &summary) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  const RowsMetadata numbers(file);
  summary.truncatedRows += numbers.truncatedRows;
  summary.droppedRows += numbers.droppedRows;
  return Status::ok();
}

/// Returns the statistics of all rows. Reads a token file completely to count.
static StatusOr<DataSummary> summaryOf(const DataMix &mix, Dataset &dataset) {
  DataSummary summary;
  summary.rows = dataset.rows();
  MicroBatch batch;
  for (int64_t i = 0;
       dataset.isWhole() && i < dataset.schedule().countInOrder(); ++i) {
    QLORA_RETURN_IF_ERROR(dataset.readInOrder(i, batch));
    summary.tokens += static_cast<int64_t>(batch.segments.size()) -
                      std::ranges::count(batch.segments, 0);
    summary.labelledTokens += batch.labelCount();
  }
  if (dataset.isWhole())
    return summary;
  for (const WeightedPath &file : mix.files)
    QLORA_RETURN_IF_ERROR(addCounts(file.path, summary));
  std::map<int64_t, int64_t> rowsOf;
  for (int64_t row = 0; row < summary.rows; ++row) {
    ++rowsOf[dataset.length(row)];
    summary.tokens += dataset.tokens(row);
    summary.labelledTokens += dataset.labels(row);
  }
  int64_t shorter = 0;
  for (const auto &[length, rows] : rowsOf) {
    if (shorter <= summary.rows / 2)
      summary.median = length;
    shorter += rows;
    summary.longest = length;
  }
  return summary;
}

std::string dataName(const Options &options, const std::string &option) {
  const auto files = options.paths(option);
  return files.size() == 1 ? shownPath(files[0].path)
                           : fmt::format("{} inputs", files.size());
}

/// Checks that each path exists and that none is given twice.
static Status checkFiles(const Options &options, const std::string &option,
                         const std::vector<WeightedPath> &files) {
  const std::string spelling = options.spelling(option);
  if (files.empty())
    return Status::invalid("no {} is given. Fix: {} FILE", option,
                           flagSpelling(option));
  std::map<fs::path, std::string> known;
  for (const auto &[path, weight] : files) {
    std::error_code error;
    if (!fs::is_regular_file(path, error) && !fs::is_directory(path, error))
      return Status::notFound("{}: there is no file '{}'", spelling, path);
    if (option == "validation_file" && weight != 1)
      return Status::invalid("{}: '{}' has the weight {}, but validation reads "
                             "each row once. Fix: remove the weight",
                             spelling, path, weight);
    if (!known.emplace(fs::canonical(path, error), path).second)
      return Status::invalid(
          "{}: '{}' is given twice. Fix: write {}:2 to read each row twice",
          spelling, path, path);
  }
  for (const auto &[real, path] : known)
    if (known.contains(real.parent_path()))
      return Status::invalid(
          "{}: '{}' is also in the folder '{}'. Fix: leave one of them out",
          spelling, path, known[real.parent_path()]);
  return Status::ok();
}

/// Checks that the template is a file or the name of a built-in template.
static Status checkChatTemplate(const Options &options) {
  const std::string path = options.text("chat_template");
  const std::string_view names =
      findOption(optionTable(), "chat_template")->choices;
  std::error_code ignored;
  if (path.empty() || std::ranges::count(splitWords(names), path) ||
      fs::is_regular_file(path, ignored))
    return Status::ok();
  return Status::notFound("{}: there is no file '{}', and no template of that "
                          "name. Fix: write a Jinja file, or one of: {}",
                          options.spelling("chat_template"), path,
                          fmt::join(splitWords(names), ", "));
}

Status checkDataFiles(const Options &options, bool trains) {
  QLORA_RETURN_IF_ERROR(checkChatTemplate(options));
  for (const char *option : {"train_file", "validation_file"}) {
    const bool isNeeded = std::string_view(option) == "train_file"
                              ? trains || options.number("val_set_size") > 0
                              : !options.paths(option).empty();
    if (isNeeded)
      QLORA_RETURN_IF_ERROR(checkFiles(options, option, options.paths(option)));
  }
  return Status::ok();
}

/// Returns the files, with each text file replaced by its converted file.
static StatusOr<DataMix> tokeniseAll(const DataRequest &request,
                                     const std::vector<WeightedPath> &files,
                                     int64_t vocabSize, RankGroup &group) {
  DataMix mix;
  for (const auto &[path, weight] : files) {
    std::string tokens = path;
    if (!isTokenData(path)) {
      QLORA_ASSIGN_OR_RETURN(tokens, tokenise(request, path, vocabSize, group));
    }
    mix.files.push_back({tokens, weight});
    mix.names.push_back(path);
  }
  return mix;
}

/// Whether rows of text are padded although token buckets were an option.
static bool isPaddedText(const DataMix &mix, const CompiledVariants &variants,
                         const ScheduleOptions &options) {
  const bool isText = mix.files.front().path != mix.names.front();
  return isText && variants.buckets.empty() && !options.stepPacking &&
         variants.sides == 1 && !variants.isUnpaired;
}

StatusOr<std::unique_ptr<Dataset>>
openDataFile(const DataRequest &request, const std::string &option,
             RankGroup &group, DataSummary *summary,
             std::unique_ptr<Dataset> *validation) {
  const std::vector<WeightedPath> files = request.options.paths(option);
  QLORA_RETURN_IF_ERROR(checkFiles(request.options, option, files));
  if (!request.vocabSize.is_number_integer())
    return Status::dataLoss(
        "the program does not record vocab_size. Fix: compile it again");
  CompiledVariants shape = request.variants;
  shape.vocabSize = request.vocabSize.get<int64_t>();
  shape.sides = request.options.linesOfRow();
  shape.isUnpaired = request.options.text("rl") == "kto";
  QLORA_ASSIGN_OR_RETURN(DataMix mix, tokeniseAll(request, files,
                                                  shape.vocabSize, group));
  if (validation)
    mix.validationSize = request.options.number("val_set_size");
  ScheduleOptions options;
  options.seed = static_cast<uint64_t>(request.options.integer("seed"));
  options.packing = request.options.boolean("packing");
  if (const std::string free = request.options.text("step_packing");
      free != "auto")
    options.stepPacking = free == "true";
  QLORA_ASSIGN_OR_RETURN(DataParts parts, openMix(mix, shape, options));
  if (validation)
    *validation = std::move(parts.validation);
  // The summary reads all of a token file, so only the reporting rank makes it.
  if (summary && request.note) {
    QLORA_ASSIGN_OR_RETURN(*summary, summaryOf(mix, *parts.training));
  }
  if (isPaddedText(mix, shape, options) && request.warn)
    request.warn(fmt::format(
        "'{}': rows are padded, which makes steps slower. Fix: compile with "
        "--step-packing true",
        dataName(request.options, option)));
  return std::move(parts.training);
}

} // namespace qlora
