// SPDX-License-Identifier: MIT

// --push-to-hub: an adapter goes to the Hugging Face hub once it is written.
// qlora-data does it, with Hugging Face's own library and the user's own token
// (hf auth login, HF_TOKEN): no option takes a token, since others on a machine
// can read the words of a command.

#ifndef QLORA_RUNTIME_SESSION_HUBPUSH_H
#define QLORA_RUNTIME_SESSION_HUBPUSH_H

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"

namespace qlora {

/// Makes the repository unless it is there. Before the training: a missing
/// package or token, or a name that is not the user's, is known then.
Status prepareHub(const Options &options);

/// Uploads the adapter, its tokenizer and its card; returns where it is. An
/// error says how to do it by hand: the adapter is written.
StatusOr<std::string> pushToHub(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_HUBPUSH_H
