// SPDX-License-Identifier: MIT

// `qlora help [TOPIC]`.

#ifndef QLORA_TOOLS_QLORA_TOPICS_H
#define QLORA_TOOLS_QLORA_TOPICS_H

#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// Of an empty topic: what `qlora` can do, and the topics there are.
StatusOr<std::string> helpText(std::string_view topic);

/// The topics, for completion.
std::vector<std::string> topicNames();

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_TOPICS_H
