// SPDX-License-Identifier: MIT

// Finds the last labelled run of each segment.

#include "runtime/Data/AnswerRows.h"

#include <algorithm>

namespace qlora {

/// Returns the prompt and the reference of tokens [begin, end) of one segment.
/// The reference is empty if no token is a target.
static AnswerRow answerOf(const MicroBatch &tokens, size_t begin, size_t end) {
  // Token t is labelled if it is the target of token t - 1.
  const auto isLabelled = [&](size_t t) {
    return t > begin && tokens.targets[t - 1] != kNoLabel;
  };
  size_t last = end;
  while (last > begin && !isLabelled(last - 1))
    --last;
  size_t first = last;
  while (first > begin && isLabelled(first - 1))
    --first;
  const auto at = [&](size_t t) {
    return tokens.ids.begin() + static_cast<std::ptrdiff_t>(t);
  };
  return {{at(begin), at(first)}, {at(first), at(last)}};
}

StatusOr<std::vector<AnswerRow>> readAnswerRows(const Dataset &data,
                                                int64_t row) {
  MicroBatch tokens;
  QLORA_RETURN_IF_ERROR(data.readRow(row, tokens));
  std::vector<AnswerRow> rows;
  for (size_t begin = 0, end; begin < tokens.ids.size(); begin = end) {
    for (end = begin; end < tokens.ids.size() &&
                      tokens.segments[end] == tokens.segments[begin];)
      ++end;
    AnswerRow answer = answerOf(tokens, begin, end);
    if (tokens.segments[begin] != 0 && !answer.reference.empty())
      rows.push_back(std::move(answer));
  }
  return rows;
}

std::span<const int32_t> withoutEnd(std::span<const int32_t> answer,
                                    std::span<const int32_t> endTokens) {
  const auto end = std::ranges::find_first_of(answer, endTokens);
  return answer.first(static_cast<size_t>(end - answer.begin()));
}

} // namespace qlora
