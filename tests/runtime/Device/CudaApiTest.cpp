// SPDX-License-Identifier: MIT

// Messages on a machine without a usable NVIDIA library, and calls of cuBLASLt
// that need no GPU.

#include "runtime/Kernels/Cuda/CudaApi.h"
#include "runtime/Device/Cuda/NvmlApi.h"
#include "runtime/Kernels/Cuda/CudaApi.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

/// Returns the error of opening a driver file; expects that it is one line.
std::string refusal(const char *file,
                    StatusCode code = StatusCode::kUnavailable) {
  const Status status = CudaDriver::openFile(file).status();
  EXPECT_EQ(status.code(), code);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  return status.message();
}

TEST(CudaApi, SaysWhatIsMissing) {
  const std::string missing =
      refusal("libqlora-no-driver.so.1", StatusCode::kNotFound);
  EXPECT_HAS(missing, "no CUDA driver here: libqlora-no-driver.so.1");
  EXPECT_HAS(missing, "--target cpu");
  EXPECT_HAS(refusal(QLORA_OLD_DRIVER),
             "NVIDIA's driver is for CUDA 11.8, but 12.0 is needed");
  EXPECT_HAS(refusal(QLORA_BARE_DRIVER), "has no cuGetErrorName; update it");
}

TEST(CudaApi, SaysThatCublasIsMissing) {
  const char *none[] = {"libqlora-no-blas.so.2", "libqlora-no-blas.so.1"};
  const Status missing = CublasLt::openFirst(none).status();
  EXPECT_EQ(missing.code(), StatusCode::kUnavailable);
  EXPECT_HAS(missing.message(), "no cuBLAS here: libqlora-no-blas.so.2");
  EXPECT_HAS(missing.message(), "libqlora-no-blas.so.1");
  const char *bare[] = {"libqlora-no-blas.so.2", QLORA_BARE_DRIVER};
  EXPECT_HAS(CublasLt::openFirst(bare).status().message(),
             "has no cublasLtCreate; update it");
  const char *old[] = {QLORA_OLD_DRIVER};
  EXPECT_HAS(CublasLt::openFirst(old).status().message(),
             "is cuBLAS 11.8, but 12.0 is needed; install cuBLAS 12 or 13");
}

/// cuBLAS 13 needs a driver for CUDA 13. With an older driver, cuBLAS 12 is
/// used even if 13 is installed too.
TEST(CudaApi, TakesTheCublasThatTheDriverCanRun) {
  EXPECT_STREQ(CublasLt::filesFor(12080).front(), "libcublasLt.so.12");
  EXPECT_EQ(CublasLt::filesFor(12080).size(), 1u);
  for (const int driver : {13000, 13020, 14000}) {
    ASSERT_EQ(CublasLt::filesFor(driver).size(), 2u);
    EXPECT_STREQ(CublasLt::filesFor(driver).front(), "libcublasLt.so.13");
  }
}

TEST(CudaApi, SaysThatCudnnIsMissing) {
  const auto refused = [](const char *file) {
    const Status status = Cudnn::openFile(file).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return std::string(status.message());
  };
  EXPECT_HAS(refused("libqlora-no-cudnn.so.9"),
             "no cuDNN here: libqlora-no-cudnn.so.9");
  EXPECT_HAS(refused(QLORA_OLD_DRIVER),
             "is cuDNN 9.5, but 9.19 is needed; install cuDNN 9");
  EXPECT_HAS(refused(QLORA_BARE_DRIVER),
             "has no cudnnGetLastErrorString; update it");
}

TEST(CudaApi, NvmlMayBeMissing) {
  const Status missing = Nvml::openFile("libqlora-no-nvml.so.1").status();
  EXPECT_EQ(missing.code(), StatusCode::kUnavailable);
  EXPECT_HAS(missing.message(), "no NVML here: libqlora-no-nvml.so.1");
  EXPECT_HAS(Nvml::openFile(QLORA_BARE_DRIVER).status().message(),
             "has no nvmlInit_v2; update it");
}

