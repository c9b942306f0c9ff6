// SPDX-License-Identifier: MIT

// The demo module on the CPU device: results, order across queues, errors of
// collectives, and no allocation during a step.

#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "tests/runtime/DemoTables.h"
#include "tests/runtime/Device/AllocationCount.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

/// Simulates two ranks with the same data. Collectives are slow, so that
/// missing waits are noticed.
class Doubling final : public Collectives {
public:
  int rank() const override { return own; }
  int size() const override { return 2; }
  Status run(const CollectiveCall &call) override {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (fail)
      return Status::error(StatusCode::kAborted, "rank 1 has died");
    auto *data = reinterpret_cast<float *>(call.to.data());
    for (size_t i = 0; i < call.to.size() / sizeof(float); ++i)
      data[i] *= 2;
    return Status::ok();
  }
  StatusOr<std::vector<std::string>> allGather(std::string_view mine) override {
    return std::vector<std::string>(2, std::string(mine));
  }
  void abort() override { aborted = true; }

  int own = 0, calls = 0;
  bool fail = false;
  bool aborted = false;
};

/// Loads the demo module on a device, with w[i] = i, a[i] = 1, ids[i] = i + 1.
class CpuDeviceTest : public testing::Test {
protected:
  void start(const DeviceOptions &options) {
    auto loaded = tables.load();
    ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
    module.emplace(std::move(loaded).value());
    device = std::move(createDevice("cpu", options)).value();
    const Status status = device->load(*module, nullptr);
    ASSERT_TRUE(status.isOk()) << status.message();
    std::iota(floats(kDemoFrozen).begin(), floats(kDemoFrozen).end(), 0.0f);
    std::fill_n(floats(kDemoTrainable).begin(), 16, 1.0f);
    std::vector<int32_t> ids(16);
    std::iota(ids.begin(), ids.end(), 1);
    ASSERT_TRUE(device
                    ->write(kDemoInput, 0,
                            {reinterpret_cast<uint8_t *>(ids.data()), 64})
                    .isOk());
  }

  std::span<float> floats(uint32_t arena) {
    const auto bytes = device->hostArena(arena);
    return {reinterpret_cast<float *>(bytes.data()), bytes.size() / 4};
  }

  Status run(DemoEntry entry) {
    qlora_step_block step{};
    step.learning_rate = 0.5f;
    return runEntry(*device, *module, module->entries()[entry], step);
  }

  DemoTables tables;
  std::optional<LoadedModule> module;
  std::unique_ptr<Device> device;
};

TEST_F(CpuDeviceTest, RunsGeneratedKernelsAndCopies) {
  for (const int threads : {1, 2, 5}) {
    DeviceOptions options;
    options.threads = threads;
    start(options);
    ASSERT_TRUE(run(kDemoEvaluate).isOk());
    std::vector<float> result(16);
    ASSERT_TRUE(device
                    ->read(kDemoResult, 0,
                           {reinterpret_cast<uint8_t *>(result.data()), 64})
                    .isOk());
    for (size_t i = 0; i < 16; ++i)
      EXPECT_EQ(result[i], 2 * static_cast<float>(i) + 1);
  }
}

TEST_F(CpuDeviceTest, TrainsAcrossQueues) {
  Doubling group;
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &group;
  start(options);
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(run(kDemoAccumulate).isOk());
    for (size_t i = 0; i < 16; ++i)
      EXPECT_EQ(floats(kDemoGradient)[i], 2 * static_cast<float>(i + 1));
    ASSERT_TRUE(run(kDemoUpdate).isOk());
  }
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(floats(kDemoTrainable)[i], 1 - 3 * static_cast<float>(i + 1));
    EXPECT_EQ(floats(kDemoGradient)[i], 0);
  }
}

/// The shard index that the kernel keepShard() received last.
std::atomic<uint32_t> seenShard = 0;
void keepShard(const qlora_kernel_args *args, int64_t, int64_t) {
  seenShard = args->step->shard;
}

TEST_F(CpuDeviceTest, CommandsAreOfTheirGroup) {
  Doubling all, shards;
  shards.own = 1;
  DeviceOptions options;
  options.collectives = {&all, &shards};
  tables.header.mesh.fsdp = 2;
  for (const qlora_group group : {QLORA_GROUP_DP, QLORA_GROUP_FSDP}) {
    all.calls = shards.calls = 0;
    tables.commands[5].group = group;
    tables.kernels[1].function = keepShard;
    start(options);
    ASSERT_TRUE(run(kDemoAccumulate).isOk());
    EXPECT_EQ(all.calls, group == QLORA_GROUP_DP);
    EXPECT_EQ(shards.calls, group == QLORA_GROUP_FSDP);
    EXPECT_EQ(seenShard, 1u);
  }
}

