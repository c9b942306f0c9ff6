// SPDX-License-Identifier: MIT

// Functions of the software driver that the look-alikes of NVIDIA's libraries
// call. Except where noted, each locks the platform's mutex, because a thread
// of the driver may run operations at any time (Schedule.h).

#ifndef QLORA_TESTS_CUDA_DRIVER_HOOK_H
#define QLORA_TESTS_CUDA_DRIVER_HOOK_H

#include "runtime/Kernels/Cuda/CudaTypes.h"

#include <chrono>
#include <functional>
#include <string>

namespace qlora::platform {

/// Returns an empty text if [address, address + bytes) is inside of one live
/// allocation that the GPU can read, else an error.
std::string checkDeviceRange(const void *address, size_t bytes, int device);

/// Enqueues a library's work on a stream of the current context, or adds it to
/// the stream's capture. Returns a CUresult. Before the work runs, the driver
/// calls `mayRun` until it returns true, which means that other processes are
/// ready. `mayRun` is empty if no other process takes part.
int enqueueLibraryWork(CUstream stream, const char *what,
                       std::function<int()> work,
                       std::function<bool()> mayRun = {});

/// Advances the clock of events by `time`. A library's work calls this with the
/// time that a GPU would take.
void spendTime(std::chrono::nanoseconds time);

/// Returns the GPU of the calling thread's context, or -1. Needs no mutex.
int currentDevice();

/// Returns whether the stream is capturing.
bool isCapturing(CUstream stream);

/// Runs a few ready operations, because a GPU works while its host polls a
/// library. Returns whether any operation remains.
bool goOn();

/// Returns whether `kernel`, a unique name, may be enqueued on the stream now.
/// First use of a kernel loads it, which may wait for the GPU. So a capture
/// accepts only kernels that were used before; a rejection invalidates it.
bool mayUse(CUstream stream, const std::string &kernel);

/// If the test requests it, delays the host before a call and lets the GPU
/// work.
void delayHost();

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_DRIVER_HOOK_H
