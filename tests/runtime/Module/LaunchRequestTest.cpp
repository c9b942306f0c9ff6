// SPDX-License-Identifier: MIT

// Tests which kernels a user may disable.

#include "runtime/Module/LaunchRequest.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(LaunchRequest, KnowsTheNamesOfKernels) {
  const std::string good[] = {"attention.cudnn", "matmul.onednn"};
  EXPECT_TRUE(checkKernelNames(good).isOk());
  const std::string bad[] = {"attention.cudnn", "attention"};
  const std::string message = checkKernelNames(bad).message();
  EXPECT_NE(message.find("--disable-kernels: 'attention' is not a kernel; "
                         "choose from: "),
            std::string::npos)
      << message;
}

TEST(LaunchRequest, RefusesDisabledRowsOnly) {
  const std::string disabled[] = {"attention.cudnn"};
  EXPECT_EQ(checkEnabled(*findKernelRow("attention.cudnn"), disabled).code(),
            StatusCode::kUnavailable);
  EXPECT_TRUE(checkEnabled(*findKernelRow("attention.cuda"), disabled).isOk());
}

} // namespace
} // namespace qlora
