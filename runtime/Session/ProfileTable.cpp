// SPDX-License-Identifier: MIT

// Sums and their text.

#include "runtime/Session/ProfileTable.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "runtime/ABI/module.h"

namespace qlora {

using json = nlohmann::ordered_json;

static constexpr std::string_view kHost = "host";

static std::string_view computeName() { return queueName(QLORA_QUEUE_COMPUTE); }

ProfileRow &ProfileTable::row(std::string_view queue, std::string_view kind) {
  for (ProfileRow &row : rows)
    if (row.queue == queue && row.kind == kind)
      return row;
  ProfileRow &added = rows.emplace_back();
  added.queue = queue;
  added.kind = kind;
  return added;
}

void ProfileTable::add(const CommandFacts &facts, double seconds) {
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

json ProfileTable::toJson(const DeviceProfile &rates) const {
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
          {"rows", std::move(list)}};
}

/// Empty where there is nothing of it.
static std::string rate(double amount, double seconds) {
  if (amount <= 0 || seconds <= 0)
    return "";
  const double giga = amount / seconds * 1e-9;
  return fmt::format("{:.{}f}", giga, giga < 99.95 ? 1 : 0);
}

std::string ProfileTable::line(const ProfileRow &row) const {
  const double steps = double(std::max<int64_t>(1, stepCount));
  std::string name = row.kind;
  if (row.queue != computeName())
    name += fmt::format(" ({})", row.queue);
  std::string bound;
  if (row.boundSeconds > 0)
    bound = fmt::format("{:.0f}%", 100 * row.boundSeconds / row.seconds);
  return fmt::format(
      "  {:<30} {:>7} {:>9.2f} {:>6.1f}% {:>8} {:>8} {:>9}\n", name,
      row.count ? fmt::format("{:.0f}", double(row.count) / steps) : "",
      1e3 * row.seconds / steps, 100 * row.seconds / stepSeconds,
      rate(row.flops, row.seconds), rate(row.bytes, row.seconds), bound);
}

std::string ProfileTable::text(const DeviceProfile &rates) const {
  std::string text =
      fmt::format("profile of {} steps of {:.2f} ms\n"
                  "  {:<30} {:>7} {:>9} {:>7} {:>8} {:>8} {:>9}\n",
                  stepCount, 1e3 * secondsPerStep(), "kind", "count", "ms",
                  "share", "GFLOP/s", "GB/s", "of bound");
  for (const ProfileRow &row : sorted())
    text += line(row);
  return text + fmt::format("  bound: the rates of '{}' (--device-profile)",
                            rates.cpu);
}

} // namespace qlora
