// SPDX-License-Identifier: MIT

// The trace file, a profile's table, and --profile of qlora-run.

#include <gtest/gtest.h>

#include "runtime/Predict/Calibrate.h"
#include "runtime/Watch/Profiler.h"
#include "tests/runtime/Session/SessionFixture.h"

namespace fs = std::filesystem;
using namespace qlora;
using nlohmann::json;

namespace {
class TraceFileTest : public testing::Test {
protected:
  void SetUp() override {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  fs::path folder =
      fs::path(testing::TempDir()) / ("trace" + std::to_string(getpid()));
  std::string path = (folder / "trace.json").string();
};

class ProfileTest : public SessionFixture {
protected:
  std::vector<std::string> flags(std::vector<std::string> more) {
    std::vector<std::string> all = {
        "--train-file", at("tokens.safetensors"), "--output-dir", at("out"),
        "--max-steps", "6"};
    if (std::ranges::find(more, "--profile") == more.end())
      all.insert(all.end(), {"--profile", at("trace.json")});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// Returns the slices of a rank's track in the trace, in the order of the
  /// file.
  std::vector<json> slices(int rank, int track) {
    std::vector<json> found;
    const json trace = json::parse(contents(folder / "trace.json"));
    for (const json &event : trace["traceEvents"])
      if (event["ph"] == "X" && event["pid"] == rank && event["tid"] == track)
        found.push_back(event);
    return found;
  }
};
} // namespace

TEST_F(TraceFileTest, HasNamesAndSlicesInMicroseconds) {
  auto trace = TraceFile::open(path);
  ASSERT_TRUE(trace.isOk()) << trace.status().message();
  (*trace)->nameProcess(2, "rank 2");
  (*trace)->nameTrack(2, 1, "compute");
  (*trace)->add({2, 1, "a \"label\" \xff", "GEMM", 1500, 4000, {{"bytes", 8}}});
  (*trace)->add({2, 1, "b", "wait", 4000, 4001});
  ASSERT_TRUE((*trace)->commit({{"steps", 3}}).isOk());
  const json read = json::parse(contents(path));
  const json &events = read["traceEvents"];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["args"]["name"], "rank 2");
  EXPECT_EQ(events[2]["args"]["name"], "compute");
  EXPECT_EQ(events[2]["tid"], 1);
  EXPECT_EQ(events[4], (json{{"ph", "X"},
                             {"name", "a \"label\" \xef\xbf\xbd"},
                             {"cat", "GEMM"},
                             {"pid", 2},
                             {"tid", 1},
                             {"ts", 1.5},
                             {"dur", 2.5},
                             {"args", {{"bytes", 8}}}}));
  EXPECT_EQ(events[5]["dur"], 0.001);
  EXPECT_EQ(read["otherData"]["steps"], 3);
}

TEST_F(TraceFileTest, AnUnfinishedOneLeavesTheEarlierFile) {
  std::ofstream(path) << "earlier";
  {
    auto trace = TraceFile::open(path);
    ASSERT_TRUE(trace.isOk());
    (*trace)->add({0, 0, "a", "b", 0, 1});
  }
  EXPECT_EQ(contents(path), "earlier");
  for (const auto &entry : fs::directory_iterator(fs::path(path).parent_path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with(
        fs::path(path).filename().string() + ".part."));
}

TEST_F(TraceFileTest, RefusesWhatCannotBeWritten) {
  const std::string missing = (folder / "none" / "trace.json").string();
  EXPECT_EQ(TraceFile::open(missing).status().message(),
            "cannot write '" + missing + "': there is no folder '" +
                fs::path(missing).parent_path().string() + "'; create it");
  EXPECT_EQ(TraceFile::open(folder.string()).status().message(),
            "cannot write '" + folder.string() +
                "': it is a folder; name a file in it");
}

static CommandMetadata factsOf(const char *kind, qlora_queue queue,
                               double flops, double bytes,
                               double boundSeconds) {
  CommandMetadata facts;
  facts.kind = kind;
  facts.queue = static_cast<uint8_t>(queue);
  facts.flops = flops;
  facts.bytes = bytes;
  facts.boundSeconds = boundSeconds;
  return facts;
}

TEST(ProfileTable, SharesOfAStepAddUp) {
  ProfileTable table;
  const int64_t ms = 1000000;
  for (int64_t step : {1, 2}) {
    table.add({HostWork::kStep, step, 0, 10 * ms});
    table.add({HostWork::kData, step, 0, ms});
    for (int i = 0; i < 2; ++i)
      table.add(factsOf("GEMM", QLORA_QUEUE_COMPUTE, 4e8, 1e6, 3e-3), 4e-3);
    table.add(factsOf("wait", QLORA_QUEUE_COMPUTE, 0, 0, 0), 1e-3);
    table.add(factsOf("decode", QLORA_QUEUE_COPY, 0, 2e6, 1e-3), 2e-3);
  }
  EXPECT_DOUBLE_EQ(table.secondsPerStep(), 0.01);
  EXPECT_NEAR(table.idleSeconds(), 2e-3, 1e-12);
  DeviceProfile rates;
  const json read = table.toJson(rates, RatesOrigin::kMeasured);
  ASSERT_EQ(read["rows"].size(), 5u);
  const json &gemm = read["rows"][0];
  EXPECT_EQ(gemm["kind"], "GEMM");
  EXPECT_EQ(gemm["count"], 2.0);
  EXPECT_NEAR(gemm["seconds"], 8e-3, 1e-12);
  EXPECT_NEAR(gemm["share"], 0.8, 1e-12);
  EXPECT_NEAR(gemm["gflops"], 100, 1e-9);
  EXPECT_NEAR(gemm["gbps"], 0.25, 1e-9);
  EXPECT_NEAR(gemm["share_of_bound"], 0.75, 1e-9);
  double compute = 0;
  for (const json &row : read["rows"])
    compute += row["queue"] == "compute" ? row["share"].get<double>() : 0;
  EXPECT_NEAR(compute, 1, 1e-12);
  EXPECT_EQ(read["rows"][3]["queue"], "copy");
  EXPECT_EQ(read["rows"][4]["queue"], "host");
  EXPECT_FALSE(read["rows"][4].contains("gbps"));
  EXPECT_EQ(read["rates_measured"], true);
}

/// Returns the profile of a step of 10 ms whose GEMM would take 40 ms at the
/// given rates.
static ProfileTable fasterThanItsRates() {
  ProfileTable table;
  table.add({HostWork::kStep, 1, 0, 10000000});
  table.add(factsOf("GEMM", QLORA_QUEUE_COMPUTE, 8e8, 2e6, 40e-3), 8e-3);
  return table;
}

TEST(ProfileTable, ComparesWithNothingWhereNobodyNamedRates) {
  EXPECT_EQ(fasterThanItsRates().text({}, RatesOrigin::kTargetDefault),
            "profile of 1 steps of 10.00 ms\n"
            "  kind                          count       ms  share GFLOP/s   "
            "GB/s\n"
            "  GEMM                              1     8.00  80.0%     100    "
            "0.2\n"
            "  idle                                    2.00  20.0%\n"
            "  the rates of this machine are not known\n"
            "  to compare: qlora-run --calibrate, then "
            "--device-profile device.json");
}

TEST(ProfileTable, SaysWhetherRatesAreAssumedOrMeasured) {
  DeviceProfile rates;
  rates.cpu = "EPYC";
  const std::string assumed =
      fasterThanItsRates().text(rates, RatesOrigin::kAssumed);
  EXPECT_NE(assumed.find("of assumed\n"), std::string::npos) << assumed;
  EXPECT_NE(assumed.find(" 5.00x\n"), std::string::npos) << assumed;
  EXPECT_NE(assumed.find("the rates of EPYC, not measured here\n"
                         "  to compare: qlora-run --calibrate"),
            std::string::npos)
      << assumed;
  const std::string measured =
      fasterThanItsRates().text(rates, RatesOrigin::kMeasured);
  EXPECT_NE(measured.find("of measured\n"), std::string::npos) << measured;
  EXPECT_NE(measured.find(" 500%\n"), std::string::npos) << measured;
  EXPECT_NE(measured.find("that --calibrate measured with 2 threads"),
            std::string::npos)
      << measured;
  DeviceProfile otherThreads = profileOfThisMachine();
  const std::string wanted =
      fmt::format("qlora-run --calibrate --threads {},", otherThreads.cores);
  otherThreads.kernels.emplace();
  ++otherThreads.cores;
  const std::string threads =
      fasterThanItsRates().text(otherThreads, RatesOrigin::kAssumed);
  EXPECT_NE(threads.find(wanted), std::string::npos) << threads;
  rates.gpu.emplace();
  const std::string gpu =
      fasterThanItsRates().text(rates, RatesOrigin::kAssumed);
  EXPECT_EQ(gpu.find("--calibrate"), std::string::npos) << gpu;
}

TEST(ProfileTable, OnlyRatesOfThisMachineAreMeasured) {
  DeviceProfile here = profileOfThisMachine();
  EXPECT_EQ(originOf(here, "device.json"), RatesOrigin::kAssumed);
  here.kernels.emplace(); // measured kernels, as --calibrate writes
  EXPECT_EQ(originOf(here, "device.json"), RatesOrigin::kMeasured);
  EXPECT_EQ(originOf(here, ""), RatesOrigin::kTargetDefault);
  DeviceProfile fewer = here, other = here;
  ++fewer.cores;
  other.cpu += "?";
  EXPECT_EQ(originOf(fewer, "device.json"), RatesOrigin::kAssumed);
  EXPECT_EQ(originOf(other, "device.json"), RatesOrigin::kAssumed);
}

TEST_F(ProfileTest, HasTheStepsAskedFor) {
  const ProcessOutput output =
      run(flags({"--profile-warmup", "1", "--profile-active", "2",
                 "--gradient-accumulation-steps", "3"}));
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  EXPECT_NE(output.out.find("profile of 2 steps"), std::string::npos);
  EXPECT_NE(output.out.find("of this machine are not known"),
            std::string::npos);
  EXPECT_EQ(output.out.find("of assumed"), std::string::npos);
  std::vector<std::string> labels;
  for (const json &slice : slices(0, 1))
    labels.push_back(slice["name"]);
  // Three micro-batches and the update, in each of two steps.
  EXPECT_EQ(std::count(labels.begin(), labels.end(), "adamw"), 2);
  EXPECT_EQ(std::count(labels.begin(), labels.end(), "accumulate 8"), 6);
  std::vector<int> steps;
  for (const json &slice : slices(0, 0))
    if (slice["name"] == "step")
      steps.push_back(slice["args"]["step"]);
  EXPECT_EQ(steps, (std::vector<int>{2, 3}));
  EXPECT_EQ(metrics("out").size(), 7u);
}

TEST_F(ProfileTest, HasEveryRankAndBeginsWithTheFirstStep) {
  const ProcessOutput output = run(
      flags({"--gpus", "2", "--profile-warmup", "0", "--profile-active", "1"}));
  ASSERT_EQ(output.exitCode, 0) << output.errors;
  for (int rank : {0, 1}) {
    EXPECT_FALSE(slices(rank, 1).empty()) << rank;
    bool hasCollective = false;
    for (const json &slice : slices(rank, 2))
      hasCollective |= slice["cat"] == "collective";
    EXPECT_TRUE(hasCollective) << rank;
  }
}

TEST_F(ProfileTest, RefusesBeforeAnythingIsReplaced) {
  fs::create_directories(folder / "out");
  std::ofstream(folder / "out/metrics.jsonl") << "earlier";
  const std::pair<std::vector<std::string>, const char *> cases[] = {
      {{"--profile", at("none/trace.json")}, "there is no folder"},
      {{"--profile-active", "5"}, "but the run has 6"},
      {{"--device-profile", "h200"}, "--device-profile: "},
      {{"--device", "null"}, "run nothing"}};
  for (const auto &[more, text] : cases) {
    const ProcessOutput output = run(flags(more));
    EXPECT_EQ(output.exitCode, 1);
    EXPECT_NE(output.errors.find(text), std::string::npos) << output.errors;
    EXPECT_EQ(std::count(output.errors.begin(), output.errors.end(), '\n'), 1);
  }
  EXPECT_EQ(contents(folder / "out/metrics.jsonl"), "earlier");
  for (const auto &entry : fs::directory_iterator(folder))
    EXPECT_EQ(entry.path().string().find(".part."), std::string::npos);
}
