// SPDX-License-Identifier: MIT

// The commands of `qlora`. Dispatch, the list in `qlora help`, `--help` and the
// completion scripts are made from one table.

#ifndef QLORA_TOOLS_QLORA_COMMANDS_H
#define QLORA_TOOLS_QLORA_COMMANDS_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Options/CommandLine.h"

namespace qlora {

using Words = std::span<const std::string>;

struct Command {
  const char *name;
  const char *arguments;      ///< as in the list of `qlora help`
  const char *summary;        ///< one line
  const Tool &(*tool)();      ///< its usage and options
  Status (*run)(Words words); ///< `words` follow the command's name
};

/// Returns all commands, in the order of `qlora help`.
std::span<const Command> commands();
std::vector<std::string> commandNames();

/// `qlora help [TOPIC]`: returns the text about a topic or a command, or for an
/// empty topic the list of all commands and topics.
StatusOr<std::string> helpText(std::string_view topic);

/// Returns the names of the topics of `qlora help`.
std::vector<std::string> topicNames();

/// `qlora completion SHELL`: returns the script for `shell`: bash, fish or zsh.
/// It completes commands, each command's options, and values of options.
StatusOr<std::string> completionScript(std::string_view shell);

/// `qlora compare`: compares runs by the files in their output folders. With
/// --sweep, trains the runs first.
const Tool &compareTool();
StatusOr<std::string> compare(Words words);

/// `qlora report`: writes the page of a run, and returns a summary.
const Tool &reportTool();
StatusOr<std::string> report(Words words);

/// `qlora memory`: lists the memory that each configuration of a model needs.
const Tool &memoryTool();
StatusOr<std::string> memoryTable(Words words);

/// `qlora info`: lists the hardware and libraries that training uses, and what
/// is missing. Searches for libraries as the tools do when they start.
std::string machineInformation();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMMANDS_H
