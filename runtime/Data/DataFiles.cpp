// SPDX-License-Identifier: MIT

// Tokenises text files if needed, and opens token files.

#include "runtime/Data/DataFiles.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "runtime/Base/HubReference.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Data/StoreIndexes.h"
#include "runtime/Data/TokenFiles.h"
#include "runtime/Options/OptionTable.h"

namespace qlora {

namespace fs = std::filesystem;

TokenRequest tokenRequest(const Options &options, const std::string &file,
                          int64_t maxLength, int64_t vocabSize) {
  TokenRequest tokens;
  tokens.dataFile = file;
  tokens.modelFolder = options.text("model_name_or_path");
  tokens.maxLength = maxLength;
  tokens.maxSamples = options.integer("max_samples");
  tokens.minLength = options.integer("min_length");
  tokens.dropDuplicates = options.boolean("drop_duplicates");
  tokens.dropSystemMessages = options.boolean("drop_system_messages");
  tokens.vocabSize = vocabSize;
  tokens.completionOnlyLoss = options.boolean("completion_only_loss");
  tokens.assistantOnlyLoss = options.boolean("assistant_only_loss");
  tokens.allowTemplateDrops = options.boolean("allow_template_drops");
  tokens.unpaired = options.text("rl") == "kto";
  tokens.pairs = options.text("rl") != "none" && !tokens.unpaired;
  tokens.chatTemplate = options.text("chat_template");
  tokens.formats = options.names("row_format");
  tokens.excess = options.text("excess_length_strategy");
  if (options.boolean("packing")) {
    const std::string strategy = options.text("packing_strategy");
    if (strategy == "bfd_split")
      tokens.excess = "split";
    else if (strategy != "bfd")
      tokens.packing = strategy;
  }
  tokens.endToken = options.text("eos_token");
  tokens.columns = options.textMap("dataset_columns");
  if (const std::string text = options.text("dataset_text_field");
      text != "text")
    tokens.columns.emplace("text", text);
  tokens.workers = options.integer("dataset_num_proc");
  return tokens;
}

static StatusOr<std::string> tokenise(const DataRequest &request,
                                      const std::string &option,
                                      const std::string &file,
                                      int64_t vocabSize, RankGroup &group) {
  TokenRequest tokens = tokenRequest(
      request.options, file, request.variants.lengths.back(), vocabSize);
  QLORA_ASSIGN_OR_RETURN(tokens.converter, findConverter());
  QLORA_ASSIGN_OR_RETURN(tokens.cacheFolder, tokenCacheFolder());
  QLORA_ASSIGN_OR_RETURN(std::string rows, cachedRowsPath(tokens));
  // The first rank of each machine tokenises, even if machines share the cache:
  // waiting for another machine would take as long.
  RankGroup::Work work;
  if (group.isFirstOfMachine())
    work = [&](const std::function<Status()> &often) {
      return makeCachedRows(tokens, rows,
                            request.progress ? request.progress(option)
                                             : ProgressListener(),
                            often);
    };
  QLORA_RETURN_IF_ERROR(group.workWhileOthersWait(work));
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
    const bool isOfHub = isHubReference(path); // qlora-data looks for it
    if (!isOfHub && !fs::is_regular_file(path, error) &&
        !fs::is_directory(path, error))
      return Status::notFound("{}: there is no file '{}'", spelling, path);
    if (option == "validation_file" && weight != 1)
      return Status::invalid("{}: '{}' has the weight {}, but validation reads "
                             "each row once. Fix: remove the weight",
                             spelling, path, weight);
    if (isTokenData(path) && options.integer("max_samples") > 0)
      return Status::invalid(
          "{} {}: '{}' is a token file, which is read whole. Fix: remove the "
          "option, and give it to qlora-data",
          options.spelling("max_samples"), options.integer("max_samples"),
          path);
    const fs::path real = isOfHub ? fs::path(path) : fs::canonical(path, error);
    if (!known.emplace(real, path).second)
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

/// Opens the files of an option, with each text file replaced by its converted
/// file.
static StatusOr<DataMix> openOption(const DataRequest &request,
                                    const std::string &option,
                                    const CompiledVariants &shape,
                                    RankGroup &group) {
  const std::vector<WeightedPath> files = request.options.paths(option);
  QLORA_RETURN_IF_ERROR(checkFiles(request.options, option, files));
  DataMix mix;
  for (const auto &[path, weight] : files) {
    std::string tokens = path;
    if (!isTokenData(path)) {
      QLORA_ASSIGN_OR_RETURN(
          tokens, tokenise(request, option, path, shape.vocabSize, group));
    }
    mix.files.push_back({tokens, weight});
    mix.names.push_back(path);
  }
  QLORA_RETURN_IF_ERROR(openStores(mix, shape));
  return mix;
}

/// Whether rows of text are padded although token buckets were an option.
static bool isPaddedText(const DataMix &mix, const CompiledVariants &variants,
                         const ScheduleOptions &options) {
  const bool isText = mix.files.front().path != mix.names.front();
  return isText && variants.buckets.empty() && !options.stepPacking &&
         variants.sides == 1 && !variants.isUnpaired;
}

static StatusOr<CompiledVariants> shapeOf(const DataRequest &request) {
  if (!request.vocabSize.is_number_integer())
    return Status::dataLoss(
        "the program does not record vocab_size. Fix: compile it again");
  CompiledVariants shape = request.variants;
  shape.vocabSize = request.vocabSize.get<int64_t>();
  shape.sides = request.options.linesOfRow();
  shape.isUnpaired = request.options.text("rl") == "kto";
  return shape;
}

static ScheduleOptions scheduleOptions(const Options &given) {
  ScheduleOptions options;
  options.seed = static_cast<uint64_t>(given.integer("seed"));
  options.packing = given.boolean("packing") &&
                    given.text("packing_strategy").starts_with("bfd");
  options.shuffles = given.text("train_sampling_strategy") == "random";
  if (const std::string free = given.text("step_packing"); free != "auto")
    options.stepPacking = free == "true";
  return options;
}

StatusOr<SessionData> openDataFiles(const DataRequest &request,
                                    RankGroup &group) {
  QLORA_ASSIGN_OR_RETURN(const CompiledVariants shape, shapeOf(request));
  const ScheduleOptions options = scheduleOptions(request.options);
  std::map<std::string, DataMix> mixes; // by option
  const double validationSize = request.options.number("val_set_size");
  if (request.trains || validationSize > 0) {
    DataMix &mix = mixes["train_file"];
    QLORA_ASSIGN_OR_RETURN(mix,
                           openOption(request, "train_file", shape, group));
    mix.validationSize = validationSize;
  }
  if (!request.options.paths("validation_file").empty()) {
    QLORA_ASSIGN_OR_RETURN(
        mixes["validation_file"],
        openOption(request, "validation_file", shape, group));
  }
  std::vector<TokenStore *> stores;
  for (const auto &[option, mix] : mixes)
    for (TokenStore &store : *mix.stores)
      stores.push_back(&store);
  QLORA_RETURN_IF_ERROR(makeIndexes(stores, &group));
  SessionData data;
  for (const auto &[option, mix] : mixes) {
    QLORA_ASSIGN_OR_RETURN(DataParts parts, makeDatasets(mix, shape, options));
    if (isPaddedText(mix, shape, options) && request.warn)
      request.warn(fmt::format(
          "'{}': rows are padded, which makes steps slower. Fix: compile with "
          "--step-packing true",
          dataName(request.options, option)));
    if (option == "validation_file") {
      data.validation = std::move(parts.training);
      continue;
    }
    // Reads all of a token file, so only the reporting rank does it.
    if (request.note) {
      QLORA_ASSIGN_OR_RETURN(data.summary, summaryOf(mix, *parts.training));
    }
    data.training = request.trains ? std::move(parts.training) : nullptr;
    data.validation = std::move(parts.validation);
  }
  return data;
}

} // namespace qlora
