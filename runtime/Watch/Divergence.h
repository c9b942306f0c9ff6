// SPDX-License-Identifier: MIT

// Signs that training has gone wrong although every number is finite: a
// gradient of exactly 0, or a loss that has come back up to that of guessing
// at random, ln V for V tokens. Each is said once.

#ifndef QLORA_RUNTIME_WATCH_DIVERGENCE_H
#define QLORA_RUNTIME_WATCH_DIVERGENCE_H

#include <limits>
#include <string>

#include "runtime/Watch/ProgressLine.h"

namespace qlora {

class Divergence {
public:
  /// `vocabSize`: V. `learningRate`: the option's, for the advice.
  Divergence(double vocabSize, double learningRate);

  /// After a logged step: a warning, or nothing.
  std::string check(const StepReport &report);

private:
  const double guessing; ///< ln V
  const double learningRate;
  double best = std::numeric_limits<double>::infinity();
  int inARow = 0; ///< logged losses as high as guessing
  bool saidZero = false, saidGuessing = false;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WATCH_DIVERGENCE_H
