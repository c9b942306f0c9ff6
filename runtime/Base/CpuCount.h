// SPDX-License-Identifier: MIT

// Determines how many CPUs this process may use, and how many compute threads
// its rank has. The first of these that is given sets the number of threads:
//
//   --threads N        for each rank
//   OMP_NUM_THREADS    for each process, as in every OpenMP program
//   otherwise          the CPUs that this process may use, divided among the
//                      ranks of this machine
//
// A process may use the CPUs of its affinity (taskset, Slurm, cpusets), up to
// the quota of each of its control groups (docker --cpus, a Kubernetes limit).

#ifndef QLORA_RUNTIME_BASE_CPUCOUNT_H
#define QLORA_RUNTIME_BASE_CPUCOUNT_H

#include <string>

namespace qlora {

/// Returns at least 1; a quota is rounded up. `root`: the folder with proc/ and
/// the control group mounts; empty: the real root.
int usableCpus(const std::string &root = "");

/// Inputs to the number of threads of a rank.
struct ThreadRequest {
  int asked = 0;                       ///< --threads; 0: not given
  const char *ompNumThreads = nullptr; ///< environment variable, or null
  int cpus = 1;                        ///< usableCpus()
  int localRanks = 1;
};

int threadsPerRank(const ThreadRequest &request);

/// Returns a message if OMP_NUM_THREADS, which torchrun sets to 1, leaves CPUs
/// idle, or if there are more threads than CPUs; else empty.
std::string threadsRemark(const ThreadRequest &request);

/// Returns the name in /proc/cpuinfo, "AMD EPYC 9B45"; or "unknown".
std::string processorName();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CPUCOUNT_H
