// SPDX-License-Identifier: MIT

// --push-to-hub: uploads the adapter to the Hugging Face hub. qlora-data does
// it with Hugging Face's library and the user's token (hf auth login,
// HF_TOKEN). No option takes a token: other users can read command lines.

#ifndef QLORA_RUNTIME_SESSION_HUBPUSH_H
#define QLORA_RUNTIME_SESSION_HUBPUSH_H

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Creates the repository if it does not exist. Call it before training, so
/// that a missing package or token, or a wrong user name, fails early.
Status prepareHub(const Options &options);

/// Uploads the adapter, its tokenizer and its model card; returns the address.
/// Errors say how to upload the written adapter by hand.
StatusOr<std::string> pushToHub(const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_HUBPUSH_H
