// SPDX-License-Identifier: MIT

// The options of qlora-import: qlora takes them too and passes them on.

#ifndef QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
#define QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H

#include "runtime/Base/OptionTable.h"

namespace qlora {

inline constexpr OptionRow kImporterOptions[] = {
    {"output", OptionType::kString, "-", OptionScope::kRun, "Import",
     "the file to write; -: standard output", "o"},
    {"embd_pdrop", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of the embeddings (GPT-2), in place of what config.json says"},
    {"resid_pdrop", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of what each layer adds (GPT-2), likewise"},
    {"attn_pdrop", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of attention (GPT-2); nothing but 0 is supported"},
    {"attention_dropout", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "the same of other models"},
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
