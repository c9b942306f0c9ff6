// SPDX-License-Identifier: MIT

// Finds, quotes and runs tools.

#include "tools/qlora/Tools.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/Base/FindProgram.h"
#include "runtime/Base/Subprocess.h"

namespace qlora {

namespace fs = std::filesystem;

StatusOr<std::string> findTool(std::string_view tool) {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  const std::string name(tool);
  for (const std::string &place : {(self.parent_path() / name).string(), name})
    if (auto found = findProgram(place))
      return *found;
  if (tool == "qlora-run" || tool == "qlora-data")
    return Status::notFound("{} is neither in '{}' nor in PATH; install qlora "
                            "again",
                            tool, self.parent_path().string());
  return Status::notFound(
      "{} is neither in '{}' nor in PATH: the compiler is not installed here; "
      "build it (scripts/install.sh, scripts/build.sh), or train a program "
      "that was compiled elsewhere: qlora train train.so DATA",
      tool, self.parent_path().string());
}

static std::string quoted(const std::string &word) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
      "_-./=+:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos)
    return word;
  std::string text = "'";
  for (const char c : word)
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string shellText(const ToolCommand &command) {
  const auto path = findTool(command.tool);
  const bool isInPath =
      !path.isOk() || findProgram(command.tool) == path.value();
  std::string text = quoted(isInPath ? command.tool : path.value());
  for (const std::string &argument : command.arguments)
    text += " " + quoted(argument);
  return text;
}

void note(const std::string &text) {
  if (!text.empty())
    fmt::print(stderr, "qlora: {}\n", text);
}

/// Returns pointers to the words and a final null: the argv of a new process.
static std::vector<char *> pointersTo(std::vector<std::string> &words) {
  std::vector<char *> pointers;
  for (std::string &word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Returns the exit code, or 128 + the signal that ended the process.
static StatusOr<int> runOnTerminal(std::vector<std::string> words) {
  std::fflush(nullptr);
  pid_t process = 0;
  if (const int error = posix_spawn(&process, words[0].c_str(), nullptr,
                                    nullptr, pointersTo(words).data(), environ))
    return Status::unavailable("cannot start '{}': {}", words[0],
                               std::strerror(error));
  int state = 0;
  while (waitpid(process, &state, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static Status ended(const ToolCommand &command, int code) {
  if (code == 0)
    return Status::ok();
  return Status::invalid("{} ended with code {}: see above", command.tool,
                         code);
}

Status runTool(const ToolCommand &command, ToolVerbosity noise) {
  std::vector<std::string> words = command.arguments;
  QLORA_ASSIGN_OR_RETURN(std::string path, findTool(command.tool));
  words.insert(words.begin(), std::move(path));
  if (noise == ToolVerbosity::kTerminal) {
    QLORA_ASSIGN_OR_RETURN(const int code, runOnTerminal(std::move(words)));
    return ended(command, code);
  }
  QLORA_ASSIGN_OR_RETURN(const ProcessOutput output,
                         runProgram(words, {}, {},
                                    noise == ToolVerbosity::kAll
                                        ? ErrorOutput::kShared
                                        : ErrorOutput::kTaken));
  if (noise == ToolVerbosity::kAll || output.exitCode != 0)
    fmt::print(stderr, "{}{}", output.errors, output.out);
  return ended(command, output.exitCode);
}

Status becomeTool(const ToolCommand &command) {
  QLORA_ASSIGN_OR_RETURN(std::string path, findTool(command.tool));
  std::vector<std::string> words = command.arguments;
  words.insert(words.begin(), path);
  std::fflush(nullptr);
  execv(path.c_str(), pointersTo(words).data());
  return Status::unavailable("cannot start '{}': {}", path,
                             std::strerror(errno));
}

} // namespace qlora
