// SPDX-License-Identifier: MIT

// The extras of a run: what it does besides training.

#ifndef QLORA_RUNTIME_EXTRAS_RUNEXTRAS_H
#define QLORA_RUNTIME_EXTRAS_RUNEXTRAS_H

#include "runtime/Session/RunExtra.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// Returns all extras, in the order in which a session calls them. Each does
/// nothing if the options do not ask for it.
RunExtras makeExtras(const SessionRequest &request);

} // namespace qlora

#endif // QLORA_RUNTIME_EXTRAS_RUNEXTRAS_H
