// SPDX-License-Identifier: MIT

// Names, creates and describes cached rows.

#include "runtime/Data/TokenCache.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

#include "runtime/Base/CpuCount.h"
#include "runtime/Base/UserFiles.h"

namespace qlora {

namespace fs = std::filesystem;

constexpr std::string_view kProgressPrefix = "qlora-data: progress: ";

StatusOr<std::string> tokenCacheFolder() {
  const std::string cache = userCacheFolder();
  if (!cache.empty())
    return cache + "/tokens";
  return Status::unavailable(
      "there is no cache folder for tokenised JSONL: XDG_CACHE_HOME and HOME "
      "are not set. Fix: set XDG_CACHE_HOME to a folder");
}

static std::string lastLine(std::string text) {
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

std::string converterError(std::string errors) {
  std::string message = lastLine(std::move(errors));
  constexpr std::string_view kPrefix = "qlora-data: error: ";
  if (message.starts_with(kPrefix))
    message.erase(0, kPrefix.size());
  return message;
}

std::vector<std::string> converterFlags(const TokenRequest &request) {
  auto truth = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> command = {"--tokenizer",
                                      request.modelFolder,
                                      "--input",
                                      request.dataFile,
                                      "--vocab-size",
                                      std::to_string(request.vocabSize),
                                      "--completion-only-loss",
                                      truth(request.completionOnlyLoss),
                                      "--assistant-only-loss",
                                      truth(request.assistantOnlyLoss)};
  if (request.maxLength > 0)
    command.insert(command.end(),
                   {"--max-length", std::to_string(request.maxLength)});
  if (request.maxSamples > 0)
    command.insert(command.end(),
                   {"--max-samples", std::to_string(request.maxSamples)});
  if (request.minLength > 0)
    command.insert(command.end(),
                   {"--min-length", std::to_string(request.minLength)});
  if (request.dropDuplicates)
    command.push_back("--drop-duplicates");
  if (request.dropSystemMessages)
    command.push_back("--drop-system-messages");
  if (request.allowTemplateDrops)
    command.insert(command.end(), {"--allow-template-drops", "true"});
  if (request.pairs)
    command.push_back("--pairs");
  if (request.unpaired)
    command.push_back("--unpaired");
  if (!request.chatTemplate.empty()) {
    command.push_back("--chat-template");
    command.push_back(request.chatTemplate);
  }
  for (const std::string &format : request.formats) {
    command.push_back("--row-format");
    command.push_back(format);
  }
  if (request.excess != "truncate") {
    command.push_back("--excess-length-strategy");
    command.push_back(request.excess);
  }
  if (!request.packing.empty())
    command.insert(command.end(), {"--packing-strategy", request.packing});
  if (!request.endToken.empty())
    command.insert(command.end(), {"--eos-token", request.endToken});
  for (const auto &[name, column] : request.columns) {
    command.push_back("--column");
    command.push_back(name + "=" + column);
  }
  return command;
}

static std::vector<std::string> commandOf(const TokenRequest &request) {
  std::vector<std::string> command = converterFlags(request);
  command.insert(command.begin(), request.converter);
  return command;
}

/// Runs qlora-data and returns its output, or its error. `written`: the output
/// path, with which the error for a full disk begins.
static StatusOr<std::string>
runConverter(const std::vector<std::string> &command,
             const std::string &written, const LineListener &onErrorLine = {},
             const WatchListener &everySecond = {}) {
  QLORA_ASSIGN_OR_RETURN(ProcessOutput output,
                         runProgram(command, onErrorLine, everySecond));
  if (output.exitCode == 0)
    return output.out;
  const std::string message = converterError(output.errors);
  if (message != lastLine(output.errors)) {
    // For a full disk, qlora-data's message ends with "write to another
    // folder", so the error tells how to choose one.
    if (message.starts_with(written + ": "))
      return Status::error(StatusCode::kResourceExhausted,
                           "{}; set XDG_CACHE_HOME to a folder with free space",
                           message);
    return Status::invalid("{}", message);
  }
  return Status::invalid("'{}' ended with code {}: {}", command[0],
                         output.exitCode, message);
}

StatusOr<std::string> cachedRowsPath(const TokenRequest &request) {
  std::vector<std::string> command = commandOf(request);
  command.push_back("--print-key");
  QLORA_ASSIGN_OR_RETURN(const std::string key,
                         runConverter(command, request.cacheFolder));
  return fmt::format("{}/rows-{}.safetensors", request.cacheFolder,
                     lastLine(key));
}

/// Returns a listener for the lines "qlora-data: progress: DONE TOTAL".
static LineListener progressLines(const ProgressListener &progress) {
  return [&progress](std::string_view line) {
    if (!line.starts_with(kProgressPrefix))
      return false;
    const char *end = line.data() + line.size();
    uint64_t done = 0, total = 0;
    auto parsed =
        std::from_chars(line.data() + kProgressPrefix.size(), end, done);
    if (parsed.ptr != end)
      std::from_chars(parsed.ptr + 1, end, total);
    if (progress)
      progress(done, total);
    return true;
  };
}

/// Size of a file, or of all files in a folder; 0 if it cannot be read.
static uint64_t dataBytes(const std::string &path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    const uint64_t bytes = fs::file_size(path, error);
    return error ? 0 : bytes;
  }
  uint64_t bytes = 0;
  for (const auto &entry : fs::directory_iterator(path, error))
    if (entry.is_regular_file(error))
      bytes += entry.file_size(error);
  return bytes;
}

/// Creates the cache folder, readable for this user only, since its rows can be
/// decoded to text. Deletes old files to make space for the new rows.
static Status prepareFolder(const TokenRequest &request) {
  const std::string &folder = request.cacheFolder;
  std::error_code error;
  const bool isNew = fs::create_directories(folder, error);
  if (isNew && !error)
    fs::permissions(folder, fs::perms::owner_all, error);
  if (error)
    return Status::unavailable(
        "cannot create '{}': {}. Fix: set XDG_CACHE_HOME to a writable folder",
        folder, error.message());
  // Rows have about twice the bytes of their text. dataBytes() is 0 if the data
  // file has just vanished; qlora-data reports that.
  keepRecentFiles(folder, ".safetensors", request.cacheLimit,
                  2 * dataBytes(request.dataFile));
  return Status::ok();
}

Status makeCachedRows(const TokenRequest &request, const std::string &path,
                      const ProgressListener &progress,
                      const WatchListener &everySecond) {
  if (SafetensorsFile::open(path).isOk()) {
    std::error_code error;
    // Mark the file as recently used. Errors are ignored: a folder that cannot
    // be written needs no marks, because no file is deleted there.
    fs::last_write_time(path, fs::file_time_type::clock::now(), error);
    return Status::ok();
  }
  QLORA_RETURN_IF_ERROR(prepareFolder(request));
  std::vector<std::string> command = commandOf(request);
  for (const std::string &word :
       {std::string("--output"), path, std::string("--workers"),
        std::to_string(request.workers ? request.workers : usableCpus()),
        std::string("--progress")})
    command.push_back(word);
  return runConverter(command, path, progressLines(progress), everySecond)
      .status();
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
  return Status::unavailable(
      "JSONL and the hub need qlora-data, which is neither in '{}' nor in "
      "PATH. Fix: add the folder tools/qlora-data of qlora to PATH",
      self.parent_path().string());
}

RowsMetadata::RowsMetadata(const SafetensorsFile &file) {
  auto text = [&](const char *key) {
    auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  auto number = [&](const char *key) {
    int64_t value = 0;
    const std::string digits = text(key);
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  isKnown = text("format") == "qlora-rows";
  tokens = number("tokens");
  labelledTokens = number("labelled_tokens");
  maxLength = number("max_length");
  truncatedRows = number("truncated_rows");
  truncatedTokens = number("truncated_tokens");
  droppedRows = number("dropped_rows");
  cutOffRows = number("cut_off_rows");
  tooLongRows = number("too_long_rows");
  chosenTemplate = text("chosen_template");
  splitRows = number("split_rows");
  unreasonedRows = number("unreasoned_rows");
  droppingRows = number("dropping_rows");
}

StatusOr<ConversionNotes> conversionNotes(const std::string &rowsPath) {
  QLORA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(rowsPath));
  const RowsMetadata numbers(file);
  ConversionNotes notes;
  if (!numbers.chosenTemplate.empty())
    notes.note = fmt::format("uses the chat template {} instead of the model's "
                             "own, which changes earlier turns",
                             numbers.chosenTemplate);
  else if (numbers.splitRows)
    notes.note = fmt::format(
        "{} conversations are split into several rows, because the chat "
        "template writes earlier turns differently once later turns follow",
        numbers.splitRows);
  auto warn = [&](const std::string &text) {
    notes.warning += (notes.warning.empty() ? "" : "; ") + text;
  };
  if (numbers.unreasonedRows)
    warn(fmt::format("the chat template drops the reasoning of {} "
                     "conversations, so it is not trained on",
                     numbers.unreasonedRows));
  if (numbers.droppingRows)
    warn(fmt::format("the chat template drops tools, tool calls or messages of "
                     "{} conversations, so they are not trained on",
                     numbers.droppingRows));
  if (numbers.truncatedRows)
    warn(fmt::format("{} rows cut to {} tokens, losing {} tokens",
                     numbers.truncatedRows, numbers.maxLength,
                     numbers.truncatedTokens));
  if (numbers.cutOffRows)
    warn(fmt::format("{} rows left out because --max-length {} cuts off their "
                     "answer",
                     numbers.cutOffRows, numbers.maxLength));
  if (numbers.tooLongRows)
    warn(fmt::format("{} rows left out because they have more than {} tokens",
                     numbers.tooLongRows, numbers.maxLength));
  if (const int64_t masked =
          numbers.droppedRows - numbers.cutOffRows - numbers.tooLongRows)
    warn(fmt::format(
        "{} rows left out because none of their tokens is in the loss",
        masked));
  return notes;
}

} // namespace qlora
