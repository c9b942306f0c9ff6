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

/// `qlora help [TOPIC]`: a topic's text, or for an empty topic all commands and
/// topics.
StatusOr<std::string> helpText(std::string_view topic);

/// Returns the names of qlora's commands.
std::vector<std::string> commandNames();

/// Returns the topics of `qlora help`.
std::vector<std::string> topicNames();

/// `qlora completion SHELL`: the script for `shell`, bash or zsh, that
/// completes commands, options and the values of choice options.
StatusOr<std::string> completionScript(std::string_view shell);

/// `qlora compare`: compares runs by their folders, or trains them first.
/// `words` follow the command's name.
StatusOr<std::string> compare(std::span<const std::string> words);

/// `qlora memory`: the memory of a model's configurations, smallest first.
/// `words` follow the command's name.
StatusOr<std::string> memoryTable(std::span<const std::string> words);

/// `qlora info`: the parts of this machine that training uses, and what is
/// missing. Searches for libraries as the tools do when they start.
std::string machineInformation();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_COMMANDS_H
