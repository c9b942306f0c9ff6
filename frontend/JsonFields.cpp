// SPDX-License-Identifier: MIT

// Reads and checks values of JSON objects.

#include "frontend/JsonFields.h"

#include "runtime/Base/JsonText.h"

#include <cmath>
#include <limits>

using nlohmann::json;

namespace qlora {

std::string shortDump(const json &value) {
  constexpr size_t kMaxLength = 60;
  std::string text = dumpJson(value, -1, /*isAscii=*/true);
  if (text.size() > kMaxLength)
    text.replace(kMaxLength, std::string::npos, "...");
  return text;
}

static Status wrongType(const char *key, const json &value,
                        std::string_view expected) {
  return Status::invalid("'{}' is {}; expected {}", key, shortDump(value),
                         expected);
}

static Status missingKey(const char *key) {
  return Status::invalid("'{}' is missing", key);
}

const json *JsonFields::find(const char *key) const {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

StatusOr<int64_t> JsonFields::integer(const char *key, int64_t least,
                                      std::optional<int64_t> missing) const {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const json *value = find(key);
  if (!value)
    return missing ? StatusOr<int64_t>(*missing) : missingKey(key);
  // Compare as unsigned, because conversion to signed would wrap large numbers.
  const bool fits = value->is_number_unsigned()
                        ? value->get<uint64_t>() <= uint64_t{kMost}
                        : value->is_number_integer();
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > kMost)
    return wrongType(key, *value,
                     fmt::format("an integer from {} to {}", least, kMost));
  return value->get<int64_t>();
}

StatusOr<double> JsonFields::number(const char *key,
                                    std::optional<double> missing,
                                    bool (*isRight)(double),
                                    const char *expected) const {
  const json *value = find(key);
  if (!value)
    return missing ? StatusOr<double>(*missing) : missingKey(key);
  if (!value->is_number() || !std::isfinite(value->get<double>()) ||
      !isRight(value->get<double>()))
    return wrongType(key, *value, expected);
  return value->get<double>();
}

StatusOr<double> JsonFields::positive(const char *key,
                                      std::optional<double> missing) const {
  return number(
      key, missing, [](double value) { return value > 0; }, "a number above 0");
}

StatusOr<double> JsonFields::notNegative(const char *key,
                                         double missing) const {
  return number(
      key, missing, [](double value) { return value >= 0; },
      "a number of at least 0");
}

StatusOr<double> JsonFields::probability(const char *key,
                                         double missing) const {
  return number(
      key, missing, [](double value) { return value >= 0 && value < 1; },
      "a number of at least 0 and below 1");
}

StatusOr<bool> JsonFields::boolean(const char *key, bool missing) const {
  const json *value = find(key);
  if (!value)
    return missing;
  if (!value->is_boolean())
    return wrongType(key, *value, "true or false");
  return value->get<bool>();
}

StatusOr<std::string> JsonFields::string(const char *key,
                                         std::string missing) const {
  const json *value = find(key);
  if (!value)
    return missing;
  if (!value->is_string())
    return wrongType(key, *value, "a string");
  return value->get<std::string>();
}

StatusOr<std::vector<std::string>> JsonFields::strings(const char *key) const {
  std::vector<std::string> list;
  const json *value = find(key);
  if (!value)
    return list;
  if (!value->is_array())
    return wrongType(key, *value, "a list of strings");
  for (const json &item : *value) {
    if (!item.is_string())
      return wrongType(key, *value, "a list of strings");
    list.push_back(item.get<std::string>());
  }
  return list;
}

} // namespace qlora
