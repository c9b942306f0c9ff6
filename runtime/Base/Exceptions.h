// SPDX-License-Identifier: MIT

// Where exceptions end. Functions return a Status, but the standard library
// throws where memory or threads run out. Nothing in between can do anything
// about it, so it is caught once: where a rank starts, and where each of its
// threads does.

#ifndef QLORA_RUNTIME_BASE_EXCEPTIONS_H
#define QLORA_RUNTIME_BASE_EXCEPTIONS_H

#include <exception>
#include <new>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// What `work` returns, a Status or a StatusOr; an exception becomes an error
/// that starts with `where`.
template <typename Work>
auto endExceptions(std::string_view where, Work &&work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return Status::error(StatusCode::kResourceExhausted,
                         "{}: memory ran out; give it more, or start fewer "
                         "ranks",
                         where);
  } catch (const std::exception &exception) {
    return Status::error(StatusCode::kInternal, "{}: {}", where,
                         exception.what());
  }
}

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_EXCEPTIONS_H
