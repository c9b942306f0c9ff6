// SPDX-License-Identifier: MIT

// Describes the hardware of a run, and GPUs that it leaves idle.

#ifndef QLORA_RUNTIME_SESSION_RUNHARDWARE_H
#define QLORA_RUNTIME_SESSION_RUNHARDWARE_H

#include <string>

#include "runtime/Base/Status.h"
#include "runtime/Device/Device.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// Returns a text such as "2 x NVIDIA H100 80GB HBM3" for GPUs or
/// "CPU, 2 ranks x 1 thread" for CPU ranks. All ranks call it.
StatusOr<std::string> hardwareText(const Device &device, RankGroup &group,
                                   const SessionRequest &request,
                                   const RankEnvironment &env);

/// Returns a warning, with the command that uses them, if a CPU run leaves
/// visible GPUs idle; else an empty string.
std::string idleGpusRemark(const Device &device, const LoadedModule &module,
                           const Options &options);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_RUNHARDWARE_H
