// SPDX-License-Identifier: MIT

// The learning rate of each step, in f64 and in the order of operations of the
// functions that it equals; rounded to f32 where the step reads it.
//
//   transformers.get_scheduler 5.24: linear, cosine, cosine_with_restarts,
//   cosine_with_min_lr, cosine_warmup_with_min_lr, polynomial, inverse_sqrt,
//   warmup_stable_decay, constant (without warm-up), constant_with_warmup
//   axolotl 0.18, utils/schedulers.py: rex
//
// --lr-scheduler-kwargs has the names of the functions' arguments. With warm-up
// the first step of most schedules has rate 0 and changes nothing.

#ifndef QLORA_RUNTIME_OPTIONS_LEARNINGRATE_H
#define QLORA_RUNTIME_OPTIONS_LEARNINGRATE_H

#include <cstdint>
#include <map>
#include <string>

#include "runtime/Options/Options.h"

namespace qlora {

/// A value, immutable after construction.
class LearningRate {
public:
  /// Checks the schedule's parameters. Errors name option and parameter.
  static Status check(const Options &options);

  /// `options` have passed check(). `totalSteps`: optimizer steps of the run.
  LearningRate(const Options &options, int64_t totalSteps);

  /// Returns the rate of a step; `step`: optimizer steps done before it.
  double at(int64_t step) const;
  /// Returns the steps of the warm-up. As in transformers' Trainer,
  /// warmup_steps wins over warmup_ratio.
  int64_t warmupSteps() const { return warmup; }

private:
  using Factor = double (*)(const LearningRate &, double);
  friend struct ScheduleRow;
  friend struct ScheduleFactors;

  double number(const char *name) const { return numbers.at(name); }
  bool has(const char *name) const { return numbers.contains(name); }

  double base;
  int64_t warmup, total;
  Factor factor;
  std::map<std::string, double> numbers; ///< parameters that have a value
  std::map<std::string, std::string> words;
};

} // namespace qlora

#endif // QLORA_RUNTIME_OPTIONS_LEARNINGRATE_H
