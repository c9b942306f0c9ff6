// SPDX-License-Identifier: MIT

// A first SIGINT, SIGTERM or SIGHUP (a closed terminal, unless nohup has it
// ignored) asks the run to end after the current step, with its adapter
// written; a second one, a second later or more, kills the process at once.

#ifndef QLORA_RUNTIME_BASE_STOPSIGNAL_H
#define QLORA_RUNTIME_BASE_STOPSIGNAL_H

namespace qlora {

/// Takes the signals over; call once, before the first step.
void installStopSignals();

/// Whether SIGUSR1 has come that is not answered yet: a request for a
/// checkpoint, as Slurm sends it some time before a job ends. Before
/// installStopSignals() it is ignored, where ignoreSaveSignal() was called.
bool isSaveAsked();
/// Answers what has come to this process, or comes within a second: launchers
/// signal each rank, and what one has asked of all the others need not repeat.
void answerSaveSignal();
void ignoreSaveSignal();

/// The signal that came, or 0. A run that ends because of it exits with
/// 128 + the signal: 130 or 143.
int stopSignal();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_STOPSIGNAL_H
