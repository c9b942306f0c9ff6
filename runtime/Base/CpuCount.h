// SPDX-License-Identifier: MIT

// Determines how many CPUs this process may use, and how many compute threads
// its rank has. The number of threads comes from --threads, else from the
// environment variable OMP_NUM_THREADS. If neither is given, the CPUs that this
// process may use are divided among the ranks of this machine.
//
// A process may use the CPUs of its affinity (taskset, Slurm, cpusets), up to
// the quota of each of its control groups (docker --cpus, a Kubernetes limit).

#ifndef QLORA_RUNTIME_BASE_CPUCOUNT_H
#define QLORA_RUNTIME_BASE_CPUCOUNT_H

#include <string>

namespace qlora {

/// Returns the number of CPUs that this process may use, at least 1. Rounds a
/// quota up. `root`: replaces the root folder "/" in tests.
int usableCpus(const std::string &root = "");

/// Inputs to the number of threads of a rank.
struct ThreadRequest {
  int asked = 0;                       ///< --threads; 0: not given
  const char *ompNumThreads = nullptr; ///< environment variable, or null
  int cpus = 1;                        ///< usableCpus()
  int localRanks = 1;
};

int threadsPerRank(const ThreadRequest &request);

/// Returns a message if there are more threads than CPUs, or if OMP_NUM_THREADS
/// leaves CPUs idle (torchrun sets it to 1). Else returns an empty string.
std::string threadsRemark(const ThreadRequest &request);

/// Returns the name in /proc/cpuinfo, "AMD EPYC 9B45"; or "unknown".
std::string processorName();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CPUCOUNT_H