TEST_F(CpuDeviceTest, TimesEveryCommandOnItsQueue) {
  Doubling group; // each collective takes 20 ms
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &group;
  start(options);
  ASSERT_TRUE(run(kDemoAccumulate).isOk());
  EXPECT_FALSE(device->finishTiming().isOk());
  ASSERT_TRUE(device->startTiming().isOk());
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(run(kDemoAccumulate).isOk());
    ASSERT_TRUE(run(kDemoUpdate).isOk());
  }
  const auto timed = device->finishTiming();
  ASSERT_TRUE(timed.isOk()) << timed.status().message();
  std::vector<int> runs(module->commands().size());
  int64_t ends[QLORA_QUEUE_COUNT] = {};
  // Ends of the collectives, and of the compute queue's waits for them.
  std::vector<int64_t> summed, waited;
  for (const TimedCommand &t : timed.value()) {
    const qlora_command &command = module->commands()[t.command];
    ++runs[t.command];
    EXPECT_LE(t.start, t.end);
    EXPECT_LE(ends[command.queue], t.start);
    ends[command.queue] = t.end;
    if (command.kind == QLORA_COMMAND_COLLECTIVE) {
      EXPECT_GE(t.end - t.start, 20000000);
      summed.push_back(t.end);
    } else if (command.kind == QLORA_COMMAND_WAIT &&
               command.queue == QLORA_QUEUE_COMPUTE) {
      waited.push_back(t.end);
    }
  }
  // The compute queue waits until the collective has ended, even if it reaches
  // the wait late.
  ASSERT_EQ(summed.size(), 2u);
  ASSERT_EQ(waited.size(), 2u);
  for (size_t step = 0; step < 2; ++step)
    EXPECT_GE(waited[step], summed[step]);
  for (const DemoEntry entry : {kDemoAccumulate, kDemoUpdate})
    for (const qlora_command &command :
         module->commands(module->entries()[entry]))
      EXPECT_EQ(runs[size_t(&command - module->commands().data())],
                command.kind == QLORA_COMMAND_RECORD ? 0 : 2);
  EXPECT_FALSE(device->finishTiming().isOk());
}

#ifdef COUNTS_ALLOCATIONS
TEST_F(CpuDeviceTest, AllocatesNothingInAStep) {
  start({});
  ASSERT_TRUE(run(kDemoAccumulate).isOk()); // starts the threads
  const int64_t before = allocations.calls;
  const Status accumulate = run(kDemoAccumulate);
  const Status update = run(kDemoUpdate);
  EXPECT_EQ(allocations.calls, before);
  EXPECT_TRUE(accumulate.isOk() && update.isOk());
}
#endif

TEST_F(CpuDeviceTest, SaysWhenACollectiveFails) {
  Doubling group;
  group.fail = true;
  DeviceOptions options;
  options.collectives[QLORA_GROUP_DP] = &group;
  start(options);
  const Status status = run(kDemoAccumulate);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_HAS(status.message(), "rank 1 has died");
  EXPECT_HAS(run(kDemoUpdate).message(), "rank 1 has died");
}

TEST_F(CpuDeviceTest, RefusesMisuse) {
  start({});
  uint8_t byte = 0;
  EXPECT_HAS(device->write(kDemoInput, 64, {&byte, 1}).message(),
             "bytes 64+1 of the input arena of 64");
  EXPECT_HAS(device->read(9, 0, {&byte, 1}).message(), "arena 9 of 6");
  EXPECT_HAS(device->enqueue(module->commands()[0]).message(),
             "outside an entry");
  ASSERT_TRUE(device->begin(module->entries()[0], {}).isOk());
  EXPECT_HAS(device->enqueue(module->commands()[9]).message(),
             "of another entry");
  EXPECT_HAS(device->read(kDemoInput, 0, {&byte, 1}).message(), "between");
  EXPECT_TRUE(device->synchronize().isOk());
  EXPECT_HAS(device->load(*module, nullptr).message(), "has a module");
}

TEST_F(CpuDeviceTest, StartedReadsAreTakenInTheirOrder) {
  start({});
  float first = 0, second = 0;
  auto bytes = [](float &value) {
    return std::span(reinterpret_cast<uint8_t *>(&value), sizeof value);
  };
  EXPECT_EQ(device->traits.lead, 0);
  ASSERT_TRUE(device->startRead(kDemoFrozen, 12, 4).isOk());
  floats(kDemoFrozen)[3] = -1; // after the read, so it has no effect
  ASSERT_TRUE(device->startRead(kDemoFrozen, 12, 4).isOk());
  ASSERT_TRUE(device->finishRead(bytes(first)).isOk());
  ASSERT_TRUE(device->finishRead(bytes(second)).isOk());
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, -1);
  EXPECT_HAS(device->finishRead(bytes(first)).message(), "than the oldest");
  EXPECT_HAS(device->startRead(kDemoInput, 0, 65).message(), "arena of 64");
  for (size_t i = 0; i < Device::kMaxStartedReads; ++i)
    ASSERT_TRUE(device->startRead(kDemoInput, 0, 4).isOk());
  EXPECT_HAS(device->startRead(kDemoInput, 0, 4).message(), "after 32 others");
}

