// SPDX-License-Identifier: MIT

// Predicts the time of a step on GPUs, which are identified by name.

#include "runtime/Session/RankSpeeds.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "runtime/Base/Amounts.h"
#include "runtime/Kernels/DeviceProfile.h"
#include "runtime/Predict/StepPrediction.h"

namespace qlora {

static constexpr const char *kName = "rank_speeds";

static bool areEqual(const auto &values) {
  return std::ranges::adjacent_find(values, std::ranges::not_equal_to()) ==
         values.end();
}

Status checkRankSpeeds(const Options &options, const LoadedModule &module,
                       int64_t ranks) {
  const std::vector<int64_t> given = options.lengths(kName);
  if (given.empty())
    return Status::ok();
  const std::string name = options.spelling(kName);
  if (std::ssize(given) != ranks)
    return Status::invalid(
        "{} has {} for {}. Fix: give one number per rank, in rank order", name,
        formatCounted(std::ssize(given), "number"),
        formatCounted(ranks, "rank"));
  if (!areEqual(given) && module.meetsInEntries())
    return Status::invalid(
        "{}: the ranks of '{}' run their micro-batches together, so a faster "
        "rank cannot take more of them. Fix: leave the option out, or compile "
        "without --parallel{}",
        name, module.path(),
        module.stages() > 1 ? " (for a pipeline, compile with --stage-speeds)"
                            : "");
  if (!areEqual(given) && options.boolean("reproducible_reductions"))
    return Status::invalid(
        "{} conflicts with --reproducible-reductions, which fixes the "
        "micro-batches of each rank. Fix: leave one of them out",
        name);
  return Status::ok();
}

std::vector<double> givenSpeeds(const Options &options, int64_t ranks) {
  const std::vector<int64_t> given = options.lengths(kName);
  if (std::ssize(given) != ranks || areEqual(given))
    return {};
  return {given.begin(), given.end()};
}

/// Predicts the seconds of a micro-batch without the update: the difference
/// between a step with two micro-batches and a step with one.
static std::optional<double> secondsOn(const DeviceProfile &gpu,
                                       const LoadedModule &module) {
  double seconds = 0;
  for (const int64_t microBatches : {1, 2}) {
    const auto steps = predictSteps(module, {gpu, 1, microBatches});
    if (!steps.isOk() || steps->empty())
      return std::nullopt;
    seconds = steps->back().seconds - seconds;
  }
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

std::string speedReport(const std::string &gpu, const LoadedModule &module) {
  const auto profile = profileOfGpu(gpu);
  const auto seconds = profile ? secondsOn(*profile, module) : std::nullopt;
  return fmt::format("{}\n{}", gpu,
                     seconds ? fmt::format("{:a}", *seconds) : "");
}

PredictedSpeeds speedsFromReports(const std::vector<std::string> &words) {
  if (areEqual(words))
    return {};
  PredictedSpeeds predicted;
  std::vector<std::string> gpus;
  std::string unknown;
  for (const std::string &word : words) {
    const size_t end = word.find('\n');
    gpus.push_back(word.substr(0, end));
    const double seconds = std::strtod(word.c_str() + end + 1, nullptr);
    if (seconds <= 0 && unknown.empty())
      unknown = gpus.back();
    predicted.speeds.push_back(1 / seconds);
  }
  if (unknown.empty())
    return areEqual(predicted.speeds) ? PredictedSpeeds() : predicted;
  if (areEqual(gpus))
    return {};
  return {{},
          fmt::format("ranks have different GPUs ({}), and the speed of '{}' "
                      "is not known: each rank gets the same number of "
                      "micro-batches. Fix: give --rank-speeds",
                      fmt::join(gpus, ", "), unknown)};
}

} // namespace qlora
