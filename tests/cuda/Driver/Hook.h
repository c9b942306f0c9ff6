// SPDX-License-Identifier: MIT

// What the look-alikes of NVIDIA's libraries ask of the software driver. Each
// function takes the platform's mutex, since a thread of the driver may run
// operations at any time (Schedule.h).

#ifndef QLORA_TESTS_CUDA_DRIVER_HOOK_H
#define QLORA_TESTS_CUDA_DRIVER_HOOK_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <chrono>
#include <functional>
#include <string>

namespace qlora::platform {

/// Empty where [address, address + bytes) is inside of one live allocation
/// that the card reads; else what is wrong.
std::string checkDeviceRange(const void *address, size_t bytes, int device);

/// Puts a library's work on a stream of the current context, or into its
/// capture. A CUresult.
/// `mayRun`: whether other processes are where this work needs them, asked
/// again and again from its turn on; empty: it needs none.
int enqueueLibraryWork(CUstream stream, const char *what,
                       std::function<int()> work,
                       std::function<bool()> mayRun = {});

/// Called by a library's work as it runs: what it would take on a card, by the
/// clock of events.
void spendTime(std::chrono::nanoseconds time);

/// The card of the calling thread's context, or -1. Needs no mutex.
int currentDevice();

/// Whether work for that stream goes into a capture.
bool isCapturing(CUstream stream);

/// The card works while its host asks a library again and again: runs a few
/// operations, if they may run. Whether any is left.
bool goOn();

/// The driver and its libraries load a kernel when it is first used, which may
/// wait for the card: whether `kernel`, by a name that no other has, may be put
/// on the stream now. Inside of a capture only what was used before may; a
/// refusal spoils the capture.
bool mayUse(CUstream stream, const std::string &kernel);

/// Before a call, where the test asks for it: the host is late, and the card
/// goes on.
void delayHost();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_HOOK_H
