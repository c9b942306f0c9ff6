// SPDX-License-Identifier: MIT

// Status: OK (a null pointer), or an error that describes the problem, its
// place and a fix. The runtime throws no exceptions itself (Exceptions.h), and
// converts errors of vendor libraries at the call.
//
//   Status save() {
//     QLORA_RETURN_IF_ERROR(writeHeader());
//     QLORA_ASSIGN_OR_RETURN(File file, File::open(path));
//     return Status::ok();
//   }

#ifndef QLORA_RUNTIME_BASE_STATUS_H
#define QLORA_RUNTIME_BASE_STATUS_H

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace qlora {

enum class StatusCode {
  kOk,
  kInvalidArgument, ///< the user's input or option is wrong
  kNotFound,        ///< a file or name does not exist
  kDataLoss,        ///< a file is truncated or inconsistent
  kUnavailable,     ///< this machine or library cannot do it
  kResourceExhausted, ///< no memory or no space
  kAborted,         ///< another rank failed, or the user stopped the run
  kInternal,        ///< a bug in qlora
};

class [[nodiscard]] Status {
public:
  Status() = default;
  static Status ok() { return {}; }

  template <typename... Args>
  static Status error(StatusCode code, fmt::format_string<Args...> format,
                      Args &&...args) {
    return Status(code, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  static Status invalid(fmt::format_string<Args...> format, Args &&...args) {
    return error(StatusCode::kInvalidArgument, format,
                 std::forward<Args>(args)...);
  }
  template <typename... Args>
  static Status notFound(fmt::format_string<Args...> format, Args &&...args) {
    return error(StatusCode::kNotFound, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  static Status dataLoss(fmt::format_string<Args...> format, Args &&...args) {
    return error(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  static Status unavailable(fmt::format_string<Args...> format,
                            Args &&...args) {
    return error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
  }

  Status(StatusCode code, std::string message)
      : state(std::make_shared<const State>(State{code, std::move(message)})) {}

  bool isOk() const { return !state; }
  StatusCode code() const { return state ? state->code : StatusCode::kOk; }
  /// One or two lines for the user; empty when OK.
  const std::string &message() const;
  /// Returns the error with "context: " in front; OK stays OK.
  Status withContext(std::string_view context) const;

private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const State> state;
};

/// A value or the error that prevented it.
template <typename T> class [[nodiscard]] StatusOr {
public:
  StatusOr(T value) : held(std::move(value)) {}
  StatusOr(Status status) : error(std::move(status)) {}

  bool isOk() const { return held.has_value(); }
  const Status &status() const { return error; }
  T &value() & { return *held; }
  const T &value() const & { return *held; }
  T &&value() && { return std::move(*held); }
  T *operator->() { return &*held; }
  const T *operator->() const { return &*held; }
  T &operator*() { return *held; }

private:
  std::optional<T> held;
  Status error;
};

#define QLORA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                         \
    if (::qlora::Status qloraStatus = (expression); !qloraStatus.isOk())       \
      return qloraStatus;                                                      \
  } while (false)

#define QLORA_CONCAT_IMPL(a, b) a##b
#define QLORA_CONCAT(a, b) QLORA_CONCAT_IMPL(a, b)
#define QLORA_ASSIGN_OR_RETURN(declaration, expression)                        \
  auto QLORA_CONCAT(qloraOr, __LINE__) = (expression);                         \
  if (!QLORA_CONCAT(qloraOr, __LINE__).isOk())                                 \
    return QLORA_CONCAT(qloraOr, __LINE__).status();                           \
  declaration = std::move(QLORA_CONCAT(qloraOr, __LINE__)).value()

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_STATUS_H
