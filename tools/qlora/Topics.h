// SPDX-License-Identifier: MIT

// `qlora help [TOPIC]`: help texts by topic.

#ifndef QLORA_TOOLS_QLORA_TOPICS_H
#define QLORA_TOOLS_QLORA_TOPICS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// Returns a topic's text. For an empty topic: the commands of `qlora`, and the
/// list of topics.
StatusOr<std::string> helpText(std::string_view topic);

/// Returns the topics, for completion.
std::vector<std::string> topicNames();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOPICS_H
