// SPDX-License-Identifier: MIT

// cuDNN's plans for our attention graphs. Tests describe each device by its
// properties. No plan is run, so cuDNN can compile it without a GPU.
// LD_LIBRARY_PATH must contain the cuDNN version QLORA_CUDNN_VERSION (for
// example 91900).

#include "runtime/Base/JsonText.h"
#include "runtime/Kernels/Cuda/CudnnAttentionGraph.h"
#include "runtime/Kernels/Plans/CudaWorkspaces.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <bit>

#include <nlohmann/json.hpp>

namespace qlora {
namespace {

struct Gpu {
  uint32_t arch;
  int multiprocessors, sharedBytes;
};
constexpr Gpu kGpus[] = {
    {80, 108, 166912}, {90, 132, 232448}, {100, 148, 232448}};

/// Returns the device properties that cuDNN needs, as JSON with cuDNN's names.
std::string describe(const Gpu &gpu) {
  return dumpJson(
      nlohmann::json{{"deviceVer", 10 * gpu.arch},
                     {"multiProcessorCount", gpu.multiprocessors},
                     {"smCountOrigin", 0},
                     {"maxGridSize", {2147483647, 65535, 65535}},
                     {"maxBlockSize", {1024, 1024, 64}},
                     {"regsPerBlock", 65536},
                     {"warpSize", 32},
                     {"maxSharedMemoryPerBlock", 49152},
                     {"maxSharedMemoryPerBlockOptin", gpu.sharedBytes},
                     {"oversizedSharedMemoryPerBlock", 0},
                     {"reservedSharedMemoryPerBlock", 1024},
                     {"maxRegistersPerSM", 65536},
                     {"maxCtasPerSM", 32},
                     {"maxThreadsPerBlock", 1024},
                     {"maxThreadsPerSM", 2048},
                     {"pciDeviceId", 0},
                     {"isTccDriver", 0},
                     {"supportCoopLaunch", 1},
                     {"smClockRateKHz", 1980000},
                     {"memClockRateKHz", 2619000},
                     {"memoryBusWidth", 5120},
                     {"l2CacheSize", 52428800},
                     {"deviceName", "described"},
                     {"totalGlobalMem", uint64_t{80} << 30},
                     {"cudaDeviceId", 0},
                     {"driverVer", 13000}});
}

struct Case {
  int64_t batch, length, heads, keyHeads, dim, window;
  bool hasSegments;
};

std::ostream &operator<<(std::ostream &out, const Case &c) {
  return out << "B" << c.batch << " T" << c.length << " H" << c.heads << "/"
             << c.keyHeads << " D" << c.dim << " window " << c.window
             << (c.hasSegments ? " segments" : "");
}

/// Returns a request in which q, k and v are columns of one matrix, as in
/// compiled programs.
KernelRequest requestOf(const char *op, const Case &c) {
  KernelRequest request{findKernelOp(op), {}, {}};
  for (const KernelOperand &operand : request.op->operands)
    request.dtypes.push_back(
        operand.name == "segments"
            ? (c.hasSegments ? std::optional(QLORA_DTYPE_I32) : std::nullopt)
        : operand.name == "sinks"     ? std::nullopt
        : operand.name == "lse"       ? std::optional(QLORA_DTYPE_F32)
        : operand.name == "workspace" ? std::optional(QLORA_DTYPE_U8)
                                      : std::optional(QLORA_DTYPE_BF16));
  const int64_t width = (c.heads + 2 * c.keyHeads) * c.dim;
  const std::map<std::string, int64_t> constants = {
      {"batch", c.batch},
      {"length", c.length},
      {"heads", c.heads},
      {"kv_heads", c.keyHeads},
      {"dim", c.dim},
      {"window", c.window},
      {"scale", std::bit_cast<int64_t>(0.125)},
      {"cap", 0},
      {"slots", 1}};
  for (const std::string &name : request.op->constants) {
    const auto found = constants.find(name);
    request.constants.push_back(found == constants.end() ? width
                                                         : found->second);
  }
  return request;
}

class CudnnPlans : public testing::TestWithParam<Gpu> {
protected:
  void SetUp() override {
    // cuDNN looks for a driver by name and then finds this library.
    ASSERT_TRUE(dlopen(QLORA_PLAN_DRIVER, RTLD_NOW | RTLD_GLOBAL)) << dlerror();
    auto opened = Cudnn::open();
    ASSERT_TRUE(opened.isOk()) << opened.status().message()
                               << "; scripts/cudnn.sh installs the versions "
                                  "that are tested";
    cudnn = *opened;
    const char *version = std::getenv("QLORA_CUDNN_VERSION");
    ASSERT_EQ(std::to_string(cudnn->getVersion()), version ? version : "")
        << "run scripts/cudnn.sh, and this by ctest or scripts/cudnn_plans.sh";
    const std::string text = describe(GetParam());
    device.emplace(*cudnn, cudnn_descriptor::kDeviceProperties, "a device");
    device->set(cudnn_attribute::kDeviceJson, cudnn_type::kChar,
                std::span<const char>(text));
    const Status described = device->finish();
    ASSERT_TRUE(described.isOk()) << described.message();
  }

