// SPDX-License-Identifier: MIT

// The rarely executed functions of Status.

#include "runtime/Base/Status.h"

namespace qlora {

const std::string &Status::message() const {
  static const std::string empty;
  return state ? state->message : empty;
}

Status Status::withContext(std::string_view context) const {
  if (isOk())
    return *this;
  return Status(state->code, fmt::format("{}: {}", context, state->message));
}

} // namespace qlora
