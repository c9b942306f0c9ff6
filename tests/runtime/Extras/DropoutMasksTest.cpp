// SPDX-License-Identifier: MIT

// Dropout masks that are computed on the host, and records that do not match
// the module.

#include "runtime/Extras/DropoutMasks.h"
#include "runtime/Base/JsonText.h"

#include <gtest/gtest.h>

#include <numeric>

using namespace qlora;
using nlohmann::json;

namespace {

class DropoutMasks : public testing::Test {
protected:
  /// The unigram module has one adapter, whose input has 16 columns.
  static constexpr const char *kName =
      "base_model.model.model.scores.lora_A.weight";

  StatusOr<std::vector<AdapterDropout>> read(const json &recorded) {
    json all = json::parse(module.table().config_json);
    if (!recorded.is_null())
      all["adapter_dropout"] = recorded;
    Options options;
    Status status = options.applyRecorded(dumpJson(all));
    EXPECT_TRUE(status.isOk()) << status.message();
    return recordedDropout(module, options);
  }
  /// Returns the error for a wrong record, without the module's path.
  std::string refusal(const json &recorded) {
    Status status = read(recorded).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    std::string prefix = "'" + module.path() + "': adapter_dropout ";
    EXPECT_EQ(status.message().substr(0, prefix.size()), prefix);
    return status.message().substr(
        std::min(prefix.size(), status.message().size()));
  }

  LoadedModule module =
      std::move(LoadedModule::open(QLORA_UNIGRAM_MODULE)).value();
};

TEST_F(DropoutMasks, AreReadByAdapter) {
  auto none = read(nullptr);
  ASSERT_TRUE(none.isOk()) << none.status().message();
  EXPECT_TRUE(none->empty());
  auto one = read({{kName, {{"op", 3}, {"probability", 0.25}}}});
  ASSERT_TRUE(one.isOk()) << one.status().message();
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().module, "base_model.model.model.scores");
  EXPECT_EQ(one->front().columns, 16);
  EXPECT_EQ(one->front().op, 3);
  EXPECT_EQ(one->front().probability, 0.25f);
}

TEST_F(DropoutMasks, MustDescribeTheAdapters) {
  const std::string missing = "has no op and probability for '" +
                              std::string(kName) + "'; compile it again";
  EXPECT_EQ(refusal(json::array()), "is not an object; compile it again");
  EXPECT_EQ(refusal(json::object()), missing);
  EXPECT_EQ(refusal({{kName, {{"op", 3}}}}), missing);
  EXPECT_EQ(refusal({{kName, {{"op", "3"}, {"probability", 0.5}}}}), missing);
  EXPECT_EQ(refusal({{kName, {{"op", 3}, {"probability", 0.5}}},
                     {"x.lora_A.weight", {{"op", 4}, {"probability", 0.5}}}}),
            "names adapters that are not in the program; compile it again");
}

// Random123's known answer of philox4x32-10 for a counter and key of zeros:
// 6627e8d5 e169c58d bc57ac4c 9b00dbd8. The top 24 bits of each word over 2^24
// are 0.3990, 0.8805, 0.7357 and 0.6055.
TEST_F(DropoutMasks, AreThoseOfPhilox) {
  std::vector<uint8_t> mask(4);
  drawMask({"", 4, 0, 0.7f}, 0, 0, 1, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 1, 0}));
  drawMask({"", 4, 0, 0.5f}, 0, 0, 1, mask);
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 1, 1}));
}

TEST_F(DropoutMasks, DifferInEveryArgument) {
  const AdapterDropout dropout = {"", 10, 1, 0.5f};
  AdapterDropout other = dropout;
  other.op = 2;
  std::vector<uint8_t> mask(1000), again(1000);
  auto differences = [&] {
    int count = 0;
    for (size_t i = 0; i < mask.size(); ++i)
      count += mask[i] != again[i];
    return count;
  };
  drawMask(dropout, 42, 7, 100, mask);
  // 500 of 1,000 values are expected to be kept, +- five standard deviations of
  // sqrt(1000 / 4).
  EXPECT_NEAR(std::accumulate(mask.begin(), mask.end(), 0), 500, 80);
  drawMask(dropout, 42, 7, 100, again);
  EXPECT_EQ(differences(), 0);
  drawMask(dropout, 42, 8, 100, again);
  EXPECT_NEAR(differences(), 500, 80);
  drawMask(dropout, 43, 7, 100, again);
  EXPECT_NEAR(differences(), 500, 80);
  drawMask(other, 42, 7, 100, again);
  EXPECT_NEAR(differences(), 500, 80);
}

} // namespace
