// SPDX-License-Identifier: MIT

// `--evaluation-rows FILE`: the rows of an evaluation, for other programs that
// measure its loss. JSON lines, one for each segment of each sequence:
//
//   {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
//
// As in transformers, labels[i] is the token at i itself, or -100 if it is not
// in the loss. The first token of a row never is.

#ifndef QLORA_RUNTIME_SESSION_EVALUATEDROWS_H
#define QLORA_RUNTIME_SESSION_EVALUATEDROWS_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Checkpoint/Run.h"

namespace qlora {

/// Writes all rows of `run.validation`. Returns kInvalidArgument if there are
/// none, or if ranks share sequences.
Status writeEvaluatedRows(const Run &run, const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_EVALUATEDROWS_H
