// SPDX-License-Identifier: MIT

// Typed access to the keys of a JSON object. A key with value null counts as
// missing, as it does in config.json; a value of the wrong type is an error
// that names the key and the value.

#ifndef QLORA_FRONTEND_JSONFIELDS_H
#define QLORA_FRONTEND_JSONFIELDS_H

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"

namespace qlora {

/// A view of a JSON object. The object must outlive the view. If a key is
/// missing, integer() etc. return `missing`, or fail if it is not set.
class JsonFields {
public:
  explicit JsonFields(const nlohmann::json &object) : object(object) {}

  /// Returns the value of `key`, or nullptr if it is missing or null.
  const nlohmann::json *find(const char *key) const;
  /// Whether the key exists, even as null.
  bool mentions(const char *key) const { return object.contains(key); }

  /// An integer from `least` to 2^31 - 1.
  StatusOr<int64_t> integer(const char *key, int64_t least,
                            std::optional<int64_t> missing = {}) const;
  /// A finite number above 0.
  StatusOr<double> positive(const char *key,
                            std::optional<double> missing = {}) const;
  /// A finite number, 0 or above.
  StatusOr<double> notNegative(const char *key, double missing) const;
  /// A number from 0 to below 1.
  StatusOr<double> probability(const char *key, double missing) const;
  StatusOr<bool> boolean(const char *key, bool missing) const;
  StatusOr<std::string> string(const char *key, std::string missing) const;
  /// A list of strings; empty if the key is missing.
  StatusOr<std::vector<std::string>> strings(const char *key) const;

private:
  StatusOr<double> number(const char *key, std::optional<double> missing,
                          bool (*isRight)(double), const char *expected) const;

  const nlohmann::json &object;
};

/// A value as one line of at most about 60 characters, for messages.
std::string shortDump(const nlohmann::json &value);

} // namespace qlora

#endif // QLORA_FRONTEND_JSONFIELDS_H
