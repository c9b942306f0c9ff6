// SPDX-License-Identifier: MIT

// The predicted work of a command, for comparison with its measured time.

#include "runtime/Predict/CommandMetadata.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

/// A device that runs nothing and reports `row` as the implementation of
/// attention.
class ChoosingDevice final : public Device {
public:
  explicit ChoosingDevice(const char *row)
      : Device({}, {.name = "choosing"}), row(row) {}

protected:
  const KernelRow *rowOf(uint32_t) const override { return findKernelRow(row); }
  Status allocate(FrozenArena *) override { return Status::ok(); }
  Status writeArena(uint32_t, uint64_t, std::span<const uint8_t>) override {
    return Status::ok();
  }
  Status readArena(uint32_t, uint64_t, std::span<uint8_t>) override {
    return Status::ok();
  }
  Status runRow(const KernelRow &, const KernelRequest &,
                std::span<const qlora_operand>) override {
    return Status::ok();
  }
  Status execute(const qlora_command &) override { return Status::ok(); }
  Status finishEntry() override { return Status::ok(); }

private:
  const char *row;
};

/// Returns the metadata of the demo's attention, compiled for cuDNN, if the
/// device chooses `row`.
CommandMetadata attentionBy(const char *row) {
  DemoTables tables;
  tables.retarget();
  addAttention(tables, "attention.cudnn");
  auto module = tables.load();
  EXPECT_TRUE(module.isOk()) << module.status().message();
  const ChoosingDevice device(row);
  DeviceProfile rates = *findDeviceProfile("h200");
  rates.gpu->cudnnAttention = {{2, 2}, {2, 2}};
  rates.gpu->cudaAttention = {{1, 1}, {1, 1}};
  TimedCommand timed;
  timed.entry = kDemoAccumulate;
  timed.command = uint32_t(tables.commands.size() - 1);
  return CommandMetadataTable(*module, &device, rates, 1).of(timed);
}

TEST(CommandMetadata, TheBoundIsOfTheRowThatRuns) {
  const CommandMetadata cudnn = attentionBy("attention.cudnn"),
                        own = attentionBy("attention.cuda");
  EXPECT_EQ(own.kernel, "attention.cuda");
  EXPECT_EQ(own.kind, "attention");
  EXPECT_EQ(own.flops, 128 * 129 / 2 * 4 * 8);
  EXPECT_EQ(own.flops, cudnn.flops);
  EXPECT_NEAR(own.boundSeconds, 1.5e-6 + own.flops / 1e9, 1e-12);
  EXPECT_NEAR(cudnn.boundSeconds, 1.5e-6 + own.flops / 2e9, 1e-12);
}

} // namespace
} // namespace qlora
