// SPDX-License-Identifier: MIT

// The first SIGINT, SIGTERM or SIGHUP (a closed terminal, unless nohup ignores
// it) ends the run after the current step and writes its adapter. A second one,
// at least a second later, kills the process at once.

#ifndef QLORA_RUNTIME_BASE_STOPSIGNAL_H
#define QLORA_RUNTIME_BASE_STOPSIGNAL_H

namespace qlora {

/// Installs the signal handlers; call once, before the first step.
void installStopSignals();

/// Whether SIGUSR1, which Slurm can send before a job ends, has requested a
/// checkpoint that is not answered yet. Call ignoreSaveSignal() early, because
/// SIGUSR1 would kill a process before installStopSignals().
bool isSaveAsked();
/// Marks requests as answered, and also requests within the next second: a
/// launcher signals each rank, and one rank's request applies to all.
void answerSaveSignal();
void ignoreSaveSignal();

/// Returns the first stop signal that arrived, or 0. SIGHUP counts as SIGTERM.
/// A run that the signal ends exits with 128 + the signal: 130 or 143.
int stopSignal();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_STOPSIGNAL_H
