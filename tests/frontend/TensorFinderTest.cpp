// SPDX-License-Identifier: MIT

// Experts in a quantized format, which are three-dimensional in the files.

#include "frontend/TensorFinder.h"
#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

using namespace qlora;

namespace {

const std::string kName = "layers.0.mlp.experts.down_proj";

/// Files with two experts of 3 rows and 64 columns, and scales of a given
/// shape.
struct ExpertFiles {
  explicit ExpertFiles(std::vector<int64_t> scaleShape,
                       SafetensorsDtype type = SafetensorsDtype::kU8) {
    const std::vector<uint8_t> blocks(2 * 3 * 2 * 16);
    size_t count = 1;
    for (int64_t extent : scaleShape)
      count *= static_cast<size_t>(extent);
    const std::vector<uint8_t> scales(count, 127);
    const Status status = writeSafetensors(
        folder.path("model.safetensors"),
        {{kName + "_blocks", SafetensorsDtype::kU8, {2, 3, 2, 16}, blocks},
         {kName + (count ? "_scales" : "_nothing"), type, scaleShape, scales}},
        {});
    EXPECT_TRUE(status.isOk()) << status.message();
    config.storedFormat = storedFormat(QLORA_DTYPE_MXFP4);
  }

  StatusOr<Weight> find(const std::vector<int64_t> &shape) {
    auto files = ModelFiles::open(folder.path());
    EXPECT_TRUE(files.isOk()) << files.status().message();
    TensorFinder finder(config, *files);
    return finder.stored(kName, shape);
  }
  std::string refusal(const std::vector<int64_t> &shape) {
    return std::string(find(shape).status().message());
  }

  TemporaryFolder folder;
  ModelConfig config;
};

TEST(TensorFinder, StacksStoredExperts) {
  const StatusOr<Weight> weight = ExpertFiles({2, 3, 2}).find({2, 3, 64});
  ASSERT_TRUE(weight.isOk()) << weight.status().message();
  EXPECT_EQ(weight->name, kName);
  EXPECT_EQ(weight->shape, (std::vector<int64_t>{6, 64}));
  ASSERT_TRUE(weight->stored);
  EXPECT_EQ(weight->stored->dtype, QLORA_DTYPE_MXFP4);
  EXPECT_EQ(weight->stored->blocks, 12);
}

TEST(TensorFinder, RefusesStoredExpertsThatDoNotFit) {
  EXPECT_NE(ExpertFiles({2, 3, 2}).refusal({4, 3, 64}).find(
                "has shape [2, 3, 64]; config.json implies [4, 3, 64]"),
            std::string::npos);
  EXPECT_NE(ExpertFiles({2, 3, 1}).refusal({2, 3, 64}).find(
                "_scales' is U8 [2, 3, 1]; expected U8 [2, 3, 2]"),
            std::string::npos);
  EXPECT_NE(ExpertFiles({2, 3, 2}, SafetensorsDtype::kI8)
                .refusal({2, 3, 64})
                .find("_scales' is I8 [2, 3, 2]; expected U8"),
            std::string::npos);
  EXPECT_NE(ExpertFiles({0}).refusal({2, 3, 64}).find("has no tensor '" +
                                                     kName + "_scales'"),
            std::string::npos);
  ExpertFiles other({2, 3, 2});
  other.config.storedFormat = storedFormat(QLORA_DTYPE_NF4);
  EXPECT_NE(other.refusal({2, 3, 64}).find(
                "is stored as MXFP4, but config.json says NF4"),
            std::string::npos);
  other.config.storedFormat = nullptr;
  EXPECT_NE(other.refusal({2, 3, 64}).find(
                "is quantized, but config.json has no quantization_config"),
            std::string::npos);
}

} // namespace
