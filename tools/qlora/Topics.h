// SPDX-License-Identifier: MIT

// `qlora help [TOPIC]`: help texts by topic.

#ifndef QLORA_TOOLS_QLORA_TOPICS_H
#define QLORA_TOOLS_QLORA_TOPICS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// Returns a topic's text, or for an empty topic all commands and topics.
StatusOr<std::string> helpText(std::string_view topic);

/// Returns the commands of qlora.
std::vector<std::string> commandNames();

/// Returns the topics, for completion.
std::vector<std::string> topicNames();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOPICS_H
