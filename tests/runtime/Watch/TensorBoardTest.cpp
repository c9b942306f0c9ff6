// SPDX-License-Identifier: MIT

// Checks the bytes of event files. tests/e2e/watching.py reads such files with
// TensorBoard.

#include <gtest/gtest.h>

#include <filesystem>

#include "runtime/Watch/Metrics.h"
#include "runtime/Watch/TensorBoard.h"
#include "runtime/Watch/TrainerLog.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

TEST(TensorBoard, HasTheStandardsChecksum) {
  // CRC of RFC 3720, section B.4, with TFRecord's mask.
  const auto masked = [](uint32_t crc) {
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  EXPECT_EQ(maskedCrc32c(std::string(32, '\0')), masked(0x8a9136aa));
  EXPECT_EQ(maskedCrc32c(std::string(32, '\xff')), masked(0x62a8ab43));
  EXPECT_EQ(maskedCrc32c("123456789"), masked(0xe3069283));
}

TEST(TensorBoard, AFolderThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder;
  folder.write("file", "");
  const auto board = TensorBoard::open(folder.path("file/runs"), 0);
  ASSERT_FALSE(board.isOk());
  EXPECT_NE(board.status().message().find(folder.path("file/runs")),
            std::string::npos);
}

TEST(TrainerLog, KeepsTheLinesOfBeforeAndNoLaterOnes) {
  const TemporaryFolder folder;
  folder.write(kTrainerLogFile, "{\"current_steps\":5}\nhalf a li\n"
                                "{\"current_steps\":10}\n"
                                "{\"current_steps\":15}\n");
  auto log = TrainerLog::open(folder.path(), 10, 20);
  ASSERT_TRUE(log.isOk()) << log.status().message();
  ASSERT_TRUE((*log)
                  ->log({{"step", 15},
                         {"loss", 0.5},
                         {"learning_rate", 1e-3},
                         {"epoch", 1.5},
                         {"num_input_tokens_seen", 100}})
                  .isOk());
  std::istringstream lines(folder.read(kTrainerLogFile));
  std::vector<nlohmann::json> read;
  for (std::string line; std::getline(lines, line);)
    read.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[1]["current_steps"], 10);
  EXPECT_EQ(read[2]["total_steps"], 20);
  EXPECT_EQ(read[2]["lr"], 1e-3);
  EXPECT_EQ(read[2]["percentage"], 75.0);
  EXPECT_EQ(read[2]["elapsed_time"], "0:00:00");
  EXPECT_EQ(read[2]["total_tokens"], 100);
}

class FailingSink final : public MetricsSink {
public:
  explicit FailingSink(int &calls) : calls(calls) {}
  Status log(const nlohmann::ordered_json &) override {
    ++calls;
    return Status::error(StatusCode::kUnavailable, "no");
  }
  int &calls;
};

TEST(Metrics, GoesOnWithoutASinkThatFails) {
  const TemporaryFolder folder;
  Metrics metrics(/*asJson=*/true, fopen("/dev/null", "w"),
                  fopen("/dev/null", "w"));
  ASSERT_TRUE(metrics.open(folder.path(), Metrics::Start::kNew).isOk());
  int calls = 0;
  metrics.attach(std::make_unique<FailingSink>(calls));
  for (int step : {1, 2})
    EXPECT_TRUE(metrics.log({{"step", step}}, "").isOk());
  EXPECT_EQ(calls, 1);
}

} // namespace
} // namespace qlora
