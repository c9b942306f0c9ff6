// SPDX-License-Identifier: MIT

// The options that the adapter of --adapter-name-or-path implies: a training
// from an adapter needs its shape, as in PEFT, TRL and axolotl.

#ifndef QLORA_TOOLS_QLORA_STARTADAPTER_H
#define QLORA_TOOLS_QLORA_STARTADAPTER_H

#include "runtime/Base/Status.h"
#include "runtime/Options/Options.h"

namespace qlora {

/// Sets the options that are not given to the values in the adapter's
/// adapter_config.json: rank, alpha, their patterns, modules, DoRA, rsLoRA and
/// biases, but not dropout. Values that are given stay, so that checkRun can
/// refuse those that differ. Returns a note that names the values that were
/// set; empty: none.
StatusOr<std::string> addStartOptions(Options &options);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_STARTADAPTER_H
