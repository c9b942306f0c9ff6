// SPDX-License-Identifier: MIT

// KTO estimates the KL divergence from prompts with answers of other prompts.
// As in TRL, each prompt of a micro-batch gets the preceding row's answer:
//
//   sequences     x0 y0   x1 y1   x2 y2
//   mismatched    x0 y2   x1 y0   x2 y1
//
// A prompt x is the part of a row before its first target; the answer y is the
// rest. Tokens beyond the length of a sequence are cut off.

#ifndef QLORA_RUNTIME_DATA_KTOKLPAIRS_H
#define QLORA_RUNTIME_DATA_KTOKLPAIRS_H

#include "runtime/Device/MicroBatch.h"

namespace qlora {

/// Writes mismatched sequences into a micro-batch's second half, from its first
/// `rows` sequences. A row without a target has no answer.
void placeKtoKlPairs(int64_t rows, MicroBatch &batch);

} // namespace qlora

#endif // QLORA_RUNTIME_DATA_KTOKLPAIRS_H
