// SPDX-License-Identifier: MIT

// Formats the lines of logged steps, and progress bars for long operations.
// Pure functions from values to text.

#ifndef QLORA_RUNTIME_WATCH_PROGRESSLINE_H
#define QLORA_RUNTIME_WATCH_PROGRESSLINE_H

#include <cstdint>
#include <optional>
#include <string>

namespace qlora {

/// Mean rewards of a logged step's preferences. NaN: unknown.
struct RewardReport {
  double accuracy = 0; ///< share of pairs with the larger chosen reward
  double margin = 0;   ///< chosen less rejected
};

/// One logged step.
struct StepReport {
  int64_t step = 0; ///< steps done
  int64_t totalSteps = 0;
  double epoch = 0;
  double loss = 0;
  double gradNorm = 0;
  double learningRate = 0;
  double stepSeconds = 0;
  double tokensPerSecond = 0; ///< sum of all ranks
  double etaSeconds = 0;
  std::optional<RewardReport> rewards = {};
};

/// Heading of stepLine(). Both fit into 80 columns up to a million steps.
std::string stepHeading(int64_t totalSteps, bool hasRewards = false);
/// For example: 120/1000 1.44 1.2345 0.87 1.9e-4 812 40.3k 0:12:10. With
/// rewards: 120/1000 1.44 0.4321 0.75 1.234 0.87 1.9e-4 812 0:12:10
std::string stepLine(const StepReport &report);

/// The state of a progress bar or line.
struct ProgressView {
  std::string what; ///< name of the work: "loading the base"
  uint64_t done = 0;
  uint64_t total = 0; ///< 0: unknown
  double seconds = 0; ///< seconds since the work began
  bool isBytes = false;
  std::string unit; ///< unit of counts that are not bytes: "rows"
};

/// "loading the base [=====>    ] 45 %, 1.2 GiB/s, 0:00:12 left", at most
/// `columns` wide, without a newline.
std::string progressBar(const ProgressView &view, int columns);
/// "loading the base: 1.2 of 2.4 GiB, 1.2 GiB/s, 0:00:12 left"
std::string progressLine(const ProgressView &view);

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_PROGRESSLINE_H
