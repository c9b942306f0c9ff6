// SPDX-License-Identifier: MIT

// Tokenising where needed, and opening.

#include "runtime/Session/DataFiles.h"

#include <filesystem>

#include "runtime/Session/TokenCache.h"

namespace qlora {

static StatusOr<std::string> tokenise(const DataRequest &request,
                                      const std::string &file,
                                      int64_t vocabSize, RankGroup &group,
                                      Metrics *metrics) {
  const Options &options = request.options;
  TokenRequest tokens;
  tokens.dataFile = file;
  tokens.modelFolder = options.text("model_name_or_path");
  tokens.cacheFolder = request.outputFolder + "/.cache";
  tokens.maxLength = request.variants.lengths.back();
  tokens.vocabSize = vocabSize;
  tokens.completionOnlyLoss = options.boolean("completion_only_loss");
  tokens.assistantOnlyLoss = options.boolean("assistant_only_loss");
  tokens.chatTemplate = options.text("chat_template");
  QLORA_ASSIGN_OR_RETURN(std::string rows, cachedRowsPath(tokens));
  if (group.rank() == 0) {
    QLORA_ASSIGN_OR_RETURN(std::string converter, findConverter());
    QLORA_RETURN_IF_ERROR(makeCachedRows(tokens, rows, converter));
  }
  QLORA_RETURN_IF_ERROR(group.collectives().barrier());
  QLORA_ASSIGN_OR_RETURN(std::string note, conversionNote(rows));
  if (metrics && !note.empty())
    metrics->warn(fmt::format("'{}': {}", file, note));
  return rows;
}

StatusOr<std::unique_ptr<Dataset>> openDataFile(const DataRequest &request,
                                                const std::string &option,
                                                RankGroup &group,
                                                Metrics *metrics) {
  std::string file = request.options.text(option);
  if (file.empty())
    return Status::invalid("no {}: name the data with {} FILE", option,
                           flagSpelling(option));
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error))
    return Status::error(StatusCode::kNotFound, "{}: there is no file '{}'",
                         option, file);
  if (!request.vocabSize.is_number_integer())
    return Status::error(StatusCode::kDataLoss,
                         "the module does not record vocab_size; compile it "
                         "again");
  DatasetShape shape{request.variants.batch, request.variants.lengths,
                     request.vocabSize.get<int64_t>(),
                     request.variants.buckets, request.variants.costs};
  std::string tokens = file;
  if (!isTokenData(file)) {
    QLORA_ASSIGN_OR_RETURN(
        tokens, tokenise(request, file, shape.vocabSize, group, metrics));
  }
  DatasetOptions options;
  options.seed = static_cast<uint64_t>(request.options.integer("seed"));
  options.packing = request.options.boolean("packing");
  if (const std::string free = request.options.text("padding_free");
      free != "auto")
    options.paddingFree = free == "true";
  auto data = openDataset(tokens, shape, options);
  // The user knows the JSONL file, not the cached one.
  if (!data.isOk() && tokens != file)
    return data.status().withContext(file);
  const bool isPadded =
      tokens != file && shape.buckets.empty() && !options.paddingFree;
  if (isPadded && metrics)
    metrics->warn(fmt::format(
        "'{}': its rows are padded, because the program has no token buckets; "
        "compile it with --padding-free true, and steps take less time",
        file));
  return data;
}

} // namespace qlora
