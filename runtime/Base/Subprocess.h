// SPDX-License-Identifier: MIT

// Runs another program to its end and captures its output.

#ifndef QLORA_RUNTIME_BASE_SUBPROCESS_H
#define QLORA_RUNTIME_BASE_SUBPROCESS_H

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

struct ProcessOutput {
  int exitCode = 0; ///< 128 + N if signal N ended the program
  std::string out;
  std::string errors;
};

/// Receives each complete line of standard error, without the newline. Returns
/// true if the line must not be added to ProcessOutput::errors.
using LineListener = std::function<bool(std::string_view line)>;

/// Called about once a second while the program runs. If it returns an error,
/// the program gets SIGTERM, and runProgram() returns the error.
using WatchListener = std::function<Status()>;

/// Destination of the program's standard error.
enum class ErrorOutput {
  kTaken,  ///< passed to the listener or added to ProcessOutput::errors
  kShared, ///< this process's standard error, which may be a terminal
};

/// Runs the program at path `arguments[0]`. Standard input is empty. The
/// program gets SIGTERM when this process ends, so that it can remove its
/// files. Returns kUnavailable if it cannot be executed.
StatusOr<ProcessOutput> runProgram(const std::vector<std::string> &arguments,
                                   const LineListener &onErrorLine = {},
                                   const WatchListener &everySecond = {},
                                   ErrorOutput to = ErrorOutput::kTaken);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_SUBPROCESS_H
