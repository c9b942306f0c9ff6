// SPDX-License-Identifier: MIT

// device.json: valid files, and one error for each kind of invalid file.

#include "runtime/Kernels/DeviceProfile.h"

#include "runtime/Kernels/CostModel.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

using namespace qlora;

namespace {

class DeviceProfileTest : public testing::Test {
protected:
  void SetUp() override {
    path = std::filesystem::path(testing::TempDir()) /
           (std::string(
                testing::UnitTest::GetInstance()->current_test_info()->name()) +
            "_device.json");
  }
  void TearDown() override { std::filesystem::remove(path); }

  StatusOr<DeviceProfile> read(const std::string &text) {
    std::ofstream(path) << text;
    return readDeviceProfile(path);
  }
  std::string errorOf(const std::string &text) {
    StatusOr<DeviceProfile> profile = read(text);
    EXPECT_FALSE(profile.isOk()) << text;
    std::string message = profile.status().message();
    EXPECT_NE(message.find(path), std::string::npos) << message;
    return message;
  }

  std::string path;
};

/// Returns a valid profile with the value of one key replaced by `text`.
std::string profileWith(const std::string &key, const std::string &text) {
  std::vector<std::pair<std::string, std::string>> keys = {
      {"cpu", "\"x\""},           {"cores", "8"},
      {"gemm_f32_gflops", "620.5"}, {"gemm_bf16_gflops", "1100"},
      {"copy_gbps", "41"},        {"decode_gbps", "22"}};
  std::string json;
  for (auto &[name, value] : keys) {
    std::string found = name == key ? text : value;
    if (!found.empty())
      json += (json.empty() ? "" : ", ") + ("\"" + name + "\": " + found);
  }
  return "{" + json + "}";
}

TEST_F(DeviceProfileTest, ReadsEveryKey) {
  StatusOr<DeviceProfile> profile = read(profileWith("", ""));
  ASSERT_TRUE(profile.isOk()) << profile.status().message();
  EXPECT_EQ(profile->cpu, "x");
  EXPECT_EQ(profile->cores, 8);
  EXPECT_EQ(profile->gemmF32Gflops, 620.5);
  EXPECT_EQ(profile->gemmBf16Gflops, 1100);
  EXPECT_EQ(profile->copyGbps, 41);
  EXPECT_EQ(profile->decodeGbps, 22);
}

TEST_F(DeviceProfileTest, AnEmptyPathIsTheDefault) {
  StatusOr<DeviceProfile> profile = deviceProfileOrDefault("", "cpu");
  ASSERT_TRUE(profile.isOk());
  EXPECT_EQ(profile->cpu, "default");
  StatusOr<DeviceProfile> gpu = deviceProfileOrDefault("", "cuda");
  ASSERT_TRUE(gpu.isOk());
  EXPECT_GT(gpu->gemmBf16Gflops, 100 * profile->gemmBf16Gflops);
}

/// Returns attention's rates as one object, with the first rate replaced by
/// `text`.
std::string attentionWith(const std::string &text) {
  return "{\"forward_8k_gflops\": " + text +
         ", \"forward_2k_gflops\": 4, \"backward_2k_gflops\": 3, "
         "\"backward_8k_gflops\": 5}";
}

/// Returns the keys of a GPU; the value of one key is replaced by `text`, or
/// the key is omitted.
std::string gpuWith(const std::string &key, const std::string &text) {
  std::string json;
  for (const std::string name :
       {"memory_gb", "attention_cudnn", "attention_cuda", "thin_gemm_gbps",
        "issue_gops", "launch_us", "gpus_per_node", "node_link_gbps",
        "network_gbps", "all_reduce_us", "host_link_gbps"}) {
    const std::string value = key == name ? text
                              : name.starts_with("attention")
                                  ? attentionWith("6")
                                  : "4";
    if (!value.empty())
      json += (json.empty() ? "\"" : ", \"") + name + "\": " + value;
  }
  return profileWith("cores", "8, \"gpu\": {" + json + "}");
}

TEST_F(DeviceProfileTest, ReadsAGpu) {
  EXPECT_FALSE(read(profileWith("", ""))->gpu.has_value());
  StatusOr<DeviceProfile> profile = read(gpuWith("launch_us", "1.5"));
  ASSERT_TRUE(profile.isOk()) << profile.status().message();
  ASSERT_TRUE(profile->gpu.has_value());
  EXPECT_EQ(profile->gpu->launchMicroseconds, 1.5);
  EXPECT_EQ(profile->gpu->gpusPerNode, 4);
  EXPECT_EQ(profile->gpu->networkGbps, 4);
  EXPECT_NE(errorOf(gpuWith("network_gbps", ""))
                .find("key 'gpu.network_gbps' is missing"),
            std::string::npos);
  EXPECT_NE(errorOf(gpuWith("launch_us", "0"))
                .find("key 'gpu.launch_us' is 0, but must be a positive"),
            std::string::npos);
  EXPECT_NE(errorOf(gpuWith("launch_us", "1, \"warps\": 4"))
                .find("unknown key 'gpu.warps'"),
            std::string::npos);
  EXPECT_NE(errorOf(profileWith("cores", "8, \"gpu\": true"))
                .find("key 'gpu' is true, but must be an object"),
            std::string::npos);
}

TEST_F(DeviceProfileTest, ReadsAttentionOfCudnnAndOurOwn) {
  StatusOr<DeviceProfile> profile =
      read(gpuWith("attention_cuda", attentionWith("4.5")));
  ASSERT_TRUE(profile.isOk()) << profile.status().message();
  EXPECT_EQ(profile->gpu->cudnnAttention.forward.at8k, 6);
  EXPECT_EQ(profile->gpu->cudaAttention.forward.at2k, 4);
  EXPECT_EQ(profile->gpu->cudaAttention.forward.at8k, 4.5);
  EXPECT_EQ(profile->gpu->cudaAttention.backward.at2k, 3);
  EXPECT_EQ(profile->gpu->cudaAttention.backward.at8k, 5);
  EXPECT_NE(errorOf(gpuWith("attention_cuda", ""))
                .find("key 'gpu.attention_cuda' is missing; a GPU's profile "
                      "needs all keys of 'gpu'"),
            std::string::npos);
  EXPECT_NE(errorOf(gpuWith("attention_cudnn", "{\"forward_2k_gflops\": 4}"))
                .find("key 'gpu.attention_cudnn.forward_8k_gflops' is missing; "
                      "a GPU's profile needs all keys of 'gpu'"),
            std::string::npos);
  // The rate at 8k must not be below the rate at 2k, nor so high that shorter
  // sequences would take no time.
  for (const char *bad : {"3.9", "16"})
    EXPECT_NE(errorOf(gpuWith("attention_cudnn", attentionWith(bad)))
                  .find("key 'gpu.attention_cudnn.forward_8k_gflops' is " +
                        std::string(bad) +
                        ", but must be at least the rate at 2k, 4, and "
                        "below 4 times that"),
              std::string::npos);
}

/// Returns FLOP/s if each of 1,000 queries attends to `keys` keys, with one
/// FLOP per key.
double rateOf(const AttentionRate &rate, double keys) {
  return 1e3 * keys / rate.seconds(1e3 * keys, 1e3);
}

TEST_F(DeviceProfileTest, AttentionIsSlowerOnShortSequences) {
  const AttentionRate rate = {480, 610};
  EXPECT_NEAR(rateOf(rate, 2049 / 2.0), 480e9, 1);
  EXPECT_NEAR(rateOf(rate, 8193 / 2.0), 610e9, 1);
  // The two rates imply 670.5 * keys / (keys + 406.5) GFLOP/s.
  EXPECT_NEAR(rateOf(rate, 513 / 2.0) / 1e9, 670.5 * 256.5 / (256.5 + 406.5),
              0.5);
  EXPECT_LT(rateOf(rate, 1e6), 671e9);
  const AttentionRate even = {100, 100};
  EXPECT_NEAR(rateOf(even, 64), 100e9, 1);
}

TEST_F(DeviceProfileTest, TheLowFigureHasLowerRates) {
  const DeviceProfile high = *findDeviceProfile("h200"), low = lowRates(high);
  EXPECT_DOUBLE_EQ(low.gemmBf16Gflops, 0.9 * 790e3);
  EXPECT_DOUBLE_EQ(low.gpu->cudnnAttention.backward.at2k, 0.9 * 370e3);
  EXPECT_DOUBLE_EQ(low.copyGbps, 0.85 * 4300);
  EXPECT_DOUBLE_EQ(low.gpu->thinGemmGbps, 0.85 * 0.6 * 4300);
  EXPECT_EQ(low.gpu->nodeLinkGbps, high.gpu->nodeLinkGbps);
  // A CPU's rates are measured, so the low rates equal the expected rates.
  EXPECT_EQ(lowRates(DeviceProfile()).copyGbps, DeviceProfile().copyGbps);
}

TEST_F(DeviceProfileTest, ReadsMeasuredKernels) {
  StatusOr<DeviceProfile> plain = read(profileWith("", ""));
  EXPECT_FALSE(plain->kernels.has_value());
  EXPECT_EQ(plain->cpuKernels().packGbps, 41);
  EXPECT_EQ(plain->cpuKernels().panelBf16Gflops, 0.88 * 1100);
  const std::string rates = "\"panel_f32_gflops\": 1, "
                            "\"panel_bf16_gflops\": 2, "
                            "\"attention_f32_gflops\": 3, "
                            "\"attention_bf16_gflops\": 4";
  const auto with = [&](const std::string &more) {
    return profileWith("cores", "8, \"kernels\": {" + rates + more + "}");
  };
  StatusOr<DeviceProfile> measured = read(with(", \"pack_gbps\": 5"));
  ASSERT_TRUE(measured.isOk()) << measured.status().message();
  EXPECT_EQ(measured->cpuKernels().panelF32Gflops, 1);
  EXPECT_EQ(measured->cpuKernels().panelBf16Gflops, 2);
  EXPECT_EQ(measured->cpuKernels().attentionF32Gflops, 3);
  EXPECT_EQ(measured->cpuKernels().attentionBf16Gflops, 4);
  EXPECT_EQ(measured->cpuKernels().packGbps, 5);
  EXPECT_NE(errorOf(with("")).find("key 'kernels.pack_gbps' is missing; write "
                                   "the file again with qlora-run --calibrate"),
            std::string::npos);
}

TEST_F(DeviceProfileTest, ReadsMeasuredLinks) {
  const auto with = [&](const std::string &links) {
    return profileWith("cores", "8, \"links\": {" + links + "}");
  };
  const std::string window = R"("window": {"message_us": 12, "gbps": 9.5})";
  StatusOr<DeviceProfile> some = read(with(window));
  ASSERT_TRUE(some.isOk()) << some.status().message();
  EXPECT_EQ(some->links.window->messageMicroseconds, 12);
  EXPECT_EQ(some->links.window->gbps, 9.5);
  EXPECT_FALSE(some->links.sockets || some->links.network);
  some = read(with(R"("network": {"ranks_per_node": 4, "message_us": 60,
                                  "gbps": 1.1})"));
  ASSERT_TRUE(some.isOk()) << some.status().message();
  EXPECT_EQ(some->links.ranksPerNode, 4);
  EXPECT_EQ(some->links.network->gbps, 1.1);
  EXPECT_FALSE(read(profileWith("", ""))->links.areMeasured());
  EXPECT_NE(errorOf(with(R"("network": {"message_us": 60, "gbps": 1})"))
                .find("key 'links.network.ranks_per_node' is missing"),
            std::string::npos);
  EXPECT_NE(errorOf(with(R"("sockets": {"message_us": 60, "gbps": 0})"))
                .find("key 'links.sockets.gbps' is 0"),
            std::string::npos);
  EXPECT_NE(errorOf(with(R"("bus": 1)")).find("unknown key 'links.bus'"),
            std::string::npos);
}

TEST_F(DeviceProfileTest, KnownGpusHaveNames) {
  for (std::string_view name : knownGpus()) {
    StatusOr<DeviceProfile> known = findDeviceProfile(std::string(name));
    ASSERT_TRUE(known.isOk()) << name;
    ASSERT_TRUE(known->gpu.has_value()) << name;
    // NF4 is decoded at least at copy speed; attention is slower than a GEMM.
    EXPECT_GE(known->decodeGbps / 4 * 2.516, known->copyGbps) << name;
    const GpuRates &gpu = *known->gpu;
    EXPECT_LT(gpu.cudnnAttention.forward.at8k, known->gemmBf16Gflops) << name;
    for (const AttentionRates *rates :
         {&gpu.cudnnAttention, &gpu.cudaAttention}) {
      EXPECT_LT(rates->forward.at2k, rates->forward.at8k) << name;
      EXPECT_LT(rates->backward.at2k, rates->backward.at8k) << name;
      EXPECT_LT(rates->backward.at8k, rates->forward.at8k) << name;
    }
    EXPECT_LT(gpu.cudaAttention.forward.at2k, gpu.cudnnAttention.forward.at2k)
        << name;
    EXPECT_LT(gpu.cudaAttention.backward.at2k, gpu.cudnnAttention.backward.at2k)
        << name;
    EXPECT_LT(gpu.thinGemmGbps, known->copyGbps) << name;
    // Row ops with few instructions are bound by memory, within 1 %.
    EXPECT_GT(gpu.issueGops, 0.99 * kRowInstructions * known->copyGbps) << name;
  }
  StatusOr<DeviceProfile> unknown = findDeviceProfile("h201");
  ASSERT_FALSE(unknown.isOk());
  EXPECT_EQ(
      unknown.status().message(),
      "'h201' is neither a known GPU (a100-40, a100, h100, h200, b200, "
      "rtx3090, a10, l4, l40s, rtx4090, rtx5090, rtxpro6000) nor a readable "
      "file; write one for this machine with qlora-run --calibrate");
}

TEST_F(DeviceProfileTest, AProfileOfTheOtherKindIsRefused) {
  StatusOr<DeviceProfile> gpu = deviceProfileOrDefault("h200", "cpu");
  ASSERT_FALSE(gpu.isOk());
  EXPECT_EQ(gpu.status().message(),
            "the device profile 'h200' describes a GPU, but the program is for "
            "cpu; use another profile");
  ASSERT_TRUE(read(profileWith("", "")).isOk());
  EXPECT_FALSE(deviceProfileOrDefault(path, "cuda").isOk());
  EXPECT_TRUE(deviceProfileOrDefault(path, "cpu").isOk());
}

TEST_F(DeviceProfileTest, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(errorOf("").find("not a JSON object"), std::string::npos);
  EXPECT_NE(errorOf("[1]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(errorOf("{\"cpu\": ").find("not a JSON object"),
            std::string::npos);
  EXPECT_NE(
      errorOf(profileWith("copy_gbps", "")).find("'copy_gbps' is missing"),
      std::string::npos);
  for (const char *bad : {"0", "-1", "\"41\"", "null", "1e999"})
    errorOf(profileWith("copy_gbps", bad));
  EXPECT_NE(errorOf(profileWith("copy_gbps", "-1"))
                .find("'copy_gbps' is -1, but must be a positive number"),
            std::string::npos);
  for (const char *bad : {"0", "1.5", "\"8\""})
    errorOf(profileWith("cores", bad));
  errorOf(profileWith("cpu", "1"));
  EXPECT_NE(errorOf(profileWith("cores", "8, \"cache\": 1"))
                .find("unknown key 'cache'"),
            std::string::npos);
}

TEST_F(DeviceProfileTest, AMissingFileSaysHowToMakeIt) {
  StatusOr<DeviceProfile> profile = readDeviceProfile("/no/such/device.json");
  ASSERT_FALSE(profile.isOk());
  EXPECT_EQ(profile.status().code(), StatusCode::kNotFound);
  EXPECT_NE(profile.status().message().find("--calibrate"),
            std::string::npos);
}

} // namespace
