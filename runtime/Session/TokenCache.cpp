// SPDX-License-Identifier: MIT

// Naming, making and describing cached rows.

#include "runtime/Session/TokenCache.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "runtime/Core/Safetensors.h"
#include "runtime/Session/ContentHash.h"
#include "runtime/Session/Subprocess.h"

namespace qlora {

namespace fs = std::filesystem;

/// Raised when qlora-data gives other tokens for the same input.
constexpr const char *kRowsVersion = "qlora rows 1";

constexpr const char *kTokenizerFiles[] = {
    "config.json",           "tokenizer.json",      "tokenizer.model",
    "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
    "generation_config.json"};

bool isTokenData(const std::string &path) {
  return fs::path(path).extension() == ".safetensors";
}

StatusOr<std::string> cachedRowsPath(const TokenRequest &request) {
  ContentHash hash;
  hash.add(kRowsVersion);
  hash.add(fmt::format("{} {} {} {}", request.maxLength, request.vocabSize,
                       request.completionOnlyLoss, request.assistantOnlyLoss));
  // Messages name the file, so a copy elsewhere is another entry.
  hash.add(request.dataFile);
  QLORA_RETURN_IF_ERROR(hash.addFile(request.dataFile));
  if (!request.chatTemplate.empty())
    QLORA_RETURN_IF_ERROR(hash.addFile(request.chatTemplate));
  for (const char *name : kTokenizerFiles) {
    std::string path = request.modelFolder + "/" + name;
    hash.add(name);
    std::error_code ignored;
    if (fs::exists(path, ignored))
      QLORA_RETURN_IF_ERROR(hash.addFile(path));
  }
  return fmt::format("{}/rows-{}.safetensors", request.cacheFolder,
                     hash.finish());
}

static std::string lastLine(std::string text) {
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const std::string &converter) {
  std::error_code error;
  if (fs::exists(path, error))
    return Status::ok();
  fs::create_directories(request.cacheFolder, error);
  if (error)
    return Status::error(StatusCode::kUnavailable, "cannot create '{}': {}",
                         request.cacheFolder, error.message());
  auto truth = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> arguments = {converter,
                                        "--tokenizer",
                                        request.modelFolder,
                                        "--input",
                                        request.dataFile,
                                        "--output",
                                        path,
                                        "--max-length",
                                        std::to_string(request.maxLength),
                                        "--vocab-size",
                                        std::to_string(request.vocabSize),
                                        "--completion-only-loss",
                                        truth(request.completionOnlyLoss),
                                        "--assistant-only-loss",
                                        truth(request.assistantOnlyLoss)};
  if (!request.chatTemplate.empty()) {
    arguments.push_back("--chat-template");
    arguments.push_back(request.chatTemplate);
  }
  QLORA_ASSIGN_OR_RETURN(ProcessOutput output, runProgram(arguments));
  if (output.exitCode == 0)
    return Status::ok();
  std::string message = lastLine(output.errors);
  constexpr std::string_view kPrefix = "qlora-data: error: ";
  if (message.starts_with(kPrefix))
    return Status::invalid("{}", message.substr(kPrefix.size()));
  return Status::invalid("'{}' ended with code {}: {}", converter,
                         output.exitCode, message);
}

StatusOr<std::string> findConverter() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  std::vector<fs::path> folders = {self.parent_path()};
  if (const char *path = std::getenv("PATH")) {
    std::istringstream list(path);
    for (std::string folder; std::getline(list, folder, ':');)
      folders.emplace_back(folder);
  }
  for (const fs::path &folder : folders) {
    std::string candidate = (folder / "qlora-data").string();
    if (access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  return Status::error(StatusCode::kUnavailable,
                       "JSONL needs qlora-data, which is neither beside "
                       "qlora-run ('{}') nor in PATH",
                       self.parent_path().string());
}

StatusOr<std::string> conversionNote(const std::string &rowsPath) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(rowsPath));
  auto value = [&](const char *key) {
    auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string("0") : found->second;
  };
  std::string note;
  if (value("truncated_rows") != "0")
    note += fmt::format("{} rows cut to {} tokens, which lost {} tokens",
                        value("truncated_rows"), value("max_length"),
                        value("truncated_tokens"));
  if (value("dropped_rows") != "0")
    note += fmt::format("{}{} rows left out because no token of theirs is to "
                        "be learned",
                        note.empty() ? "" : "; ", value("dropped_rows"));
  return note;
}

} // namespace qlora
