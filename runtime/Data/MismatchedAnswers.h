// SPDX-License-Identifier: MIT

// The divergence of KTO is that of answers which belong to other prompts. As in
// TRL these are the micro-batch's own, moved on by one row:
//
//   lines         x0 y0   x1 y1   x2 y2
//   mismatched    x0 y2   x1 y0   x2 y1
//
// where x is a prompt, all before the first target of a row, and y an answer, all
// from there. What is more than the length of a line is cut off.

#ifndef QLORA_RUNTIME_DATA_MISMATCHEDANSWERS_H
#define QLORA_RUNTIME_DATA_MISMATCHEDANSWERS_H

#include "runtime/Device/MicroBatch.h"

namespace qlora {

/// Fills the second half of the lines from the first `rows` of them, each of
/// which has one row; one without a target has no answer.
void placeMismatchedAnswers(int64_t rows, MicroBatch &batch);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_MISMATCHEDANSWERS_H
