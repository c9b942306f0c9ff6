// SPDX-License-Identifier: MIT

// Catches exceptions. Functions return a Status, but the standard library
// throws if memory or threads run out. No function can recover from that, so
// exceptions are caught only at the start of a rank and of each of its threads.

#ifndef QLORA_RUNTIME_BASE_EXCEPTIONS_H
#define QLORA_RUNTIME_BASE_EXCEPTIONS_H

#include <exception>
#include <new>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

/// Returns the result of `work`, a Status or a StatusOr. An exception becomes
/// an error that starts with `where`.
template <typename Work>
auto endExceptions(std::string_view where, Work &&work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return Status::error(
        StatusCode::kResourceExhausted,
        "{}: out of memory; free some memory, or start fewer ranks", where);
  } catch (const std::exception &exception) {
    return Status::error(StatusCode::kInternal, "{}: {}", where,
                         exception.what());
  }
}

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_EXCEPTIONS_H
