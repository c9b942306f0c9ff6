// SPDX-License-Identifier: MIT

// Writes metrics.jsonl and the terminal output.

#include "runtime/Watch/Metrics.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/Base/AtomicFile.h"
#include "runtime/Base/JsonText.h"

namespace qlora {

/// Time between updates of a bar, or between lines. Shorter work shows neither.
static constexpr auto kBetweenBars = std::chrono::milliseconds(200);
static constexpr auto kBetweenLines = std::chrono::seconds(10);

/// Prints and flushes. Ignores errors: the run continues without a terminal.
static void print(FILE *stream, const std::string &text) {
  (void)std::fputs(text.c_str(), stream);
  (void)std::fflush(stream);
}

Metrics::Metrics(bool asJson, FILE *out, FILE *errors, std::string name)
    : asJson(asJson), name(std::move(name)), out(out), errors(errors),
      isTerminal(!asJson && isatty(fileno(out))) {}

/// Puts the run's name before each line.
std::string Metrics::named(std::string_view text) const {
  if (name.empty())
    return fmt::format("{}\n", text);
  std::string lines;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines += fmt::format("[{}] {}\n", name, text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

Status Metrics::open(const std::string &folder, Start start,
                     const std::string &history) {
  path = folder + "/" + kMetricsFile;
  // Replace atomically: a kill must not lose the earlier lines.
  if (start == Start::kNew) {
    QLORA_ASSIGN_OR_RETURN(AtomicFile begun, AtomicFile::create(path));
    QLORA_RETURN_IF_ERROR(begun.write(history));
    QLORA_RETURN_IF_ERROR(begun.commit());
  }
  file = std::fopen(path.c_str(), "ae");
  if (!file)
    return Status::unavailable("cannot write '{}': {}", path,
                               std::strerror(errno));
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
  std::string line = dumpJson(values) + "\n";
  // Flush at once, so that a run that dies has all metrics.
  if (file && (std::fputs(line.c_str(), file) < 0 || std::fflush(file) != 0)) {
    // Not fatal: the space for the adapter is already reserved.
    warn(fmt::format("cannot write '{}': {}; the run continues without it",
                     path, std::strerror(errno)));
    std::fclose(std::exchange(file, nullptr));
  }
  if (asJson && !name.empty()) {
    nlohmann::ordered_json shown = {{"run", name}};
    shown.update(values);
    line = dumpJson(shown) + "\n";
  }
  print(out, asJson ? line : named(text));
  std::erase_if(sinks, [&](const std::unique_ptr<MetricsSink> &sink) {
    const Status status = sink->log(values);
    if (!status.isOk())
      warn(fmt::format("{}; the run continues without it", status.message()));
    return !status.isOk();
  });
  return Status::ok();
}

void Metrics::say(std::string_view text) {
  if (asJson)
    return;
  clearBar();
  print(out, named(text));
}

void Metrics::note(std::string_view text) {
  clearBar();
  print(errors, fmt::format("qlora-run: {}note: {}\n",
                            name.empty() ? "" : name + ": ", text));
}

void Metrics::warn(std::string_view text) {
  clearBar();
  print(errors, fmt::format("qlora-run: {}warning: {}\n",
                            name.empty() ? "" : name + ": ", text));
}

ProgressListener Metrics::progress(const std::string &what,
                                   const std::string &unit) {
  shown = Clock::now();
  return [this, start = shown,
          view = ProgressView{what, 0, 0, 0, unit == kBytes,
                              unit}](uint64_t done, uint64_t total) mutable {
    view.done = done;
    view.total = total;
    view.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    showProgress(view);
  };
}

void Metrics::showProgress(const ProgressView &view) {
  if (isTerminal)
    return showBar(view);
  if (Clock::now() < shown + kBetweenLines || view.done == view.total)
    return;
  shown = Clock::now();
  say(progressLine(view));
}

void Metrics::showBar(const ProgressView &view) {
  if (view.done == view.total)
    return clearBar();
  if (!isTerminal || Clock::now() < shown + kBetweenBars)
    return;
  shown = Clock::now();
  drawBar(view);
}

void Metrics::drawBar(const ProgressView &view) {
  winsize size = {};
  ioctl(fileno(out), TIOCGWINSZ, &size);
  const int columns = std::clamp<int>(size.ws_col, 40, 100);
  // Overwrite the last bar and clear the rest of the line.
  print(out, fmt::format("\r{}\x1b[K", progressBar(view, columns - 1)));
  hasBar = true;
}

void Metrics::clearBar() {
  if (!hasBar)
    return;
  // Go to the start of the line and clear it.
  print(out, "\r\x1b[K");
  hasBar = false;
}

} // namespace qlora
