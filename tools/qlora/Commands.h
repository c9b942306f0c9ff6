// SPDX-License-Identifier: MIT

// Commands of `qlora` that print a text. Each function returns the text.

#ifndef QLORA_TOOLS_QLORA_COMMANDS_H
#define QLORA_TOOLS_QLORA_COMMANDS_H

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// `qlora help [TOPIC]`: returns a topic's text, or for an empty topic the list
/// of all commands and topics.
StatusOr<std::string> helpText(std::string_view topic);

std::vector<std::string> commandNames();

/// Returns the names of the topics of `qlora help`.
std::vector<std::string> topicNames();

/// `qlora completion SHELL`: returns the script for `shell`, bash or zsh. It
/// completes commands, options and the values of choice options.
StatusOr<std::string> completionScript(std::string_view shell);

/// `qlora compare`: compares runs by the files in their output folders. With
/// --sweep, trains the runs first. `words` follow the command's name.
StatusOr<std::string> compare(std::span<const std::string> words);

/// `qlora memory`: lists the memory that each configuration of a model needs,
/// smallest first. `words` follow the command's name.
StatusOr<std::string> memoryTable(std::span<const std::string> words);

/// `qlora info`: lists the hardware and libraries that training uses, and what
/// is missing. Searches for libraries as the tools do when they start.
std::string machineInformation();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMMANDS_H
