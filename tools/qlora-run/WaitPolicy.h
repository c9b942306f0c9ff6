// SPDX-License-Identifier: MIT

// How long OpenMP's threads wait busily at the end of a loop before they
// sleep. libgomp's own 300,000 rounds are 3 to 15 ms: on CPUs that other
// processes use too, a thread then burns the time slice of the one that it
// waits for, and a step takes ten to forty times as long. A thousand rounds
// are 25 to 50 us, about what it takes to wake a thread that sleeps: nothing is
// lost where a run has its CPUs to itself.

#ifndef QLORA_TOOLS_QLORARUN_WAITPOLICY_H
#define QLORA_TOOLS_QLORARUN_WAITPOLICY_H

namespace qlora {

/// Bounds the wait of this process and of those that it starts, unless the
/// user has chosen one (OMP_WAIT_POLICY, GOMP_SPINCOUNT). libgomp reads the
/// variable when it is loaded, before any code of ours, so that the program
/// starts again, as the same process: call it before anything is opened.
void boundBusyWaiting(char **argv);

} // namespace qlora

#endif // QLORA_TOOLS_QLORARUN_WAITPOLICY_H
