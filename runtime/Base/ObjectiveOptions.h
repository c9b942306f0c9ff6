// SPDX-License-Identifier: MIT

// What the options say of the objective that is trained for (rl).

#ifndef QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H
#define QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H

#include <string>

#include "runtime/Base/Options.h"

namespace qlora {

/// The loss that a `loss_type` means for an objective (rl); empty where there
/// is no name for it.
std::string lossOf(const std::string &rl, const std::string &lossType);

/// Whether the objective has its loss, its rows and its reference.
Status validateObjective(const Options &options);

/// And whether so many ranks can train for it, of which each `together` have
/// the same rows.
Status checkRanksOf(const Options &options, int64_t ranks, int64_t together);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_OBJECTIVEOPTIONS_H
