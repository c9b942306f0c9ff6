// SPDX-License-Identifier: MIT

// Which rank of how many this process is, and where rank 0 can be reached, as
// the launcher said. In this order:
//
//   qlora-run --gpus N       our own launcher (Supervisor.h)
//   torchrun, PyTorchJob     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   mpirun of Open MPI       OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}
//   mpirun of MPICH, Intel   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
//   srun                     SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID,
//                            SLURM_STEP_{NUM_TASKS,TASKS_PER_NODE}
//
// Rank 0 is at MASTER_ADDR:MASTER_PORT. Without MASTER_ADDR it is the first
// host of a Slurm step, or this machine when all ranks are on it. Without
// MASTER_PORT it is 29500, or one made of the numbers of Slurm's job and step.
// torchrun listens on MASTER_PORT itself, so under it we take the next one.
//
// Ranks prove to each other that they are of one job by a secret: the one that
// qlora-run draws, or QLORA_JOB_SECRET, the same at least 16 random characters
// on every rank. Other launchers give none, or a number that can be guessed
// (Slurm's job, torchrun's --rdzv-id): a remark says so.

#ifndef QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H
#define QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "runtime/Base/FileDescriptor.h"
#include "runtime/Base/Status.h"

namespace qlora {

struct RankEnvironment {
  int rank = 0;
  int worldSize = 1;
  int localRank = 0;      ///< among the ranks of this machine
  int localWorldSize = 1; ///< ranks of this machine
  std::string masterAddress = "127.0.0.1";
  int masterPort = 0;
  std::string secret; ///< what strangers do not know; may be empty
  /// What a user should know of it: "" where it is good.
  std::string secretRemark;
  /// How long rank 0 waits for ranks that have not come. The launchers that we
  /// know start all of them at once; where each is a container of its own, it
  /// may have to be fetched first.
  std::chrono::seconds patience = std::chrono::minutes(1);
  /// Says who launched us, for messages: "torchrun".
  std::string launcher = "none";

  bool isMain() const { return rank == 0; }
};

/// RankEnvironment::launcher of ranks that launchRanks started.
inline constexpr const char *kOwnLauncher = "qlora-run";
inline constexpr const char *kJobSecretVariable = "QLORA_JOB_SECRET";

/// The value of an environment variable, or nullptr.
using GetVariable = std::function<const char *(const char *)>;

/// One rank when no launcher has left its variables. Variables that
/// contradict each other are an error that names them.
StatusOr<RankEnvironment> readRankEnvironment(const GetVariable &get);

/// The first host of a Slurm node list: "a[3-7,9]-x,b" -> "a3-x".
std::string firstSlurmHost(std::string_view nodeList);

/// Of SLURM_STEP_TASKS_PER_NODE: "4(x2),3" is 4 of nodes 0 and 1, and 3 of
/// node 2; 0 where it has no such node.
int slurmTasksOfNode(std::string_view perNode, int node);

// The socket between a rank and the launcher that started it (Supervisor.h).
// Its number is in the variable QLORA_RANK_CHANNEL. The launcher sends the
// job's secret, and to rank 0 also the number of the inherited socket that the
// store listens on; the rank sends back its error before it ends. So no secret
// is on a command line and no port can be taken in between. Each message is
// one packet of JSON.

inline constexpr const char *kRankChannelVariable = "QLORA_RANK_CHANNEL";
inline constexpr size_t kMaxChannelBytes = 64 << 10;

/// A rank's end of the socket to its launcher.
class RankChannel {
public:
  /// nullopt when we were not started by launchRanks. Fills in the secret and
  /// takes QLORA_RANK_CHANNEL out of the environment.
  static StatusOr<std::optional<RankChannel>> open(RankEnvironment &env);

  /// Rank 0: the socket that the store listens on. Closed on other ranks.
  FileDescriptor takeListeningSocket() { return std::move(listening); }

  /// Tells the launcher why this rank ends. Nothing is printed here.
  void reportError(const Status &status);

private:
  FileDescriptor socket;
  FileDescriptor listening;
};

} // namespace qlora

#endif // QLORA_RUNTIME_RANKS_RANKENVIRONMENT_H
