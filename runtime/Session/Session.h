// SPDX-License-Identifier: MIT

// Runs one rank of a training, from train.so and options to an adapter:
//
//   load and check the module, resolve the options (Options.h)
//   meet the other ranks (RankGroup.h)
//   claim the output folder (OutputFolder.h)
//   open the device that the module is for
//   read the data; JSONL is tokenised once per machine (TokenCache.h)
//   refuse ranks that were started differently (RankConsistencyCheck.h)
//   bind the weights, allocate every arena
//   print the plan; evaluate; train; evaluate; write the adapter
//
// Only rank 0 writes files and standard output.

#ifndef QLORA_RUNTIME_SESSION_SESSION_H
#define QLORA_RUNTIME_SESSION_SESSION_H

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Session/SessionRequest.h"

namespace qlora {

/// Runs this rank to its end. Returns the exit code: 0, or 128 + the number of
/// a signal that stopped it. `listening`: RankChannel's socket, or closed.
StatusOr<int> runSession(const SessionRequest &request,
                         const RankEnvironment &env, FileDescriptor listening);

} // namespace qlora

#endif // QLORA_RUNTIME_SESSION_SESSION_H
