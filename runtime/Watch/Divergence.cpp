// SPDX-License-Identifier: MIT

// The two signs and their words.

#include "runtime/Watch/Divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/Base/Amounts.h"

namespace qlora {

/// Losses of nearly ln V, several in a row, if one before was well below: a
/// model without training begins there, and that is no divergence.
static constexpr double kNearlyGuessing = 0.95, kWellBelow = 0.8;
static constexpr int kInARow = 2;

Divergence::Divergence(double vocabSize, double learningRate)
    : guessing(std::log(std::max(vocabSize, 2.0))),
      learningRate(learningRate) {}

std::string Divergence::check(const StepReport &report) {
  if (report.gradNorm == 0 && !saidZero) {
    saidZero = true;
    return fmt::format("the gradient of step {} is 0: nothing is learned any "
                       "more; stop the run and try a smaller --learning-rate "
                       "(it is {})",
                       report.step, formatShort(learningRate));
  }
  inARow = report.loss >= kNearlyGuessing * guessing ? inARow + 1 : 0;
  best = std::min(best, report.loss);
  if (inARow < kInARow || best > kWellBelow * guessing || saidGuessing)
    return "";
  saidGuessing = true;
  return fmt::format("the loss was {:.4f} and is {:.4f} now, that of guessing "
                     "at random ({:.4f}): training has diverged; stop the run "
                     "and try a smaller --learning-rate (it is {})",
                     best, report.loss, guessing,
                     formatShort(learningRate));
}

} // namespace qlora
