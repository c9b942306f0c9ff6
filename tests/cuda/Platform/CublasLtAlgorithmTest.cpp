// SPDX-License-Identifier: MIT

// The algorithms of the cuBLASLt look-alike: their attributes, when they can be
// restored, and which of them run.

#include "tests/cuda/CublasLt/Algorithms.h"
#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

using namespace qlora;
using namespace qlora::platform;

namespace {
/// A float32 matmul 8 x 8 x 8 with all algorithms that the heuristic returns.
struct Candidates {
  explicit Candidates(Client &client);
  /// Returns the algorithm of id 66 that runs this kernel (Algorithms.h). For
  /// kernel 0, returns the first algorithm with a workspace.
  cublasLtMatmulAlgo_t get(uint64_t kernel) const;
  cublasStatus_t check(cublasLtHandle_t by,
                       const cublasLtMatmulAlgo_t &algorithm) const;
  /// Runs the matmul with the algorithm and the workspace.
  cublasStatus_t multiply(cublasLtHandle_t by,
                          const cublasLtMatmulAlgo_t &algorithm,
                          CUdeviceptr workspace = 0, size_t bytes = 0) const;

  Client &client;
  cublasLtHandle_t handle = nullptr;
  CUdeviceptr a, b, d;
  cublasLtMatrixLayout_t layout = nullptr; ///< layout of A, B and D
  cublasLtMatmulDesc_t description = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> found;
};
} // namespace

Candidates::Candidates(Client &client)
    : client(client), a(client.allocate(64)), b(client.allocate(64)),
      d(client.allocate(64)), found(20) {
  for (const CUdeviceptr operand : {a, b})
    client.write(operand, std::vector<float>(64, 1));
  Client::require(cublasLtCreate(&handle), "handle");
  Client::require(cublasLtMatrixLayoutCreate(&layout, kCudaR32F, 8, 8, 8),
                  "layout");
  Client::require(
      cublasLtMatmulDescCreate(&description, kCublasCompute32F, kCudaR32F),
      "description");
  cublasLtMatmulPreference_t preference = nullptr;
  const uint64_t workspace = 1 << 20;
  Client::require(cublasLtMatmulPreferenceCreate(&preference), "preference");
  Client::require(cublasLtMatmulPreferenceSetAttribute(
                      preference, kCublasPreferenceMaxWorkspace, &workspace,
                      sizeof(workspace)),
                  "workspace");
  int count = 0;
  Client::require(cublasLtMatmulAlgoGetHeuristic(
                      handle, description, layout, layout, layout, layout,
                      preference, 20, found.data(), &count),
                  "heuristic");
  found.resize(size_t(count));
}

cublasLtMatmulAlgo_t Candidates::get(uint64_t kernel) const {
  for (const cublasLtMatmulHeuristicResult_t &result : found)
    if (kernel ? Algorithm::read(&result.algo)->kernel == kernel
               : result.workspaceSize > 0)
      return result.algo;
  Client::require(1, "an algorithm");
  return {};
}

cublasStatus_t Candidates::check(cublasLtHandle_t by,
                                 const cublasLtMatmulAlgo_t &algorithm) const {
  cublasLtMatmulHeuristicResult_t result = {};
  return cublasLtMatmulAlgoCheck(by, description, layout, layout, layout,
                                 layout, &algorithm, &result);
}

cublasStatus_t Candidates::multiply(cublasLtHandle_t by,
                                    const cublasLtMatmulAlgo_t &algorithm,
                                    CUdeviceptr workspace,
                                    size_t bytes) const {
  const float one = 1, zero = 0;
  const auto pointer = [](CUdeviceptr address) {
    return reinterpret_cast<void *>(address);
  };
  return cublasLtMatmul(by, description, &one, pointer(a), layout, pointer(b),
                        layout, &zero, pointer(d), layout, pointer(d), layout,
                        &algorithm, pointer(workspace), bytes, client.stream);
}

TEST(CublasLt, RestoresTheBytesOfAnAlgorithm) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const Candidates of(client);
    cublasLtHandle_t later = nullptr;
    Client::require(cublasLtCreate(&later), "handle");
    const cublasLtMatmulAlgo_t kept = of.get(kPlainKernel);
    cublasLtMatmulAlgo_t otherVersion = kept, otherProduct = kept,
                         noKernel = kept, noTile = kept;
    otherVersion.data[4] += 100;
    otherProduct.data[5] += 1;
    noKernel.data[6] = 9;
    noTile.data[0] += uint64_t{7} << 32;
    return of.multiply(later, kept) == kBlasInvalidValue && // not checked
           of.check(later, kept) == kBlasSuccess &&
           of.multiply(later, kept) == kBlasSuccess &&
           of.check(later, otherVersion) == kBlasInvalidValue &&
           of.check(later, otherProduct) == kBlasInvalidValue &&
           of.check(later, noKernel) == kBlasNotSupported &&
           of.check(later, noTile) == kBlasNotSupported;
  }));
}

