// SPDX-License-Identifier: MIT

// Options of qlora-import. `qlora` accepts them too and passes them on.

#ifndef QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
#define QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H

#include "runtime/Options/OptionTable.h"

namespace qlora {

inline constexpr OptionRow kImporterOptions[] = {
    {"output", OptionType::kString, "-", OptionScope::kRun, "Import",
     "file to write; -: standard output", "o"},
    {"embedding_dropout", OptionType::kFloat, "0", OptionScope::kProgram,
     "Dropout",
     "dropout of embeddings; without this option, config.json's rate counts",
     "embd_pdrop"},
    {"residual_dropout", OptionType::kFloat, "0", OptionScope::kProgram,
     "Dropout",
     "dropout of the outputs of attention and MLP; without this option, "
     "config.json's rate counts",
     "resid_pdrop"},
    {"attention_dropout", OptionType::kFloat, "0", OptionScope::kProgram,
     "Dropout",
     "dropout of attention weights, of which only 0 is supported; without "
     "this option, config.json's rate counts",
     "attn_pdrop"},
    {"output_router_logits", OptionType::kBool, "false", OptionScope::kProgram,
     "Experts",
     "add the routers' auxiliary loss, times config.json's "
     "router_aux_loss_coef; without this option, config.json decides"},
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORAIMPORT_IMPORTEROPTIONS_H
