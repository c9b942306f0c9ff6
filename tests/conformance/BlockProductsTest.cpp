// SPDX-License-Identifier: MIT

// The small matmuls of attention: results, and the error of a failed matmul.

#include "runtime/Kernels/Cpu/BlockProducts.h"

#include <gtest/gtest.h>

#include "tests/conformance/KernelCase.h"

namespace qlora {
namespace {

TEST(BlockProducts, SaysWhichProductFailed) {
  const auto products = BlockProducts::create({}, QLORA_DTYPE_F32, 1, 0);
  const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 2, 3, 4, 5, 6};
  float c[4] = {};
  const auto run = [&](int64_t ldc) {
    return products->run(0, {}, {2, 2, 3}, {a, 3}, {b, 2}, c, ldc, nullptr);
  };
  expectOk(run(2));
  EXPECT_EQ(c[3], 4 * 2 + 5 * 4 + 6 * 6);
  // oneDNN refuses rows of c that overlap.
  const Status refused = run(1);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("dnnl_sgemm failed with status"),
            std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("2 x 2 x 3"), std::string::npos);
}

} // namespace
} // namespace qlora