TEST(CudaApi, NamesStatusesOfCublas) {
  const CublasLt blas{};
  EXPECT_TRUE(blas.check(0, "cublasLtMatmul").isOk());
  const Status refused = blas.check(15, "cublasLtMatmul");
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused.message(),
            "cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED (15)");
  EXPECT_EQ(blas.check(3, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(blas.check(13, "x").code(), StatusCode::kInternal);
}

TEST(CudaApi, CapturesThatAreRefusedAreNoBug) {
  CudaDriver driver{};
  driver.getErrorName =
      driver.getErrorString = [](CUresult, const char **text) {
        *text = "SOME_ERROR";
        return 0;
      };
  EXPECT_EQ(driver.check(901, "cuStreamEndCapture").code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(driver.check(899, "x").code(), StatusCode::kInternal);
  EXPECT_EQ(driver.check(999, "x").code(), StatusCode::kInternal);
  EXPECT_EQ(driver.check(2, "x").code(), StatusCode::kResourceExhausted);
}

/// Without a GPU, cuBLASLt accepts our attribute numbers with the sizes of our
/// types, and finds the reduction scheme in an algorithm's bytes.
TEST(CudaApi, CublasKnowsOurNumbers) {
  static constexpr const char *kFiles[] = {
      "libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
      "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.12"};
  const auto blas = CublasLt::openFirst(kFiles);
  if (!blas.isOk())
    GTEST_SKIP() << blas.status().message();
  const CublasLt &lt = blas.value();

  cublasLtMatmulDesc_t description = nullptr;
  ASSERT_EQ(lt.matmulDescCreate(&description, kCublasCompute32F, kCudaR32F), 0);
  const int64_t value = 1;
  for (const int attribute : {kCublasDescTransposeA, kCublasDescTransposeB}) {
    EXPECT_EQ(lt.matmulDescSetAttribute(description, attribute, &value, 4), 0);
    EXPECT_NE(lt.matmulDescSetAttribute(description, attribute, &value, 8), 0);
  }
  EXPECT_EQ(lt.matmulDescDestroy(description), 0);

  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(lt.preferenceCreate(&preference), 0);
  const auto set = [&](int attribute, size_t bytes) {
    return lt.preferenceSetAttribute(preference, attribute, &value, bytes);
  };
  EXPECT_EQ(set(kCublasPreferenceMaxWorkspace, 8), 0);
  EXPECT_NE(set(kCublasPreferenceMaxWorkspace, 4), 0);
  for (const int attribute :
       {kCublasPreferenceReductionMask, kCublasPreferenceMinAlignmentA,
        kCublasPreferenceMinAlignmentA + 1, kCublasPreferenceMinAlignmentA + 2,
        kCublasPreferenceMinAlignmentA + 3}) {
    EXPECT_EQ(set(attribute, 4), 0);
    EXPECT_NE(set(attribute, 8), 0);
  }
  EXPECT_EQ(lt.preferenceDestroy(preference), 0);

  for (const int type : {kCudaR32F, kCudaR16BF}) {
    cublasLtMatrixLayout_t layout = nullptr;
    ASSERT_EQ(lt.matrixLayoutCreate(&layout, type, 64, 32, 64), 0);
    EXPECT_EQ(lt.matrixLayoutDestroy(layout), 0);
  }

  for (const uint32_t scheme :
       {kCublasReductionNone, kCublasReductionInPlace,
        kCublasReductionComputeType, kCublasReductionOutputType}) {
    cublasLtMatmulAlgo_t algorithm = {{66, 0, scheme}};
    uint32_t told = 9;
    size_t written = 0;
    EXPECT_EQ(lt.algoConfigGet(&algorithm, kCublasConfigReduction, &told, 4,
                               &written),
              0);
    EXPECT_EQ(written, 4u);
    EXPECT_EQ(told, scheme);
    EXPECT_NE(lt.algoConfigGet(&algorithm, kCublasConfigReduction, &told, 2,
                               &written),
              0);
  }
}

} // namespace
} // namespace qlora
