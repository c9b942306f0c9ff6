// SPDX-License-Identifier: MIT

// The learning rate of each step, as transformers.get_scheduler computes it:
// in f64, rounded to f32 where the step reads it.
//
//   constant               base                      (warm-up is ignored)
//   constant_with_warmup   base, after a linear rise
//   linear                 a rise, then a straight line down to 0
//   cosine                 a rise, then half a cosine down to 0
//
// The rise starts at 0: with warm-up the first step changes nothing.

#ifndef QLORA_RUNTIME_SESSION_LEARNINGRATE_H
#define QLORA_RUNTIME_SESSION_LEARNINGRATE_H

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

namespace qlora {

struct LearningRate {
  double base = 0;
  std::string scheduler; ///< lr_scheduler_type
  int64_t warmupSteps = 0;
  int64_t totalSteps = 0;

  /// Returns the warm-up steps. As in transformers' Trainer, warmup_steps wins
  /// over warmup_ratio. `rule` "axolotl" is from
  /// _configure_warmup_and_logging() in axolotl's core/builders/base.py.
  static int64_t warmupOf(int64_t warmupSteps, double warmupRatio,
                          const std::string &rule, int64_t totalSteps) {
    if (warmupSteps > 0)
      return warmupSteps;
    const double total = static_cast<double>(totalSteps);
    if (rule == "transformers")
      return static_cast<int64_t>(std::ceil(total * warmupRatio));
    assert(rule == "axolotl" && "not a row of the option table");
    const int64_t steps =
        warmupRatio > 0
            ? static_cast<int64_t>(warmupRatio * total)
            : std::min<int64_t>(static_cast<int64_t>(0.03 * total), 100);
    return steps == 1 ? 2 : steps;
  }

  /// Returns the rate of a step; `step`: optimizer steps done before it.
  double at(int64_t step) const { return base * factor(step); }

private:
  double factor(int64_t step) const {
    if (scheduler == "constant")
      return 1;
    if (step < warmupSteps)
      return static_cast<double>(step) /
             static_cast<double>(std::max<int64_t>(1, warmupSteps));
    if (scheduler == "constant_with_warmup")
      return 1;
    double rest =
        static_cast<double>(std::max<int64_t>(1, totalSteps - warmupSteps));
    if (scheduler == "linear")
      return std::max(0.0, static_cast<double>(totalSteps - step) / rest);
    assert(scheduler == "cosine" && "not a row of the option table");
    double progress = static_cast<double>(step - warmupSteps) / rest;
    // Written in transformers' order of operations: half a cycle, times two.
    double angle = std::numbers::pi * 0.5 * 2.0 * progress;
    return std::max(0.0, 0.5 * (1.0 + std::cos(angle)));
  }
};

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_LEARNINGRATE_H
