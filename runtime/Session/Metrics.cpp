// SPDX-License-Identifier: MIT

// metrics.jsonl and the terminal.

#include "runtime/Session/Metrics.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace qlora {

Metrics::Metrics(bool asJson, FILE *out, FILE *errors)
    : asJson(asJson), out(out), errors(errors),
      isTerminal(!asJson && isatty(fileno(out))) {}

Status Metrics::open(const std::string &folder) {
  path = folder + "/metrics.jsonl";
  file = std::fopen(path.c_str(), "we");
  if (!file)
    return Status::error(StatusCode::kUnavailable, "cannot write '{}': {}",
                         path, std::strerror(errno));
  return Status::ok();
}

Metrics::~Metrics() {
  clearBar();
  if (file)
    std::fclose(file);
}

Status Metrics::log(const nlohmann::ordered_json &values,
                    const std::string &text) {
  assert(!path.empty() && "open() comes first");
  clearBar();
  std::string line = values.dump() + "\n";
  // Flushed at once: a run that dies has its metrics up to then.
  if (file &&
      (std::fputs(line.c_str(), file) < 0 || std::fflush(file) != 0)) {
    // Not the end of a training whose adapter has its space.
    warn(fmt::format("cannot write '{}': {}; the run goes on without it", path,
                     std::strerror(errno)));
    std::fclose(std::exchange(file, nullptr));
  }
  std::fputs(asJson ? line.c_str() : (text + "\n").c_str(), out);
  std::fflush(out);
  return Status::ok();
}

void Metrics::say(std::string_view text) {
  if (asJson)
    return;
  clearBar();
  fmt::print(out, "{}\n", text);
  std::fflush(out);
}

void Metrics::warn(std::string_view text) {
  clearBar();
  fmt::print(errors, "qlora-run: warning: {}\n", text);
  std::fflush(errors);
}

void Metrics::showBar(int64_t step, int64_t totalSteps, double etaSeconds) {
  if (!isTerminal)
    return;
  winsize size = {};
  ioctl(fileno(out), TIOCGWINSZ, &size);
  int columns = std::clamp<int>(size.ws_col, 40, 100);
  fmt::print(out, "\r{}",
             progressBar(step, totalSteps, etaSeconds, columns - 1));
  std::fflush(out);
  hasBar = true;
}

void Metrics::clearBar() {
  if (!hasBar)
    return;
  // Back to the start of the line, and erase to its end.
  std::fputs("\r\x1b[K", out);
  hasBar = false;
}

} // namespace qlora
