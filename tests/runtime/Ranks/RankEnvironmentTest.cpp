// SPDX-License-Identifier: MIT

// Environment variables of every launcher, and errors.

#include "runtime/Ranks/RankEnvironment.h"

#include <gtest/gtest.h>

#include <map>

using namespace qlora;

static StatusOr<RankEnvironment>
read(const std::map<std::string, std::string> &variables) {
  return readRankEnvironment([&](const char *name) -> const char * {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(RankEnvironment, OneRankWithoutALauncher) {
  auto env = read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}); // a script
  EXPECT_EQ(env->worldSize, 1);
  EXPECT_TRUE(env->isMain());
}

TEST(RankEnvironment, Torchrun) {
  auto env = read({{"RANK", "5"},
                   {"WORLD_SIZE", "8"},
                   {"LOCAL_RANK", "1"},
                   {"LOCAL_WORLD_SIZE", "4"},
                   {"MASTER_ADDR", "node0"},
                   {"MASTER_PORT", "1234"},
                   {"TORCHELASTIC_RUN_ID", "abc"}});
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->rank, 5);
  EXPECT_EQ(env->localRank, 1);
  EXPECT_EQ(env->localWorldSize, 4);
  EXPECT_EQ(env->masterAddress, "node0");
  EXPECT_EQ(env->masterPort, 1235); // torchrun itself uses 1234
  EXPECT_EQ(env->secret, "abc");
  EXPECT_EQ(env->patience, std::chrono::minutes(1));
}

/// Ranks that are not started together get more time, because each may run in a
/// container whose image must first be downloaded.
TEST(RankEnvironment, RanksThatAreNotStartedTogetherAreWaitedForLonger) {
  auto env = read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->patience, std::chrono::minutes(5));
}