TEST_F(CpuDeviceTest, UsesASharedFrozenArena) {
  auto loaded = tables.load();
  ASSERT_TRUE(loaded.isOk());
  device = std::move(createDevice("cpu", {})).value();
  auto arena = std::move(FrozenArena::anonymous(64)).value();
  ASSERT_TRUE(device->load(*loaded, &arena).isOk());
  EXPECT_EQ(device->hostArena(kDemoFrozen).data(), arena.bytes().data());
  for (const ArenaUse &use : device->memory())
    EXPECT_EQ(use.allocatedBytes, use.plannedBytes);
  auto wrong = std::move(FrozenArena::anonymous(128)).value();
  auto second = std::move(createDevice("cpu", {})).value();
  EXPECT_HAS(second->load(*loaded, &wrong).message(),
             "has 128 bytes, the module needs 64");
}

TEST_F(CpuDeviceTest, NamesAnArenaThatDoesNotFit) {
  tables.arenas[kDemoActivation].bytes = uint64_t{1} << 47;
  auto loaded = tables.load();
  ASSERT_TRUE(loaded.isOk());
  device = std::move(createDevice("cpu", {})).value();
  const Status status = device->load(*loaded, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_HAS(status.message(), "activation arena: cannot get 140737488355328");
}

TEST_F(CpuDeviceTest, RunsLibraryKernels) {
  // Replaces the kernel gather by accumulate.cpu: gradient += w.
  tables.kernels[1] = libraryKernel("accumulate.cpu", 2, 4);
  tables.constants.insert(tables.constants.end(), {1, 16, 16, 16});
  tables.launches[1] = {"demo/accumulate", 1, 1, 4, 0, 0};
  tables.operands[5] = tables.operands[0];
  start({});
  const Status status = run(kDemoAccumulate);
  ASSERT_TRUE(status.isOk()) << status.message();
  for (size_t i = 0; i < 16; ++i)
    EXPECT_EQ(floats(kDemoGradient)[i], static_cast<float>(i));
}

TEST_F(CpuDeviceTest, LeavesDisabledKernelsOut) {
  tables.kernels[1] = libraryKernel("accumulate.cpu", 2, 4);
  tables.constants.insert(tables.constants.end(), {1, 16, 16, 16});
  tables.launches[1] = {"demo/accumulate", 1, 1, 4, 0, 0};
  tables.operands[5] = tables.operands[0];
  auto loaded = tables.load();
  ASSERT_TRUE(loaded.isOk());
  DeviceOptions options;
  options.disabledKernels = {"accumulate.cpu"};
  device = std::move(createDevice("cpu", options)).value();
  // With accumulate.cpu disabled, the op has no implementation.
  EXPECT_HAS(device->load(*loaded, nullptr).message(),
             "accumulate.cpu: disabled by --disable-kernels");
}

TEST_F(CpuDeviceTest, TakesAReferenceOnlyWhereItIsAskedFor) {
  // Replaces the kernel gather by decode.vector: gradient [4, 4] := w.
  tables.kernels[1] = libraryKernel("decode.vector", 2, 4);
  tables.constants.insert(tables.constants.end(), {4, 4, 64, 0});
  tables.launches[1] = {"demo/decode", 1, 1, 4, 0, 0};
  tables.operands[5] = tables.operands[0];
  tables.operands[6].access = QLORA_WRITE;
  auto loaded = tables.load();
  ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
  const auto loadWith = [&](DeviceOptions options) {
    device = std::move(createDevice("cpu", options)).value();
    return device->load(*loaded, nullptr);
  };
  DeviceOptions options;
  options.disabledKernels = {"decode.vector"};
  EXPECT_HAS(loadWith(options).message(),
             "disabled by --disable-kernels; use --reference-kernels decode to "
             "run the slow reference kernel");
  options.referenceKernels = {"decode"};
  const Status status = loadWith(options);
  ASSERT_TRUE(status.isOk()) << status.message();
  EXPECT_EQ(device->kernelName(1), "decode.reference");
}

TEST_F(CpuDeviceTest, RefusesOperandsThatAKernelWouldOverrun) {
  tables.kernels[1] = libraryKernel("accumulate.cpu", 2, 4);
  tables.constants.insert(tables.constants.end(), {1, 17, 17, 17});
  tables.launches[1] = {"demo/accumulate", 1, 1, 4, 0, 0};
  tables.operands[5] = tables.operands[0];
  auto loaded = tables.load();
  ASSERT_TRUE(loaded.isOk());
  device = std::move(createDevice("cpu", {})).value();
  EXPECT_HAS(device->load(*loaded, nullptr).message(),
             "operand 'x' has 64 bytes, but the kernel accesses 68");
}

} // namespace
} // namespace qlora
