// SPDX-License-Identifier: MIT

// Options of qlora-import. `qlora` accepts them too and passes them on.

#ifndef QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
#define QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H

#include "runtime/Base/OptionTable.h"

namespace qlora {

inline constexpr OptionRow kImporterOptions[] = {
    {"output", OptionType::kString, "-", OptionScope::kRun, "Import",
     "the file to write; -: standard output", "o"},
    {"embedding_dropout", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of the embeddings, in place of what config.json says", "embd_pdrop"},
    {"residual_dropout", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of what each layer adds, likewise", "resid_pdrop"},
    {"attention_dropout", OptionType::kFloat, "0", OptionScope::kRun, "Dropout",
     "of attention, likewise; nothing but 0 is supported", "attn_pdrop"},
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