TEST(RankEnvironment, OpenMpiOnOneMachine) {
  auto env = read({{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->rank, 1);
  EXPECT_EQ(env->masterAddress, "127.0.0.1");
  EXPECT_EQ(env->masterPort, 29500);
}

TEST(RankEnvironment, PmiOnSeveralMachinesNeedsAnAddress) {
  auto env = read({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  EXPECT_EQ(env.status().message(),
            "MASTER_ADDR is not set, but PMI started 4 ranks, only 1 of "
            "them on this machine. Fix: on every rank, set MASTER_ADDR to "
            "the host of rank 0 and MASTER_PORT to a free port there");
}

/// Returns the variables of srun in Slurm 22.05 for three ranks on two of a
/// job's nodes.
static std::map<std::string, std::string> slurmStep() {
  return {{"SLURM_PROCID", "2"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_ID", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "1,2"},
          {"SLURM_JOB_NODELIST", "gpu[05-09,12],x"},
          {"SLURM_STEP_NODELIST", "gpu[07,12]"},
          {"SLURM_JOB_ID", "123456"}};
}

TEST(RankEnvironment, Slurm) {
  auto env = read(slurmStep());
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->launcher, "Slurm");
  EXPECT_EQ(env->rank, 2);
  EXPECT_EQ(env->worldSize, 3);
  EXPECT_EQ(env->localRank, 1);
  EXPECT_EQ(env->localWorldSize, 2);
  EXPECT_EQ(env->masterAddress, "gpu07");
  EXPECT_EQ(env->masterPort, 25456); // 20000 + 3456 + 2 * 1000
}

/// srun --mpi=pmi2 sets PMI's variables, except those for local ranks.
TEST(RankEnvironment, SlurmWithItsPmi) {
  auto variables = slurmStep();
  variables.insert({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  auto env = read(variables);
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->launcher, "Slurm");
  EXPECT_EQ(env->localRank, 1);
}

/// MPICH's mpirun starts a process per node with srun; that process starts the
/// ranks.
TEST(RankEnvironment, PmiOfAnMpirunInSlurm) {
  auto variables = slurmStep();
  variables.insert({{"PMI_RANK", "7"},
                    {"PMI_SIZE", "12"},
                    {"MPI_LOCALRANKID", "3"},
                    {"MPI_LOCALNRANKS", "4"},
                    {"MASTER_ADDR", "a"}});
  auto env = read(variables);
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->launcher, "PMI");
  EXPECT_EQ(env->rank, 7);
  EXPECT_EQ(env->localRank, 3);
}

/// A shell of salloc is a job step of one process, but has the job's
/// SLURM_NTASKS.
TEST(RankEnvironment, OneRankInAShellOfSlurm) {
  auto variables = slurmStep();
  variables["SLURM_PROCID"] = variables["SLURM_LOCALID"] = "0";
  variables["SLURM_NODEID"] = "0";
  variables["SLURM_STEP_NUM_TASKS"] = variables["SLURM_STEP_TASKS_PER_NODE"] =
      "1";
  auto env = read(variables);
  ASSERT_TRUE(env.isOk()) << env.status().message();
  EXPECT_EQ(env->worldSize, 1);
}

TEST(RankEnvironment, SlurmTasksOfNode) {
  const char *perNode = "4(x2),3,12(x10)";
  EXPECT_EQ(slurmTasksOfNode(perNode, 0), 4);
  EXPECT_EQ(slurmTasksOfNode(perNode, 1), 4);
  EXPECT_EQ(slurmTasksOfNode(perNode, 2), 3);
  EXPECT_EQ(slurmTasksOfNode(perNode, 12), 12);
  EXPECT_EQ(slurmTasksOfNode(perNode, 13), 0);
  EXPECT_EQ(slurmTasksOfNode("", 0), 0);
  auto variables = slurmStep();
  variables["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  EXPECT_EQ(read(variables).status().message(),
            "the variable SLURM_STEP_TASKS_PER_NODE expects from 1 to 3 ranks "
            "on node 1, but is '4(x2)'");
}

TEST(RankEnvironment, ContradictionsNameTheVariable) {
  EXPECT_EQ(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).status().message(),
            "the variable RANK expects a number from 0 to 1, but is '2'");
  EXPECT_FALSE(read({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).isOk());
  EXPECT_FALSE(read({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).isOk());
  EXPECT_FALSE(read({{"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_PORT", "99999"},
                     {"MASTER_ADDR", "a"}})
                   .isOk());
}

TEST(RankEnvironment, SecretsThatCanBeGuessedAreNamed) {
  const std::map<std::string, std::string> two = {
      {"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(read(two)->secretRemark,
            "anyone who can reach rank 0 at 127.0.0.1 can join this job: Open "
            "MPI gives it no secret. Fix: set QLORA_JOB_SECRET to the same "
            "random text on every rank");
  auto with = [&](const char *name, const char *value) {
    auto variables = two;
    variables[name] = value;
    return read(variables);
  };
  EXPECT_NE(with("SLURM_JOB_ID", "123456")->secretRemark.find("a guessable"),
            std::string::npos);
  EXPECT_NE(with("TORCHELASTIC_RUN_ID", "none")->secretRemark.find("guessable"),
            std::string::npos);
  const char *random = "0123456789abcdef";
  EXPECT_EQ(with("TORCHELASTIC_RUN_ID", random)->secretRemark, "");
  EXPECT_EQ(with("QLORA_JOB_SECRET", random)->secret, random);
  EXPECT_EQ(with("QLORA_JOB_SECRET", random)->secretRemark, "");
  EXPECT_EQ(with("QLORA_JOB_SECRET", "short").status().message(),
            "the variable QLORA_JOB_SECRET has 5 characters, but needs 16. "
            "Fix: give every rank the same output of 'openssl rand -hex 8'");
  EXPECT_EQ(read({})->secretRemark, "");
}

TEST(RankEnvironment, FirstSlurmHost) {
  EXPECT_EQ(firstSlurmHost("a"), "a");
  EXPECT_EQ(firstSlurmHost("a,b[1-2]"), "a");
  EXPECT_EQ(firstSlurmHost("n[3,5]-ib,x"), "n3-ib");
  EXPECT_EQ(firstSlurmHost("rack[1-2]n[03-04]"), "rack1n03");
  EXPECT_EQ(firstSlurmHost("n[3"), "n3");
  EXPECT_EQ(firstSlurmHost(""), "");
}
