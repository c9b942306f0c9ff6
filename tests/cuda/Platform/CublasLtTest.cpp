// SPDX-License-Identifier: MIT

// Compares matmuls of the cuBLASLt look-alike with a plain loop, and checks its
// errors.

#include "tests/cuda/Platform/Platform.h"

#include "runtime/Kernels/Rows.h"

#include <gtest/gtest.h>

#include <cmath>

using namespace qlora;
using namespace qlora::platform;

namespace {
/// A column-major matrix in device memory, of small integers.
struct Matrix {
  Matrix(Client &client, int type, uint64_t rows, uint64_t columns,
         int64_t leading, int salt);
  float at(uint64_t row, uint64_t column) const {
    return float((row * 7 + column * 3 + uint64_t(salt)) % 5) - 2;
  }
  float read(Client &client, uint64_t row, uint64_t column) const;

  int type, salt;
  uint64_t rows, columns;
  int64_t leading;
  CUdeviceptr data;
  cublasLtMatrixLayout_t layout = nullptr;
};

struct Settings {
  int input, output;
  bool transposeA, transposeB;
  float alpha, beta;
};
} // namespace

Matrix::Matrix(Client &client, int type, uint64_t rows, uint64_t columns,
               int64_t leading, int salt)
    : type(type), salt(salt), rows(rows), columns(columns), leading(leading) {
  const size_t count = size_t(leading) * columns;
  data = client.allocate(count);
  std::vector<float> bits(count);
  for (uint64_t c = 0; c < columns; ++c)
    for (uint64_t r = 0; r < rows; ++r) {
      const auto i = int64_t(c) * leading + int64_t(r);
      if (type == kCudaR32F)
        qlora_store_f32(bits.data(), i, at(r, c));
      else
        qlora_store_bf16(bits.data(), i, at(r, c));
    }
  client.write(data, bits);
  Client::require(
      cublasLtMatrixLayoutCreate(&layout, type, rows, columns, leading),
      "layout");
}

float Matrix::read(Client &client, uint64_t row, uint64_t column) const {
  const auto i = int64_t(column) * leading + int64_t(row);
  const std::vector<float> bits = client.read(data, size_t(leading) * columns);
  return type == kCudaR32F ? qlora_load_f32(bits.data(), i)
                           : qlora_load_bf16(bits.data(), i);
}

static cublasLtMatmulDesc_t describe(const Settings &of) {
  cublasLtMatmulDesc_t description = nullptr;
  Client::require(
      cublasLtMatmulDescCreate(&description, kCublasCompute32F, kCudaR32F),
      "description");
  const int32_t a = of.transposeA ? kCublasOpT : kCublasOpN;
  const int32_t b = of.transposeB ? kCublasOpT : kCublasOpN;
  Client::require(cublasLtMatmulDescSetAttribute(
                      description, kCublasDescTransposeA, &a, sizeof(a)),
                  "A");
  Client::require(cublasLtMatmulDescSetAttribute(
                      description, kCublasDescTransposeB, &b, sizeof(b)),
                  "B");
  return description;
}

static cublasLtMatmulHeuristicResult_t
findAlgorithm(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
              const Matrix &a, const Matrix &b, const Matrix &d,
              uint64_t workspace) {
  cublasLtMatmulPreference_t preference = nullptr;
  Client::require(cublasLtMatmulPreferenceCreate(&preference), "preference");
  Client::require(cublasLtMatmulPreferenceSetAttribute(
                      preference, kCublasPreferenceMaxWorkspace, &workspace,
                      sizeof(workspace)),
                  "workspace");
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  Client::require(cublasLtMatmulAlgoGetHeuristic(
                      handle, description, a.layout, b.layout, d.layout,
                      d.layout, preference, 1, &result, &found),
                  "heuristic");
  Client::require(found == 1 ? 0 : 1, "an algorithm");
  return result;
}

/// Returns the largest error of a 5 x 6 matmul over k = 7, or NaN.
static float productError(const Settings &of) {
  constexpr uint64_t kM = 5, kN = 6, kK = 7;
  Client client;
  cublasLtHandle_t handle = nullptr;
  Client::require(cublasLtCreate(&handle), "handle");
  const Matrix a(client, of.input, of.transposeA ? kK : kM,
                 of.transposeA ? kM : kK, 8, 1);
  const Matrix b(client, of.input, of.transposeB ? kN : kK,
                 of.transposeB ? kK : kN, 9, 2);
  const Matrix d(client, of.output, kM, kN, 6, 3);
  const auto description = describe(of);
  const auto found =
      findAlgorithm(handle, description, a, b, d, 1 << 20);
  const CUdeviceptr workspace = client.allocate(found.workspaceSize / 4 + 1);
  const auto pointer = [](CUdeviceptr address) {
    return reinterpret_cast<void *>(address);
  };
  Client::require(
      cublasLtMatmul(handle, description, &of.alpha, pointer(a.data), a.layout,
                     pointer(b.data), b.layout, &of.beta, pointer(d.data),
                     d.layout, pointer(d.data), d.layout, &found.algo,
                     pointer(workspace), found.workspaceSize, client.stream),
      "product");
  float worst = 0;
  for (uint64_t i = 0; i < kM; ++i)
    for (uint64_t j = 0; j < kN; ++j) {
      float sum = 0;
      for (uint64_t k = 0; k < kK; ++k)
        sum += (of.transposeA ? a.at(k, i) : a.at(i, k)) *
               (of.transposeB ? b.at(j, k) : b.at(k, j));
      const float want = of.alpha * sum + of.beta * d.at(i, j);
      worst = std::max(worst, std::abs(d.read(client, i, j) - want));
    }
  return worst;
}

