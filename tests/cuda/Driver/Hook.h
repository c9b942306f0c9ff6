// SPDX-License-Identifier: MIT

// Functions of the software driver that the look-alikes of NVIDIA's libraries
// call. Each takes the platform's mutex, except where noted, since a thread of
// the driver may run operations at any time (Schedule.h).

#ifndef QLORA_TESTS_CUDA_DRIVER_HOOK_H
#define QLORA_TESTS_CUDA_DRIVER_HOOK_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <chrono>
#include <functional>
#include <string>

namespace qlora::platform {

/// Returns what is wrong with [address, address + bytes), or an empty text if
/// it is inside of one live allocation that the GPU can read.
std::string checkDeviceRange(const void *address, size_t bytes, int device);

/// Enqueues a library's work on a stream of the current context, or adds it to
/// the stream's capture; returns a CUresult. When the work is next, `mayRun` is
/// called repeatedly until it returns true, when other processes are ready. It
/// is empty if no other process takes part.
int enqueueLibraryWork(CUstream stream, const char *what,
                       std::function<int()> work,
                       std::function<bool()> mayRun = {});

/// Called by a library's work when it runs: advances the clock of events by the
/// time that a GPU would take.
void spendTime(std::chrono::nanoseconds time);

/// Returns the GPU of the calling thread's context, or -1. Needs no mutex.
int currentDevice();

/// Returns whether work for that stream goes into a capture.
bool isCapturing(CUstream stream);

/// Runs a few operations that are ready: the GPU works while its host polls a
/// library. Returns whether any operation remains.
bool goOn();

/// Returns whether `kernel`, a unique name, may be enqueued on the stream now.
/// The driver and its libraries load a kernel on first use, which may wait for
/// the GPU. In a capture only kernels used before may run; a rejection
/// invalidates the capture.
bool mayUse(CUstream stream, const std::string &kernel);

/// Called before a call: delays the host and lets the GPU work, if the test
/// requests it.
void delayHost();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_HOOK_H