TEST(CublasLt, TellsAttributesOfMostAlgorithms) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const Candidates of(client);
    const auto read = [&](uint64_t kernel, int attribute, size_t bytes,
                          uint32_t &value) {
      const cublasLtMatmulAlgo_t algorithm = of.get(kernel);
      return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value,
                                                  bytes, nullptr);
    };
    const cublasLtMatmulAlgo_t none = {};
    uint32_t id = 0, split = 0, scheme = 9, cluster = 0;
    return read(0, 0, 4, id) == kBlasSuccess && id == 21 &&
           read(0, 2, 4, split) == kBlasSuccess && split == 2 &&
           read(0, kCublasConfigReduction, 4, scheme) == kBlasSuccess &&
           scheme == kCublasReductionComputeType &&
           read(0, 8, 2, cluster) == kBlasSuccess && cluster == 2 &&
           read(0, 8, 4, cluster) == kBlasInvalidValue &&
           read(0, 9, 4, id) == kBlasInvalidValue &&
           read(kPlainKernel, kCublasConfigReduction, 4, scheme) ==
               kBlasSuccess &&
           scheme == kCublasReductionNone &&
           read(kSilentKernel, kCublasConfigReduction, 4, scheme) ==
               kBlasNotSupported &&
           cublasLtMatmulAlgoConfigGetAttribute(&none, 0, &id, 4, nullptr) ==
               kBlasInvalidValue;
  }));
}

TEST(CublasLt, SomeAlgorithmsDoNotRun) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const Candidates of(client);
    const auto isUsable = [&](uint64_t kernel) {
      return of.multiply(of.handle, of.get(kernel)) == kBlasSuccess;
    };
    const bool isRefused =
        of.check(of.handle, of.get(kUnsupportedKernel)) == kBlasSuccess &&
        of.multiply(of.handle, of.get(kUnsupportedKernel)) == kBlasNotSupported;
    const bool runsOutside = isUsable(kUncapturedKernel);
    CUgraph graph = nullptr;
    Client::require(
        cuStreamBeginCapture_v2(client.stream, kCudaCaptureThreadLocal),
        "capture");
    const bool runsInside = isUsable(kUncapturedKernel);
    const CUresult ended = cuStreamEndCapture(client.stream, &graph);
    return isRefused && runsOutside && !runsInside && ended == 901;
  }));
}

TEST(CublasLt, WorkspacesAreAlignedTo256Bytes) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const Candidates of(client);
    const CUdeviceptr workspace = client.allocate(1024);
    const cublasLtMatmulAlgo_t split = of.get(0), whole = of.get(kPlainKernel);
    const auto multiply = [&](const cublasLtMatmulAlgo_t &algorithm,
                              CUdeviceptr at, size_t bytes) {
      return of.multiply(of.handle, algorithm, at, bytes);
    };
    return multiply(split, workspace, 2048) == kBlasSuccess &&
           multiply(split, workspace + 256, 2048) == kBlasSuccess &&
           multiply(split, workspace + 64, 2048) == kBlasInvalidValue &&
           multiply(split, workspace + 128, 2048) == kBlasInvalidValue &&
           multiply(split, 0, 2048) == kBlasInvalidValue &&
           multiply(split, workspace, 64) == kBlasInvalidValue &&
           // Not even an unused workspace may be misaligned.
           multiply(whole, workspace + 64, 0) == kBlasInvalidValue &&
           multiply(whole, 0, 0) == kBlasSuccess;
  }));
}

TEST(CublasLt, AlgorithmsTakeTheirTime) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const Candidates of(client);
    const Product product = {*of.description, *of.layout, *of.layout,
                             *of.layout,      *of.layout, 8, 8, 8};
    const auto time = [&](uint64_t kernel) {
      const cublasLtMatmulAlgo_t algorithm = of.get(kernel);
      return timeOf(*Algorithm::read(&algorithm), product);
    };
    return time(0) > std::chrono::microseconds(1) &&
           time(0) != time(kPlainKernel) &&
           time(kPlainKernel) != time(kSilentKernel);
  }));
}
