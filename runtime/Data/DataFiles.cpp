// SPDX-License-Identifier: MIT

// Tokenising where needed, and opening.

#include "runtime/Data/DataFiles.h"

#include <algorithm>
#include <filesystem>

#include "runtime/Base/UserFiles.h"
#include "runtime/Data/TokenCache.h"

namespace qlora {

/// One meeting of all ranks: whether one of them is still at work. Each meets
/// the others every second, so that no wait is as long as the work, and a rank
/// that dies ends it.
static StatusOr<bool> someWork(RankGroup &group, bool thisWorks) {
  int64_t working[] = {thisWorks};
  QLORA_RETURN_IF_ERROR(group.sum(working));
  return working[0] > 0;
}

static StatusOr<std::string> tokenise(const DataRequest &request,
                                      const std::string &file,
                                      int64_t vocabSize, RankGroup &group) {
  const Options &options = request.options;
  TokenRequest tokens;
  tokens.dataFile = file;
  tokens.modelFolder = options.text("model_name_or_path");
  QLORA_ASSIGN_OR_RETURN(tokens.converter, findConverter());
  QLORA_ASSIGN_OR_RETURN(tokens.cacheFolder, tokenCacheFolder());
  tokens.maxLength = request.variants.lengths.back();
  tokens.vocabSize = vocabSize;
  tokens.completionOnlyLoss = options.boolean("completion_only_loss");
  tokens.assistantOnlyLoss = options.boolean("assistant_only_loss");
  tokens.chatTemplate = options.text("chat_template");
  QLORA_ASSIGN_OR_RETURN(std::string rows, cachedRowsPath(tokens));
  // A cache that several machines see is filled by each of them: waiting for
  // one another would take as long.
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

/// Of qlora-data's files from what it has counted, of others by counting.
static StatusOr<DataSummary> summaryOf(const std::string &path,
                                       Dataset &dataset) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  const RowsNumbers numbers(file);
  DataSummary summary{dataset.rows(), numbers.tokens, numbers.labelledTokens,
                      numbers.truncatedRows, numbers.droppedRows};
  if (numbers.isKnown)
    return summary;
  MicroBatch batch;
  for (int64_t i = 0; i < dataset.schedule().countInOrder(); ++i) {
    QLORA_RETURN_IF_ERROR(dataset.readInOrder(i, batch));
    summary.tokens += static_cast<int64_t>(batch.segments.size()) -
                      std::ranges::count(batch.segments, 0);
    summary.labelledTokens += batch.labelCount();
  }
  return summary;
}

StatusOr<std::unique_ptr<Dataset>>
openDataFile(const DataRequest &request, const std::string &option,
             RankGroup &group, DataSummary *summary) {
  std::string file = request.options.text(option);
  if (file.empty())
    return Status::invalid("no {}: name the data with {} FILE", option,
                           flagSpelling(option));
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    return Status::error(StatusCode::kNotFound, "{}: there is no file '{}'",
                         request.options.spelling(option), file);
  if (!request.vocabSize.is_number_integer())
    return Status::error(StatusCode::kDataLoss,
                         "the module does not record vocab_size; compile it "
                         "again");
  CompiledVariants shape = request.variants;
  shape.vocabSize = request.vocabSize.get<int64_t>();
  std::string tokens = file;
  if (!isTokenData(file)) {
    QLORA_ASSIGN_OR_RETURN(
        tokens, tokenise(request, file, shape.vocabSize, group));
  }
  ScheduleOptions options;
  options.seed = static_cast<uint64_t>(request.options.integer("seed"));
  options.packing = request.options.boolean("packing");
  if (const std::string free = request.options.text("padding_free");
      free != "auto")
    options.paddingFree = free == "true";
  auto data = openDataset(tokens, shape, options);
  // The user knows the JSONL file, not the cached one.
  if (!data.isOk() && tokens != file)
    return data.status().withContext(file);
  // Of a foreign file it is a whole read, which one rank is enough for.
  if (data.isOk() && summary && request.note) {
    QLORA_ASSIGN_OR_RETURN(*summary, summaryOf(tokens, **data));
  }
  const bool isPadded =
      tokens != file && shape.buckets.empty() && !options.paddingFree;
  if (isPadded && request.warn)
    request.warn(fmt::format(
        "'{}': its rows are padded, because the program has no token buckets; "
        "compile it with --padding-free true, and steps take less time",
        shownPath(file)));
  return data;
}

} // namespace qlora
