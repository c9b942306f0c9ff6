// SPDX-License-Identifier: MIT

// Sums times and work per kind of command, and prints them.

#include "runtime/Watch/Profiler.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "runtime/ABI/module.h"
#include "runtime/Predict/Calibrate.h"

namespace qlora {

std::string_view hostWorkName(HostWork work) {
  static constexpr std::string_view kNames[] = {
      "step",   "read and build a batch", "accumulate", "sums over ranks",
      "update", "wait for results",       "log"};
  return kNames[size_t(work)];
}

using json = nlohmann::ordered_json;

static constexpr std::string_view kHost = "host";

static std::string_view computeName() { return queueName(QLORA_QUEUE_COMPUTE); }

/// Returns whether the profile is from --calibrate on this machine: only such
/// profiles have rates of single kernels.
static bool isOfThisMachine(const DeviceProfile &rates) {
  const DeviceProfile here = profileOfThisMachine();
  return rates.kernels && rates.cpu == here.cpu && rates.cores == here.cores;
}

RatesOrigin originOf(const DeviceProfile &rates, std::string_view given) {
  if (given.empty())
    return RatesOrigin::kTargetDefault;
  return isOfThisMachine(rates) ? RatesOrigin::kMeasured
                                : RatesOrigin::kAssumed;
}

ProfileRow &ProfileTable::row(std::string_view queue, std::string_view kind) {
  for (ProfileRow &row : rows)
    if (row.queue == queue && row.kind == kind)
      return row;
  ProfileRow &added = rows.emplace_back();
  added.queue = queue;
  added.kind = kind;
  return added;
}

void ProfileTable::add(const CommandMetadata &facts, double seconds) {
  ProfileRow &sum = row(queueName(facts.queue), facts.kind);
  ++sum.count;
  sum.seconds += seconds;
  sum.flops += facts.flops;
  sum.bytes += facts.bytes;
  sum.boundSeconds += facts.boundSeconds;
}

void ProfileTable::add(const HostSpan &span) {
  const double seconds = double(span.end - span.start) * 1e-9;
  if (span.work == HostWork::kStep) {
    ++stepCount;
    stepSeconds += seconds;
    return;
  }
  ProfileRow &sum = row(kHost, hostWorkName(span.work));
  ++sum.count;
  sum.seconds += seconds;
}

double ProfileTable::secondsPerStep() const {
  return stepSeconds / double(std::max<int64_t>(1, stepCount));
}

double ProfileTable::idleSeconds() const {
  double idle = stepSeconds;
  for (const ProfileRow &row : rows)
    if (row.queue == computeName())
      idle -= row.seconds;
  return std::max(0.0, idle);
}

std::vector<ProfileRow> ProfileTable::sorted() const {
  std::vector<ProfileRow> all = rows;
  ProfileRow &idle = all.emplace_back();
  idle.queue = computeName();
  idle.kind = "idle";
  idle.seconds = idleSeconds();
  const auto rank = [](const ProfileRow &row) {
    return std::tuple(row.queue != computeName(), row.queue == kHost,
                      -row.seconds, row.kind);
  };
  std::sort(all.begin(), all.end(),
            [&](const ProfileRow &a, const ProfileRow &b) {
              return rank(a) < rank(b);
            });
  return all;
}

json ProfileTable::toJson(const DeviceProfile &rates,
                          RatesOrigin origin) const {
  const double steps = double(std::max<int64_t>(1, stepCount));
  json list = json::array();
  for (const ProfileRow &row : sorted()) {
    json item = {{"queue", row.queue},
                 {"kind", row.kind},
                 {"count", double(row.count) / steps},
                 {"seconds", row.seconds / steps},
                 {"share", row.seconds / stepSeconds}};
    if (row.flops > 0)
      item["gflops"] = row.flops / row.seconds * 1e-9;
    if (row.bytes > 0)
      item["gbps"] = row.bytes / row.seconds * 1e-9;
    if (row.boundSeconds > 0)
      item["share_of_bound"] = row.boundSeconds / row.seconds;
    list.push_back(std::move(item));
  }
  return {{"steps", stepCount},
          {"step_seconds", secondsPerStep()},
          {"rates", rates.cpu},
          {"rates_measured", origin == RatesOrigin::kMeasured},
          {"rows", std::move(list)}};
}

/// Formats amount / seconds; empty if either is 0.
static std::string rate(double amount, double seconds) {
  if (amount <= 0 || seconds <= 0)
    return "";
  const double giga = amount / seconds * 1e-9;
  return fmt::format("{:.{}f}", giga, giga < 99.95 ? 1 : 0);
}

/// Returns the minimum time at the device's rates, divided by the actual time.
static std::string comparison(const ProfileRow &row, RatesOrigin origin) {
  if (row.boundSeconds <= 0 || origin == RatesOrigin::kTargetDefault)
    return "";
  const double share = row.boundSeconds / row.seconds;
  return origin == RatesOrigin::kMeasured ? fmt::format("{:.0f}%", 100 * share)
                                          : fmt::format("{:.2f}x", share);
}

static std::string_view comparisonTitle(RatesOrigin origin) {
  constexpr std::string_view kTitles[] = {"", "of assumed", "of measured"};
  return kTitles[size_t(origin)];
}

static std::string calibrateAdvice(std::string_view how = "") {
  return fmt::format("\n  to compare: qlora-run --calibrate{}, then "
                     "--device-profile device.json",
                     how);
}

static std::string ratesNote(const DeviceProfile &rates, RatesOrigin origin) {
  if (origin == RatesOrigin::kMeasured)
    return fmt::format("  of measured: of the rates that --calibrate measured "
                       "with {} threads\n  (over 100%: this machine was busier "
                       "then, or data was in a cache)",
                       rates.cores);
  if (origin == RatesOrigin::kTargetDefault)
    return rates.gpu
               ? "  the rates of this GPU are not known\n  to compare with "
                 "assumed rates: --device-profile NAME (h100, h200, ...)"
               : "  the rates of this machine are not known" +
                     calibrateAdvice();
  const DeviceProfile here = profileOfThisMachine();
  if (rates.kernels && rates.cpu == here.cpu)
    return fmt::format("  of assumed: compared with the rates of {} threads, "
                       "but a rank has {}",
                       rates.cores, here.cores) +
           calibrateAdvice(fmt::format(" --threads {}", here.cores));
  return fmt::format(
             "  of assumed: compared with the rates of {}, not measured here",
             rates.cpu) +
         (rates.gpu ? "" : calibrateAdvice());
}

/// Formats a table row, at most 80 wide, without trailing blanks.
static std::string columns(std::string_view kind, std::string_view count,
                           std::string_view milliseconds,
                           std::string_view share, std::string_view flops,
                           std::string_view bytes, std::string_view compared) {
  std::string text =
      fmt::format("  {:<29} {:>5} {:>8} {:>6} {:>7} {:>6} {:>11}", kind, count,
                  milliseconds, share, flops, bytes, compared);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string ProfileTable::line(const ProfileRow &row,
                               RatesOrigin origin) const {
  const double steps = double(std::max<int64_t>(1, stepCount));
  std::string name = row.kind;
  if (row.queue != computeName())
    name += fmt::format(" ({})", row.queue);
  return columns(
      name, row.count ? fmt::format("{:.0f}", double(row.count) / steps) : "",
      fmt::format("{:.2f}", 1e3 * row.seconds / steps),
      fmt::format("{:.1f}%", 100 * row.seconds / stepSeconds),
      rate(row.flops, row.seconds), rate(row.bytes, row.seconds),
      comparison(row, origin));
}

std::string ProfileTable::text(const DeviceProfile &rates,
                               RatesOrigin origin) const {
  std::string text = fmt::format("profile of {} steps of {:.2f} ms\n",
                                 stepCount, 1e3 * secondsPerStep()) +
                     columns("kind", "count", "ms", "share", "GFLOP/s", "GB/s",
                             comparisonTitle(origin));
  for (const ProfileRow &row : sorted())
    text += line(row, origin);
  return text + ratesNote(rates, origin);
}

} // namespace qlora
