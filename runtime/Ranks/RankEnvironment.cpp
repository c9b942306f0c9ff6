// SPDX-License-Identifier: MIT

// Reads the variables of launchers; exchanges messages with the built-in one.

#include "runtime/Ranks/RankEnvironment.h"

#include "runtime/Base/JsonText.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace qlora {

namespace {

constexpr int kDefaultPort = 29500; ///< PyTorch's default
constexpr int kMaxRanks = 1 << 20;
constexpr size_t kSecretCharacters = 16;

/// The variables in which a launcher passes the rank and the number of ranks,
/// in the job and on this machine. An empty name: not passed by the launcher.
struct Launcher {
  const char *name;
  const char *rank, *worldSize, *localRank, *localWorldSize;
};

const Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    // srun sets SLURM_STEP_NUM_TASKS for each rank. SLURM_NTASKS would not do:
    // the shell of salloc has it too, and is not a rank.
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

} // namespace

static Status readNumber(const GetVariable &get, const char *name, int low,
                         int high, int &value) {
  const char *text = *name ? get(name) : nullptr;
  if (!text)
    return Status::ok();
  const char *end = text + std::strlen(text);
  auto [stop, error] = std::from_chars(text, end, value);
  if (error == std::errc() && stop == end && value >= low && value <= high)
    return Status::ok();
  return Status::invalid("the variable {} expects a number from {} to {}, but "
                         "is '{}'",
                         name, low, high, text);
}

static bool areEqual(const char *left, const char *right) {
  return left && right && !std::strcmp(left, right);
}

/// Whether srun set the PMI variables. With --mpi=pmi2, the default of some
/// clusters, it sets PMI_RANK and PMI_SIZE, but not MPI_LOCALRANKID.
static bool isPmiOfSlurm(const GetVariable &get) {
  return areEqual(get("PMI_RANK"), get("SLURM_PROCID")) &&
         areEqual(get("PMI_SIZE"), get("SLURM_STEP_NUM_TASKS"));
}

static const Launcher *findLauncher(const GetVariable &get) {
  for (const Launcher &launcher : kLaunchers) {
    if (!std::strcmp(launcher.name, "PMI") && isPmiOfSlurm(get))
      continue;
    if (get(launcher.rank) && get(launcher.worldSize))
      return &launcher;
  }
  return nullptr;
}

int slurmTasksOfNode(std::string_view perNode, int node) {
  while (!perNode.empty()) {
    const std::string_view part = perNode.substr(0, perNode.find(','));
    perNode.remove_prefix(std::min(part.size() + 1, perNode.size()));
    int tasks = 0, nodes = 1;
    const char *end = part.data() + part.size();
    const char *rest = std::from_chars(part.data(), end, tasks).ptr;
    if (end - rest > 2) // the repetition in "4(x2)"
      std::from_chars(rest + 2, end, nodes);
    if (node < nodes)
      return tasks;
    node -= nodes;
  }
  return 0;
}

static Status readSlurmTasks(const GetVariable &get, RankEnvironment &env) {
  const char *text = get("SLURM_STEP_TASKS_PER_NODE");
  if (!text)
    return Status::ok();
  int node = 0;
  QLORA_RETURN_IF_ERROR(readNumber(get, "SLURM_NODEID", 0, kMaxRanks, node));
  env.localWorldSize = slurmTasksOfNode(text, node);
  if (env.localWorldSize >= 1 && env.localWorldSize <= env.worldSize)
    return Status::ok();
  return Status::invalid("the variable SLURM_STEP_TASKS_PER_NODE expects from "
                         "1 to {} ranks on node {}, but is '{}'",
                         env.worldSize, node, text);
}

std::string firstSlurmHost(std::string_view nodeList) {
  std::string host;
  size_t at = 0;
  while (at < nodeList.size() && nodeList[at] != ',') {
    if (nodeList[at] != '[') {
      host += nodeList[at++];
      continue;
    }
    const std::string_view numbers = nodeList.substr(at + 1);
    host += numbers.substr(0, numbers.find_first_of("-,]"));
    at = nodeList.find(']', at);
    at = at == nodeList.npos ? nodeList.size() : at + 1;
  }
  return host;
}

