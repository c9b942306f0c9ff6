// SPDX-License-Identifier: MIT

// Runs another program to its end and takes what it wrote.

#ifndef QLORA_RUNTIME_BASE_SUBPROCESS_H
#define QLORA_RUNTIME_BASE_SUBPROCESS_H

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

struct ProcessOutput {
  int exitCode = 0; ///< 128 + the signal when one ended it
  std::string out;
  std::string errors;
};

/// Hears each whole line of standard error when it comes, without its end.
/// True: it is taken, and not kept in ProcessOutput::errors.
using LineListener = std::function<bool(std::string_view line)>;

/// Called about once a second while the program runs. An error ends it with
/// SIGTERM, and is what the caller gets.
using WatchListener = std::function<Status()>;

/// Where standard error of the program goes.
enum class ErrorOutput {
  kTaken,  ///< to the listener, or into ProcessOutput::errors
  kShared, ///< to this process's own, which may be a terminal
};

/// `arguments[0]` is a path. Standard input is empty; the program gets SIGTERM
/// when this process ends, to take its own files away. kUnavailable when it
/// cannot be executed.
StatusOr<ProcessOutput> runProgram(const std::vector<std::string> &arguments,
                                   const LineListener &onErrorLine = {},
                                   const WatchListener &everySecond = {},
                                   ErrorOutput to = ErrorOutput::kTaken);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_SUBPROCESS_H
