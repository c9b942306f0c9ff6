// SPDX-License-Identifier: MIT

// CPU quotas of both versions of control groups, and the settings that
// determine the number of threads.

#include "runtime/Base/CpuCount.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <sched.h>

#include <cerrno>

#include "tests/runtime/TemporaryFolder.h"

using namespace qlora;
namespace fs = std::filesystem;

/// Number of CPUs of a fake machine; 0 for the real machine.
static size_t madeUpCpus = 0;

/// Replaces the C library's function. Like the kernel, it returns an error for
/// a set that is too small.
extern "C" int sched_getaffinity(pid_t process, size_t bytes,
                                 cpu_set_t *set) noexcept {
  using Function = int (*)(pid_t, size_t, cpu_set_t *);
  static const auto next =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "sched_getaffinity"));
  if (madeUpCpus == 0)
    return next(process, bytes, set);
  if (bytes * 8 < madeUpCpus) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(bytes, set);
  for (size_t cpu = 0; cpu < madeUpCpus; ++cpu)
    CPU_SET_S(cpu, bytes, set);
  return 0;
}

namespace {

/// Writes /proc and /sys files of a fake machine with this process's affinity.
class CpuCount : public testing::Test {
protected:
  void SetUp() override {
    cpu_set_t set;
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    affinity = CPU_COUNT(&set);
  }
  void file(const std::string &path, const std::string &text) {
    fs::create_directories(fs::path(machine.path(path)).parent_path());
    machine.write(path, text);
  }
  void mount(const std::string &line) {
    mounts += "31 23 0:28 " + line + "\n";
    file("proc/self/mountinfo", mounts);
  }
  int cpus() { return usableCpus(machine.path()); }

  TemporaryFolder machine;
  std::string mounts;
  int affinity = 0;
};

} // namespace

TEST_F(CpuCount, WithoutGroupsItIsTheAffinity) {
  EXPECT_EQ(cpus(), affinity);
  EXPECT_GE(usableCpus(), 1);
  EXPECT_LE(usableCpus(), affinity);
}

TEST_F(CpuCount, LargeMachinesHaveThemAll) {
  for (const size_t count : {1024, 1025, 5000}) {
    madeUpCpus = count;
    EXPECT_EQ(cpus(), static_cast<int>(count));
  }
  madeUpCpus = 0;
}

TEST_F(CpuCount, AnUnifiedGroupLimits) {
  mount("/ /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw");
  file("proc/self/cgroup", "0::/user.slice/run.scope\n");
  file("sys/fs/cgroup/user.slice/run.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), affinity);
  // Half a CPU is rounded up; limits of the enclosing group apply too.
  file("sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpus(), 1);
  file("sys/fs/cgroup/user.slice/cpu.max", "100000000 100000\n");
  EXPECT_EQ(cpus(), affinity);
}

TEST_F(CpuCount, AContainerSeesItsOwnGroupAsTheMount) {
  mount("/docker/f00 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup "
        "rw,cpu,cpuacct");
  mount("/ /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory");
  file("proc/self/cgroup", "5:memory:/\n4:cpu,cpuacct:/docker/f00\n");
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), affinity);
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "20000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST_F(CpuCount, AGroupOutsideOfTheMountLeavesTheMounts) {
  mount("/pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
  file("proc/self/cgroup", "0::/../other\n");
  file("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpus(), 1);
}

TEST(ThreadsPerRank, TheFlagThenTheVariableThenTheShare) {
  EXPECT_EQ(threadsPerRank({3, "5", 8, 2}), 3);
  EXPECT_EQ(threadsPerRank({0, "5", 8, 2}), 5);
  EXPECT_EQ(threadsPerRank({0, "6,2", 8, 2}), 6);
  EXPECT_EQ(threadsPerRank({0, nullptr, 8, 2}), 4);
  EXPECT_EQ(threadsPerRank({0, "", 8, 3}), 2);
  EXPECT_EQ(threadsPerRank({0, "many", 2, 4}), 1);
}

TEST(ThreadsPerRank, TooFewAndTooManyAreSaid) {
  EXPECT_EQ(threadsRemark({64, nullptr, 2, 1}),
            "64 threads share 2 CPUs and wait for one another; --threads 2 is "
            "faster");
  EXPECT_EQ(threadsRemark({0, nullptr, 2, 64}), "");
  EXPECT_EQ(threadsRemark({0, "1", 8, 2}),
            "OMP_NUM_THREADS=1 leaves 6 of 8 CPUs idle; --threads 4 uses "
            "them");
  EXPECT_EQ(threadsRemark({0, "4", 8, 2}), "");
  EXPECT_EQ(threadsRemark({2, "1", 8, 2}), "");
  EXPECT_EQ(threadsRemark({0, nullptr, 8, 3}), "");
}
