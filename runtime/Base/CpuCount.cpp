// SPDX-License-Identifier: MIT

// Reads affinity, both versions of control groups, and OMP_NUM_THREADS.

#include "runtime/Base/CpuCount.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

namespace qlora {

namespace fs = std::filesystem;

/// Whether a comma-separated list such as "cpu,cpuacct" contains `word`.
static bool listHas(const std::string &list, std::string_view word) {
  std::istringstream words(list);
  for (std::string one; std::getline(words, one, ',');)
    if (one == word)
      return true;
  return false;
}

/// Returns a group's limit in CPUs from cpu.max (control groups version 2): 1.5
/// for "150000 100000", nothing for "max 100000".
static std::optional<double> readCpuMax(const fs::path &group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && quota > 0 && period > 0)
    return quota / period;
  return std::nullopt;
}

/// Returns a group's limit in CPUs from the two files of control groups version
/// 1. A quota of -1 means no limit.
static std::optional<double> readCfsQuota(const fs::path &group) {
  std::ifstream quotaFile(group / "cpu.cfs_quota_us");
  std::ifstream periodFile(group / "cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quotaFile >> quota && periodFile >> period && quota > 0 && period > 0)
    return quota / period;
  return std::nullopt;
}

namespace {

/// A mount of control groups that limit CPUs. It shows the machine's complete
/// tree, or in a container the tree below `top`.
struct GroupMount {
  fs::path point, top;
  bool isUnified = false; ///< control groups version 2
};

} // namespace

/// Returns the mounts in /proc/self/mountinfo, whose lines are "31 23 0:28 TOP
/// POINT rw,relatime - TYPE SOURCE OPTIONS".
static std::vector<GroupMount> groupMounts(const std::string &root) {
  std::vector<GroupMount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t middle = line.find(" - ");
    if (middle == line.npos)
      continue;
    std::istringstream left(line), right(line.substr(middle + 3));
    std::string ignored, top, point, type, source, options;
    left >> ignored >> ignored >> ignored >> top >> point;
    right >> type >> source >> options;
    const bool isUnified = type == "cgroup2";
    if (isUnified || (type == "cgroup" && listHas(options, "cpu")))
      mounts.push_back({root + point, top, isUnified});
  }
  return mounts;
}

/// Returns the folder of this process's group in a mount, from the lines
/// "ID:CONTROLLERS:/PATH" of /proc/self/cgroup.
static fs::path ownGroup(const std::string &root, const GroupMount &mount) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == line.npos)
      continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.isUnified ? controllers.empty() : listHas(controllers, "cpu"))
      return fs::path(line.substr(second + 1)).lexically_normal();
  }
  return "/";
}

/// Returns the smallest quota, in CPUs, of this process's group and its
/// parents. For a group outside of the mount, returns the mount's own quota.
static double quotaOf(const std::string &root, const GroupMount &mount) {
  const fs::path below = ownGroup(root, mount).lexically_relative(mount.top);
  fs::path group = mount.point;
  double least = HUGE_VAL;
  const auto read = mount.isUnified ? readCpuMax : readCfsQuota;
  const auto take = [&] {
    least = std::min(least, read(group).value_or(least));
  };
  take();
  if (!below.empty() && *below.begin() == "..")
    return least;
  for (const fs::path &name : below) {
    group /= name;
    take();
  }
  return least;
}

static int affinityCpus() {
  // sched_getaffinity fails if the set is smaller than the kernel's.
  for (int most = CPU_SETSIZE; most <= CPU_SETSIZE << 8; most *= 2) {
    std::vector<cpu_set_t> set(static_cast<size_t>(most / CPU_SETSIZE));
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) == 0)
      return CPU_COUNT_S(bytes, set.data());
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

int usableCpus(const std::string &root) {
  double cpus = std::max(1, affinityCpus());
  for (const GroupMount &mount : groupMounts(root))
    cpus = std::min(cpus, std::ceil(quotaOf(root, mount)));
  return static_cast<int>(cpus);
}

/// Returns the first number in OMP_NUM_THREADS, which may have one for each
/// nesting level ("8,2"); 0 if the variable is not set.
static int outerThreads(const char *ompNumThreads) {
  const long number =
      ompNumThreads ? std::strtol(ompNumThreads, nullptr, 10) : 0;
  return static_cast<int>(std::clamp<long>(number, 0, 1 << 20));
}

int threadsPerRank(const ThreadRequest &request) {
  if (request.asked > 0)
    return request.asked;
  if (const int given = outerThreads(request.ompNumThreads))
    return given;
  return std::max(1, request.cpus / request.localRanks);
}

std::string threadsRemark(const ThreadRequest &request) {
  const int threads = threadsPerRank(request);
  const int share = std::max(1, request.cpus / request.localRanks);
  if (threads > share)
    return fmt::format("{} threads share {} CPUs and wait for one another; "
                       "--threads {} is faster",
                       threads * request.localRanks, request.cpus, share);
  if (request.asked > 0 || threads >= share)
    return "";
  return fmt::format("OMP_NUM_THREADS={} leaves {} of {} CPUs idle; --threads "
                     "{} uses them",
                     request.ompNumThreads,
                     request.cpus - threads * request.localRanks, request.cpus,
                     share);
}

std::string processorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != line.npos)
      return line.substr(line.find(": ") + 2);
  return "unknown";
}

} // namespace qlora
