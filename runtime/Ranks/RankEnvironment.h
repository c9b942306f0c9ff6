// SPDX-License-Identifier: MIT

// Reads this process's rank, the number of ranks and the address of rank 0 from
// the launcher's variables, in this order:
//
//   qlora-run --gpus N       the built-in launcher (Supervisor.h)
//   torchrun, PyTorchJob     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   mpirun of Open MPI       OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   mpirun of MPICH, Intel   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
//   srun                     SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID,
//                            SLURM_STEP_{NUM_TASKS,TASKS_PER_NODE}
//
// Rank 0 is at MASTER_ADDR:MASTER_PORT. The default address is the first host
// of a Slurm step, or this machine if all ranks are on it. The default port is
// 29500, or is computed from Slurm's job and step ids. torchrun itself listens
// on MASTER_PORT, so under torchrun the next port is used.
//
// Ranks prove with a secret that they belong to the same job. It is drawn by
// qlora-run, or is QLORA_JOB_SECRET: at least 16 random characters, the same on
// every rank. Other launchers give none, or a guessable id (Slurm's job,
// torchrun's --rdzv-id); a remark then warns the user.

#ifndef QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H
#define QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"
#include "runtime/Ranks/RankTimeLimits.h"

namespace qlora {

struct RankEnvironment {
  int rank = 0;
  int worldSize = 1;
  int localRank = 0;      ///< index among the ranks of this machine
  int localWorldSize = 1; ///< number of ranks on this machine
  std::string masterAddress = "127.0.0.1";
  int masterPort = 0;
  std::string secret; ///< the job's secret; may be empty
  /// A warning about the secret; empty if the secret is safe.
  std::string secretRemark;
  /// How long rank 0 waits for missing ranks. The known launchers start all
  /// ranks at once, but a rank's container may have to be pulled first.
  std::chrono::seconds patience = std::chrono::minutes(1);
  RankTimeLimits limits;
  /// The launcher's name for messages, such as "torchrun".
  std::string launcher = "none";

  bool isMain() const { return rank == 0; }
};

/// RankEnvironment::launcher of ranks that launchRanks started.
inline constexpr const char *kOwnLauncher = "qlora-run";
inline constexpr const char *kJobSecretVariable = "QLORA_JOB_SECRET";

/// Returns the value of an environment variable, or nullptr.
using GetVariable = std::function<const char *(const char *)>;

/// Reads the launcher's variables; without any, there is one rank. Variables
/// that contradict each other are an error that names them.
StatusOr<RankEnvironment> readRankEnvironment(const GetVariable &get);

/// Returns the first host of a Slurm node list: "a[3-7,9]-x,b" -> "a3-x".
std::string firstSlurmHost(std::string_view nodeList);

/// Returns a node's number of tasks from SLURM_STEP_TASKS_PER_NODE; 0 if it
/// lacks the node. "4(x2),3" means 4 tasks on nodes 0 and 1, and 3 on node 2.
int slurmTasksOfNode(std::string_view perNode, int node);

// The socket between a rank and the launcher that started it (Supervisor.h).
// The variable QLORA_RANK_CHANNEL contains its descriptor. The launcher sends
// the job's secret, so no command line contains it. Rank 0 also gets the
// listening socket, so no other program can take the port. A rank sends its
// error before it ends. Each message is one packet with JSON.

inline constexpr const char *kRankChannelVariable = "QLORA_RANK_CHANNEL";
inline constexpr size_t kMaxChannelBytes = 64 << 10;

/// A rank's end of the socket to its launcher.
class RankChannel {
public:
  /// Sets env.secret and removes QLORA_RANK_CHANNEL from the environment.
  /// Returns nullopt if launchRanks did not start this process.
  static StatusOr<std::optional<RankChannel>> open(RankEnvironment &env);

  /// Returns rank 0's socket for the rendezvous; closed on other ranks.
  FileDescriptor takeListeningSocket() { return std::move(listening); }

  /// Sends the launcher the error that ends this rank, and prints nothing.
  void reportError(const Status &status);

private:
  FileDescriptor socket;
  FileDescriptor listening;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H
