// SPDX-License-Identifier: MIT

// Answers requests for generation: JSON objects, one per line, from standard
// input to standard output. `qlora generate`, `chat` and `serve` start this
// program and translate text to tokens.
//
// First it writes {"ready": {"slots": 8, "capacity": 2048, "vocabulary": V,
// "adapters": ["NAME", ...], "base": true}}, with the names of the loaded
// adapters, and whether rows may use the base alone.
//
// Requests:
//   {"id": 7, "input_ids": [5, 9], "max_new_tokens": 16, "temperature": 0.7,
//    "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1,
//    "presence_penalty": 0, "seed": 0, "eos_token_id": [2], "logprobs": 0,
//    "prompt_logprobs": false, "adapter": "NAME"}
//   {"cancel": 7}
// Only input_ids is required. The default of max_new_tokens fills the slot, and
// the default of temperature is 0. With prompt_logprobs, max_new_tokens may be
// 0. `adapter` is the name of an adapter, or null for the base alone; its
// default is the first adapter, if there is one.
//
// Answers, one for each token; `finish` (stop or length) is in the last one:
//   {"id": 7, "token": 12}
//   {"id": 7, "token": 2, "logprobs": [[2, -0.1], ...], "finish": "stop"}
//   {"id": 7, "error": "..."}      the request is refused or not understood
// `logprobs` lists the token, then the likeliest ones. With prompt_logprobs,
// a line before the first token has such a list for each token of the prompt;
// for its first token, null. If no token follows, it has `finish`:
//   {"id": 7, "prompt_logprobs": [null, [[9, -0.3], ...]], "finish": "length"}
//
// The session ends when the input ends and all rows are answered.

#ifndef QLORA_RUNTIME_SESSION_GENERATIONSESSION_H
#define QLORA_RUNTIME_SESSION_GENERATIONSESSION_H

#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// Returns the exit code: 0, or 128 + the number of a signal that stopped it.
StatusOr<int> runGenerationSession(const SessionRequest &request,
                                   const RankEnvironment &env);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_GENERATIONSESSION_H
