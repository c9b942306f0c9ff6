// SPDX-License-Identifier: MIT

// How many CPUs there are for this process, and how many threads its rank
// computes with. In this order:
//
//   --threads N        for each rank
//   OMP_NUM_THREADS    for each process, as in every OpenMP program
//   otherwise          the CPUs that this process may use, divided among the
//                      ranks of this machine
//
// A process may use the CPUs of its affinity (taskset, Slurm, cpusets), and of
// those no more than the quota of any control group that it is in (docker
// --cpus, a Kubernetes limit).

#ifndef QLORA_RUNTIME_BASE_CPUCOUNT_H
#define QLORA_RUNTIME_BASE_CPUCOUNT_H

#include <string>

namespace qlora {

/// At least 1; a quota is rounded up. `root`: the folder that has proc/ and
/// the mounts of control groups; empty: this system's.
int usableCpus(const std::string &root = "");

/// What decides about the threads of a rank.
struct ThreadRequest {
  int asked = 0;                       ///< --threads; 0: not given
  const char *ompNumThreads = nullptr; ///< of the environment, or null
  int cpus = 1;                        ///< usableCpus()
  int localRanks = 1;
};

int threadsPerRank(const ThreadRequest &request);

/// A line for people where OMP_NUM_THREADS, which torchrun sets to 1, leaves
/// CPUs idle, or where threads are more than CPUs; else empty.
std::string threadsRemark(const ThreadRequest &request);

/// "AMD EPYC 9B45", as /proc/cpuinfo has it; "unknown" where it does not.
std::string processorName();

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_CPUCOUNT_H
