// SPDX-License-Identifier: MIT

// Hello in, error out.

#include "runtime/Ranks/RankChannel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>

namespace qlora {

using nlohmann::json;

StatusOr<std::optional<RankChannel>> RankChannel::open(RankEnvironment &env) {
  const char *number = getenv(kRankChannelVariable);
  if (!number)
    return std::optional<RankChannel>();
  RankChannel channel;
  channel.socket = FileDescriptor(std::atoi(number));
  unsetenv(kRankChannelVariable);
  fcntl(channel.socket.get(), F_SETFD, FD_CLOEXEC);
  std::string text(kMaxChannelBytes, '\0');
  ssize_t bytes = recv(channel.socket.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, bytes)));
  json hello = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!hello.is_object())
    return Status::error(StatusCode::kAborted,
                         "{} is set but leads to no launcher; unset it",
                         kRankChannelVariable);
  env.secret = hello.value("secret", "");
  env.secretRemark.clear();
  env.launcher = "qlora-run";
  if (int listening = hello.value("listening", -1); listening >= 0) {
    fcntl(listening, F_SETFD, FD_CLOEXEC);
    channel.listening = FileDescriptor(listening);
  }
  return std::optional<RankChannel>(std::move(channel));
}

void RankChannel::reportError(const Status &status) {
  std::string text = json{{"code", static_cast<int>(status.code())},
                          {"message", status.message().substr(0, 4096)}}
                         .dump(-1, ' ', false, json::error_handler_t::replace);
  // A launcher that is gone cannot be told; it will also not be waiting.
  if (send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
    return;
}

} // namespace qlora