TEST(CublasLt, MultipliesInEveryForm) {
  for (const int input : {kCudaR32F, kCudaR16BF})
    for (const int output : {kCudaR32F, kCudaR16BF})
      for (const bool transposeA : {false, true})
        for (const bool transposeB : {false, true}) {
          if (input == kCudaR32F && output == kCudaR16BF)
            continue; // refused: see below
          // The values are small integers, which are exact in bf16 too.
          EXPECT_TRUE(inProcess({}, [=] {
            return productError({input, output, transposeA, transposeB, 1,
                                 0}) == 0 &&
                   productError({input, output, transposeA, transposeB, 2,
                                 1}) == 0;
          })) << input
              << output << transposeA << transposeB;
        }
}

TEST(CublasLt, AnAlgorithmIsNotLoadedInACapture) {
  std::string errors;
  EXPECT_TRUE(inProcess(
      {},
      [] {
        Client client;
        cublasLtHandle_t handle = nullptr;
        Client::require(cublasLtCreate(&handle), "handle");
        const float one = 1;
        const Matrix a(client, kCudaR32F, 4, 4, 4, 1);
        const Matrix d(client, kCudaR32F, 4, 4, 4, 2);
        const auto description =
            describe({kCudaR32F, kCudaR32F, false, false, 1, 0});
        const auto multiply = [&] {
          return cublasLtMatmul(
              handle, description, &one, reinterpret_cast<void *>(a.data),
              a.layout, reinterpret_cast<void *>(a.data), a.layout, &one,
              reinterpret_cast<void *>(d.data), d.layout,
              reinterpret_cast<void *>(d.data), d.layout, nullptr, nullptr, 0,
              client.stream);
        };
        const auto captured = [&] {
          CUgraph graph = nullptr;
          Client::require(cuStreamBeginCapture_v2(client.stream, 1), "begin");
          const cublasStatus_t status = multiply();
          return std::pair(status, cuStreamEndCapture(client.stream, &graph));
        };
        return captured() == std::pair(int(kBlasExecutionFailed),
                                       int(kCaptureInvalidated)) &&
               multiply() == 0 && captured() == std::pair(0, 0);
      },
      &errors));
  EXPECT_NE(errors.find("is first used inside of a capture"),
            std::string::npos)
      << errors;
}

TEST(CublasLt, RefusesWrongArguments) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    cublasLtHandle_t handle = nullptr;
    Client::require(cublasLtCreate(&handle), "handle");
    const Matrix a(client, kCudaR32F, 8, 8, 8, 1);
    const Matrix b(client, kCudaR32F, 8, 8, 8, 1);
    const Matrix d(client, kCudaR32F, 8, 8, 8, 1);
    const Matrix wide(client, kCudaR32F, 8, 9, 8, 1);
    const Matrix half(client, kCudaR16BF, 8, 8, 8, 1);
    const auto description = describe({0, 0, false, false, 1, 0});
    const float one = 1;
    const auto multiply = [&](const Matrix &left, const Matrix &right,
                              const Matrix &out, uint64_t shift,
                              const cublasLtMatmulAlgo_t *algorithm,
                              size_t workspace) {
      const auto pointer = [](CUdeviceptr address) {
        return reinterpret_cast<void *>(address);
      };
      return cublasLtMatmul(handle, description, &one,
                            pointer(left.data + shift), left.layout,
                            pointer(right.data), right.layout, &one,
                            pointer(out.data), out.layout, pointer(out.data),
                            out.layout, algorithm, nullptr, workspace,
                            client.stream);
    };
    const auto found = findAlgorithm(handle, description, a, a, a, 1 << 20);
    const auto other = findAlgorithm(handle, description, a, wide, wide, 0);
    cublasLtMatrixLayout_t layout = nullptr;
    return multiply(a, b, wide, 0, nullptr, 0) == kBlasInvalidValue &&
           multiply(a, b, half, 0, nullptr, 0) == kBlasInvalidValue &&
           multiply(a, b, d, 4, nullptr, 0) == kBlasInvalidValue &&
           multiply(a, b, d, 16, nullptr, 0) == kBlasInvalidValue &&
           multiply(a, b, d, 0, &other.algo, 0) == kBlasInvalidValue &&
           multiply(a, b, d, 0, &found.algo, 0) == kBlasInvalidValue &&
           cublasLtMatrixLayoutCreate(&layout, kCudaR32F, 8, 8, 7) ==
               kBlasInvalidValue &&
           multiply(a, a, a, 0, nullptr, 0) == kBlasInvalidValue &&
           multiply(a, b, d, 0, nullptr, 0) == kBlasSuccess;
  }));
}
