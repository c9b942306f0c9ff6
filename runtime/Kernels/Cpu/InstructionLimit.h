// SPDX-License-Identifier: MIT

// Keeps oneDNN to instructions that work on this machine.
//
// Some hypervisors announce a CPU's matrix tiles and hide how large they are
// (Intel SDM 2, CPUID leaf 1DH). oneDNN 2.6, and PyTorch's, then configure
// tiles of no size, and using those is an illegal instruction.

#ifndef QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H
#define QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H

namespace qlora {

/// To be called before anything else of oneDNN is: its first use fixes the
/// instructions. Any thread, any number of times. A limit that the user has set
/// (ONEDNN_MAX_CPU_ISA) stays.
void limitInstructions();

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CPU_INSTRUCTIONLIMIT_H
