// SPDX-License-Identifier: MIT

// Runs qlora-data, and converts its JSON.

#include "tools/qlora/GgufVocabulary.h"

#include <nlohmann/json.hpp>

#include "runtime/Base/Subprocess.h"
#include "runtime/Data/TokenCache.h"
#include "runtime/Export/MergedFolder.h"
#include "tools/qlora/ScratchFolder.h"

namespace qlora {

using json = nlohmann::ordered_json;

/// Converts a value of a key with the type's name in qlora-data's output.
static StatusOr<GgufValue> valueOf(const std::string &type, const json &value) {
  if (type == "string")
    return GgufValue(value.get<std::string>());
  if (type == "uint32")
    return GgufValue(value.get<uint32_t>());
  if (type == "bool")
    return GgufValue(value.get<bool>());
  if (type == "[string]")
    return GgufValue(value.get<std::vector<std::string>>());
  if (type == "[int32]")
    return GgufValue(value.get<std::vector<int32_t>>());
  if (type == "[float32]")
    return GgufValue(value.get<std::vector<float>>());
  return Status::error(StatusCode::kInternal,
                       "qlora-data printed a key of type '{}'", type);
}

static StatusOr<GgufVocabulary> parse(const std::string &text) {
  const json printed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!printed.is_object())
    return Status::error(StatusCode::kInternal, "qlora-data printed '{}'",
                         text.substr(0, 200));
  GgufVocabulary vocabulary;
  vocabulary.isThere = true;
  for (const json &key : printed["keys"]) {
    QLORA_ASSIGN_OR_RETURN(GgufValue value,
                           valueOf(key[1].get<std::string>(), key[2]));
    vocabulary.keys.emplace_back(key[0].get<std::string>(), std::move(value));
  }
  vocabulary.warnings = printed["warnings"];
  vocabulary.modelfile = printed.value("modelfile", "");
  return vocabulary;
}

/// Returns the keys of a model whose users send token ids.
static GgufVocabulary withoutTokenizer() {
  GgufVocabulary vocabulary;
  vocabulary.keys.emplace_back("tokenizer.ggml.model", std::string("no_vocab"));
  vocabulary.warnings.push_back(
      "Neither the adapter nor the base has a tokenizer, so the file has none: "
      "programs must send it token ids");
  return vocabulary;
}

StatusOr<GgufVocabulary> readVocabulary(const ExportJob &job, int64_t size,
                                        const std::string &modelfileFor) {
  QLORA_ASSIGN_OR_RETURN(const ScratchFolder scratch,
                         ScratchFolder::create("tokenizer"));
  // The tokenizer and the settings of generation may be in two folders.
  const std::string folder = scratch.file("");
  QLORA_ASSIGN_OR_RETURN(const bool isThere,
                         copyTextFiles(job.trainedBase, job.run, folder));
  if (!isThere)
    return withoutTokenizer();
  QLORA_ASSIGN_OR_RETURN(const std::string converter, findConverter());
  std::vector<std::string> words = {converter,      "gguf",
                                    "--model",      folder,
                                    "--vocab-size", std::to_string(size)};
  if (!modelfileFor.empty())
    words.insert(words.end(), {"--modelfile", modelfileFor});
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output, runProgram(words));
  if (output.exitCode != 0)
    return Status::invalid("{}", converterError(output.errors));
  return parse(output.out);
}

} // namespace qlora
