// SPDX-License-Identifier: MIT

// Functions that generated kernels call on a GPU (Rows.h, "on CUDA";
// Lanes.cuh). The platform's instructions have the largest errors that a GPU's
// may have, so these tests verify the functions' error bounds.

#include "tests/cuda/Platform/Platform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

using namespace qlora;
using namespace qlora::platform;

/// Returns row_functions of 256 values.
static std::vector<float> functionsOf(Client &client,
                                      const std::vector<float> &numbers) {
  const CUdeviceptr in = client.allocate(256), out = client.allocate(512);
  client.write(in, numbers);
  client.require(
      client.launch("row_functions", {out, in}, client.stream, 0, 1, 256),
      "launch");
  return client.read(out, 512);
}

TEST(RowFunctions, StayWithinTheirBounds) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    double worst[2] = {};
    for (int turn = 0; turn < 64; ++turn) {
      std::vector<float> x(256);
      for (int i = 0; i < 256; ++i)
        x[i] = float((turn * 256 + i) % 1999 - 999) * 0.0870131f;
      const std::vector<float> got = functionsOf(client, x);
      for (int i = 0; i < 256; ++i) {
        const double sigmoid = 1 / (1 + std::exp(-double(x[i])));
        const double root = 1 / std::sqrt(double(x[i] * x[i]));
        worst[0] =
            std::max(worst[0], std::abs(got[i] / sigmoid - 1) /
                                   ((4 + std::abs(x[i]) * 5 / 8) * 0x1p-23));
        if (x[i] != 0)
          worst[1] = std::max(worst[1],
                              std::abs(got[256 + i] / root - 1) * 0x1p22 *
                                  std::exp2(0.9));
      }
    }
    // The largest errors are close to the bounds, so the bounds are tested.
    return worst[0] <= 1 && worst[0] > 0.7 && worst[1] <= 1 && worst[1] > 0.7;
  }));
}

TEST(RowFunctions, AreRightAtTheEnds) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const float infinity = INFINITY;
    std::vector<float> x(256, 0.0f);
    x[1] = infinity, x[2] = -infinity, x[3] = NAN, x[4] = 200, x[5] = -200;
    const std::vector<float> got = functionsOf(client, x);
    return got[0] > 0.4999f && got[0] < 0.5001f &&
           std::abs(got[1] - 1) < 1e-6f && got[2] == 0 && std::isnan(got[3]) &&
           std::abs(got[4] - 1) < 1e-6f && got[5] == 0 &&
           got[256] == infinity && got[256 + 1] == 0 &&
           std::isnan(got[256 + 3]);
  }));
}

TEST(RowFunctions, LanesDrawWhatColumnsDraw) {
  EXPECT_TRUE(inProcess({}, [] {
    Client client;
    const CUdeviceptr in = client.allocate(16), out = client.allocate(1280);
    client.require(client.launch("draws", {out, in}, client.stream, 0, 1, 16),
                   "launch");
    const std::vector<float> drawn = client.read(out, 1280);
    bool isSame = true;
    for (int i = 0; i < 1280; ++i)
      isSame &= drawn[i] == drawn[i % 256];
    return isSame;
  }));
}
