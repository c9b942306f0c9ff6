// SPDX-License-Identifier: MIT

// What a run computes on, and which GPUs of the machine it leaves idle.

#ifndef QLORA_RUNTIME_SESSION_RUNHARDWARE_H
#define QLORA_RUNTIME_SESSION_RUNHARDWARE_H

#include <string>

#include "runtime/Base/Options.h"
#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// "2 x NVIDIA H100 80GB HBM3", or "CPU, 2 ranks x 1 thread". All ranks call it.
StatusOr<std::string> hardwareText(const Device &device, RankGroup &group,
                                   const SessionRequest &request,
                                   const RankEnvironment &env);

/// A warning if a run on the CPU leaves GPUs idle that this process sees, with
/// the command that uses them; else empty.
std::string idleGpusRemark(const Device &device, const LoadedModule &module,
                           const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNHARDWARE_H
