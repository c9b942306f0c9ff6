// SPDX-License-Identifier: MIT

// --push-to-hub: uploads the adapter to the Hugging Face hub. qlora-data does
// it with Hugging Face's library and the user's token (hf auth login,
// HF_TOKEN). No option takes a token: other users can read command lines.

#ifndef QLORA_RUNTIME_EXTRAS_HUBPUSH_H
#define QLORA_RUNTIME_EXTRAS_HUBPUSH_H

#include "runtime/Session/RunExtra.h"

namespace qlora {

class HubPush : public RunExtra {
public:
  /// Creates the repository if it does not exist, so that a missing package or
  /// token, or a wrong user name, fails before training.
  Status begin(const Run &run) override;
  /// Uploads the adapter, its tokenizer and its model card, unless a signal
  /// stopped the run. Errors say how to upload the written adapter by hand.
  Status end(const Run &run, const DataSummary &data,
             const TrainingResult &result) override;
};

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_HUBPUSH_H
