// SPDX-License-Identifier: MIT

// Prompts and reference answers in rows of data. The reference of a row is its
// last contiguous run of labelled tokens: the last turn of the assistant, or
// the completion. The prompt is all tokens before this run.
//
// The first token of a row is never a target, so the prompt of a row in which
// all tokens are labelled is that token.

#ifndef QLORA_RUNTIME_DATA_ANSWERROWS_H
#define QLORA_RUNTIME_DATA_ANSWERROWS_H

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Data/Dataset.h"

namespace qlora {

struct AnswerRow {
  std::vector<int32_t> prompt;
  std::vector<int32_t> reference; ///< with its end token, if the row has one
};

/// Returns the prompt and the reference of one row of `data`. A row of a token
/// file may have several segments, each of which is a row here; segments
/// without labels are left out.
StatusOr<std::vector<AnswerRow>> readAnswerRows(const Dataset &data,
                                                int64_t row);

/// Returns the answer without its first end token and what follows that token.
std::span<const int32_t> withoutEnd(std::span<const int32_t> answer,
                                    std::span<const int32_t> endTokens);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_ANSWERROWS_H