static Status readMaster(const GetVariable &get, RankEnvironment &env) {
  bool isSlurm = env.launcher == "Slurm";
  if (const char *address = get("MASTER_ADDR"))
    env.masterAddress = address;
  else if (const char *nodes = get("SLURM_STEP_NODELIST"); isSlurm && nodes)
    env.masterAddress = firstSlurmHost(nodes);
  else if (env.localWorldSize < env.worldSize)
    return Status::invalid(
        "MASTER_ADDR is not set, but {} started {} ranks, only {} of them on "
        "this machine. Fix: on every rank, set MASTER_ADDR to the host of rank "
        "0 and MASTER_PORT to a free port there",
        env.launcher, env.worldSize, env.localWorldSize);
  env.masterPort = kDefaultPort;
  if (isSlurm) {
    int job = 0, step = 0;
    QLORA_RETURN_IF_ERROR(readNumber(get, "SLURM_JOB_ID", 0, 1 << 30, job));
    QLORA_RETURN_IF_ERROR(readNumber(get, "SLURM_STEP_ID", 0, 1 << 30, step));
    // The port differs between steps of a job, and between successive jobs.
    env.masterPort = 20000 + (job % 10000 + step % 10 * 1000) % 10000;
  }
  QLORA_RETURN_IF_ERROR(
      readNumber(get, "MASTER_PORT", 1, 65535, env.masterPort));
  const bool isElastic = get("TORCHELASTIC_RUN_ID");
  if (isElastic)
    env.masterPort += env.masterPort < 65535 ? 1 : -1;
  // PyTorchJob sets torchrun's variables, but starts ranks minutes apart.
  if (env.launcher == "torchrun" && !isElastic)
    env.patience = std::chrono::minutes(5);
  return Status::ok();
}

static Status readSecret(const GetVariable &get, RankEnvironment &env) {
  if (const char *secret = get(kJobSecretVariable)) {
    env.secret = secret;
    if (env.secret.size() >= kSecretCharacters)
      return Status::ok();
    return Status::invalid(
        "the variable {} has {} characters, but needs {}. Fix: give every rank "
        "the same output of 'openssl rand -hex {}'",
        kJobSecretVariable, env.secret.size(), kSecretCharacters,
        kSecretCharacters / 2);
  }
  if (const char *run = get("TORCHELASTIC_RUN_ID"))
    env.secret = run;
  else if (const char *job = get("SLURM_JOB_ID"); job)
    env.secret = job;
  if (env.worldSize > 1 && env.secret.size() < kSecretCharacters)
    env.secretRemark = fmt::format(
        "anyone who can reach rank 0 at {} can join this job: {} gives it {} "
        "secret. Fix: set {} to the same random text on every rank",
        env.masterAddress, env.launcher,
        env.secret.empty() ? "no" : "a guessable", kJobSecretVariable);
  return Status::ok();
}

StatusOr<RankEnvironment> readRankEnvironment(const GetVariable &get) {
  RankEnvironment env;
  const Launcher *launcher = findLauncher(get);
  if (!launcher)
    return env;
  env.launcher = launcher->name;
  QLORA_RETURN_IF_ERROR(
      readNumber(get, launcher->worldSize, 1, kMaxRanks, env.worldSize));
  QLORA_RETURN_IF_ERROR(
      readNumber(get, launcher->rank, 0, env.worldSize - 1, env.rank));
  if (env.launcher == "Slurm")
    QLORA_RETURN_IF_ERROR(readSlurmTasks(get, env));
  QLORA_RETURN_IF_ERROR(readNumber(get, launcher->localWorldSize, 1,
                                   env.worldSize, env.localWorldSize));
  QLORA_RETURN_IF_ERROR(readNumber(get, launcher->localRank, 0,
                                   env.localWorldSize - 1, env.localRank));
  if (env.worldSize > 1)
    QLORA_RETURN_IF_ERROR(readMaster(get, env));
  QLORA_RETURN_IF_ERROR(readSecret(get, env));
  return env;
}

using nlohmann::json;

StatusOr<std::optional<RankChannel>> RankChannel::open(RankEnvironment &env) {
  const char *number = getenv(kRankChannelVariable);
  if (!number)
    return std::optional<RankChannel>();
  RankChannel channel;
  channel.socket = FileDescriptor(std::atoi(number));
  unsetenv(kRankChannelVariable);
  fcntl(channel.socket.get(), F_SETFD, FD_CLOEXEC);
  std::string text(kMaxChannelBytes, '\0');
  ssize_t bytes = recv(channel.socket.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, bytes)));
  json hello = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!hello.is_object())
    return Status::error(StatusCode::kAborted,
                         "{} is set, but no launcher answers. Fix: unset it",
                         kRankChannelVariable);
  env.secret = hello.value("secret", "");
  env.secretRemark.clear();
  env.launcher = kOwnLauncher;
  if (int listening = hello.value("listening", -1); listening >= 0) {
    fcntl(listening, F_SETFD, FD_CLOEXEC);
    channel.listening = FileDescriptor(listening);
  }
  return std::optional<RankChannel>(std::move(channel));
}

void RankChannel::reportError(const Status &status) {
  std::string text =
      dumpJson(json{{"code", static_cast<int>(status.code())},
                    {"message", status.message().substr(0, 4096)}});
  // Ignore errors: send() fails if the launcher has ended.
  if (send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
    return;
}

} // namespace qlora