  StatusOr<CudnnAttentionPlan> plan(const Case &c) {
    const KernelRequest request = requestOf("attention", c);
    EXPECT_EQ(findKernelRow("attention.cudnn")->reject(request), std::nullopt);
    return planCudnnAttention({*cudnn, nullptr, device->get()}, request);
  }
  StatusOr<CudnnAttentionPlan> planGradient(const Case &c) {
    KernelRequest request = requestOf("attention_grad", c);
    const KernelRow *row = findKernelRow("attention_grad.cudnn");
    row->tune(request, isSmall ? WorkspaceSize::kSmall
                               : WorkspaceSize::kModest);
    EXPECT_EQ(row->reject(request), std::nullopt);
    return planCudnnAttentionGradient({*cudnn, nullptr, device->get()},
                                      GetParam().arch, request);
  }
  void expectPlan(const StatusOr<CudnnAttentionPlan> &plan) {
    EXPECT_TRUE(plan.isOk()) << plan.status().message();
  }

  const Cudnn *cudnn = nullptr;
  std::optional<CudnnObject> device;
  bool isSmall = false; ///< whether workspaces must be small
};

TEST_P(CudnnPlans, Forward) {
  for (const Case &c : {Case{2, 2048, 32, 8, 128, 0, true},
                        {1, 70016, 32, 8, 128, 0, true},
                        {1, 384, 9, 3, 64, 100, true},
                        {2, 128, 4, 2, 80, 0, false},
                        {1, 256, 8, 8, 256, 0, true}}) {
    SCOPED_TRACE(c);
    expectPlan(plan(c));
  }
}

TEST_P(CudnnPlans, GradientOfShortSequences) {
  expectPlan(planGradient({2, 384, 9, 3, 64, 0, false}));
  expectPlan(planGradient({1, 128, 4, 4, 80, 20, false}));
}

/// cuDNN recognizes some masks. For any other mask, only engines for Hopper
/// work.
TEST_P(CudnnPlans, GradientWithSegments) {
  const auto made = planGradient({2, 384, 9, 3, 64, 100, true});
  if (GetParam().arch == 90)
    return expectPlan(made);
  if (!made.isOk()) {
    EXPECT_EQ(made.status().code(), StatusCode::kUnavailable)
        << made.status().message();
  }
}

/// Llama 8B with two sequences of 2,048 tokens: every cuDNN version computes
/// the gradient in one launch and stores the gradients of the scores.
constexpr Case kLlama = {2, 2048, 32, 8, 128, 0, false};

TEST_P(CudnnPlans, GradientOfLlama) {
  for (bool hasSegments : {false, true}) {
    if (hasSegments && GetParam().arch != 90)
      continue; // tested by GradientWithSegments
    Case c = kLlama;
    c.hasSegments = hasSegments;
    SCOPED_TRACE(c);
    const auto made = planGradient(c);
    ASSERT_TRUE(made.isOk()) << made.status().message();
    EXPECT_EQ(made->dqSum, CudnnDqSum::kScores);
    EXPECT_GE(made->plan.workspaceBytes(), uint64_t(512) << 20);
  }
}

/// With small workspaces, the gradient is computed one key head at a time.
TEST_P(CudnnPlans, GradientInSmallPieces) {
  isSmall = true;
  Case c = kLlama;
  c.hasSegments = GetParam().arch == 90;
  const auto made = planGradient(c);
  ASSERT_TRUE(made.isOk()) << made.status().message();
  EXPECT_EQ(made->dqSum, CudnnDqSum::kScores);
  // Four query heads need 32 MiB of scores, and 4 MiB for sums of dK and dV.
  EXPECT_GE(made->plan.workspaceBytes(), uint64_t(32) << 20);
  EXPECT_LE(made->plan.workspaceBytes(), uint64_t(37) << 20);
}

/// The scores of 4 heads are too large to store. A plan therefore needs an
/// engine that sums in a fixed order, with a workspace proportional to the
/// sequence length.
TEST_P(CudnnPlans, GradientOfLongSequences) {
  const bool isHopper = GetParam().arch == 90;
  const auto made = planGradient({1, 70016, 32, 8, 128, 0, isHopper});
  if (GetParam().arch == 100 || (isHopper && cudnn->getVersion() >= 92500))
    return expectPlan(made);
  ASSERT_FALSE(made.isOk());
  EXPECT_EQ(made.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(made.status().message(),
            "the score gradient of a chunk has more than 4294967296 bytes");
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans, testing::ValuesIn(kGpus),
                         [](const auto &info) {
                           return "sm_" + std::to_string(info.param.arch);
                         });

} // namespace
} // namespace qlora
