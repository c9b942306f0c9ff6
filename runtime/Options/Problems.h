// SPDX-License-Identifier: MIT

// The errors of a configuration file, reported together.

#ifndef QLORA_RUNTIME_OPTIONS_PROBLEMS_H
#define QLORA_RUNTIME_OPTIONS_PROBLEMS_H

#include <map>
#include <string>

#include "runtime/Base/Status.h"

namespace qlora {

class Problems {
public:
  /// Adds an error of a line, or of the whole file: line 0. OK adds nothing.
  void add(Status status, int line = 0) {
    if (!status.isOk())
      found.emplace(line, std::move(status));
  }
  bool isEmpty() const { return found.empty(); }

  /// Returns OK, the only error, or one error with all messages, in the order
  /// of the lines.
  Status status(const std::string &path) const {
    if (found.size() < 2)
      return isEmpty() ? Status::ok() : found.begin()->second;
    std::string all;
    for (const auto &[line, problem] : found)
      all += "\n" + problem.message();
    return Status::error(found.begin()->second.code(),
                         "'{}' has {} problems:{}", path, found.size(), all);
  }

private:
  std::multimap<int, Status> found; ///< by line
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_PROBLEMS_H
