// SPDX-License-Identifier: MIT

// The null device counts the demo's commands, and rejects programs that read
// unwritten bytes or have a race between queues.

#include "runtime/Device/Device.h"
#include "runtime/Device/Program.h"
#include "tests/runtime/DemoTables.h"

#include <gtest/gtest.h>

#include <bit>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

/// Runs one entry of the modified tables on the null device.
Status runNull(DemoTables &tables, DemoEntry entry) {
  QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
  QLORA_ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                         createDevice("null", {}));
  QLORA_RETURN_IF_ERROR(device->load(module, nullptr));
  return runEntry(*device, module, module.entries()[entry], {});
}

TEST(NullDevice, CountsAStep) {
  DemoTables tables;
  auto module = tables.load();
  auto device = std::move(createDevice("null", {})).value();
  ASSERT_TRUE(device->load(*module, nullptr).isOk());
  for (const qlora_entry &entry : module->entries()) {
    const Status status = runEntry(*device, *module, entry, {});
    ASSERT_TRUE(status.isOk()) << status.message();
  }
  const DeviceCounters &counters = device->counters();
  EXPECT_EQ(counters.commands[QLORA_COMMAND_LAUNCH], 4u);
  EXPECT_EQ(counters.commands[QLORA_COMMAND_COPY], 1u);
  EXPECT_EQ(counters.commands[QLORA_COMMAND_FILL], 1u);
  EXPECT_EQ(counters.commands[QLORA_COMMAND_COLLECTIVE], 1u);
  EXPECT_EQ(counters.commands[QLORA_COMMAND_RECORD], 2u);
  EXPECT_EQ(counters.commands[QLORA_COMMAND_WAIT], 2u);
  EXPECT_EQ(counters.collectiveBytes[QLORA_GROUP_DP]
                                    [QLORA_COLLECTIVE_ALL_REDUCE],
            72u);
  // Bytes written: scale_add 2 * 64, gather 64, copy 64, descend 64, fill 72
  // and all-reduce 72.
  EXPECT_EQ(counters.bytesWritten, 128u + 64 + 64 + 64 + 72 + 72);
  for (const ArenaUse &use : device->memory())
    EXPECT_EQ(use.allocatedBytes, 0u);
}

TEST(NullDevice, CountsBytesByKindForTheGroupThatAProgramIsFor) {
  DemoTables tables;
  // An all-gather of two ranks' halves of the gradients and the label count.
  qlora_command &gather = tables.commands[5];
  gather.collective = QLORA_COLLECTIVE_ALL_GATHER;
  gather.operand_count = 2;
  gather.first_operand = uint32_t(tables.operands.size());
  tables.operands.push_back(
      {kDemoGradient, QLORA_DTYPE_F32, QLORA_WRITE, 0, 0, 0, 0, 72, 0, 0});
  tables.operands.push_back(
      {kDemoTrainable, QLORA_DTYPE_F32, QLORA_READ, 0, 0, 0, 0, 36, 0, 0});
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  DeviceOptions options;
  options.ranks = 2;
  auto device = std::move(createDevice("null", options)).value();
  ASSERT_TRUE(device->load(*module, nullptr).isOk());
  const qlora_entry &entry = module->entries()[kDemoAccumulate];
  ASSERT_TRUE(runEntry(*device, *module, entry, {}).isOk());
  const auto &bytes = device->counters().collectiveBytes[QLORA_GROUP_DP];
  EXPECT_EQ(bytes[QLORA_COLLECTIVE_ALL_GATHER], 72u);
  EXPECT_EQ(bytes[QLORA_COLLECTIVE_ALL_REDUCE], 0u);
  options.ranks = 4;
  device = std::move(createDevice("null", options)).value();
  EXPECT_EQ(
      device->load(*module, nullptr).message(),
      "the program's all_gather over dp has operands of 72 and 36 bytes, which "
      "do not fit 4 ranks; start the number that it was compiled for");
}

/// Returns the status of loading on the null device for a group of `ranks`
/// ranks. The demo's collective becomes `kind`, with operands of these sizes.
Status loadCollective(int ranks, qlora_collective kind, uint64_t toBytes,
                      uint64_t fromBytes) {
  DemoTables tables;
  qlora_command &command = tables.commands[5];
  command.collective = kind;
  command.operand_count = 2;
  command.first_operand = uint32_t(tables.operands.size());
  tables.operands.push_back(
      {kDemoGradient, QLORA_DTYPE_F32, QLORA_WRITE, 0, 0, 0, 0, toBytes, 0, 0});
  tables.operands.push_back({kDemoTrainable, QLORA_DTYPE_F32, QLORA_READ, 0, 0,
                             0, 0, fromBytes, 0, 0});
  QLORA_ASSIGN_OR_RETURN(LoadedModule module, tables.load());
  DeviceOptions options;
  options.ranks = ranks;
  QLORA_ASSIGN_OR_RETURN(auto device, createDevice("null", options));
  return device->load(module, nullptr);
}

TEST(NullDevice, RefusesPiecesThatAreNotEqual) {
  // 64 bytes are 16 elements, which cannot be divided by 3 ranks nor by 32
  // ranks.
  EXPECT_TRUE(loadCollective(4, QLORA_COLLECTIVE_ALL_TO_ALL, 64, 64).isOk());
  EXPECT_HAS(loadCollective(3, QLORA_COLLECTIVE_ALL_TO_ALL, 64, 64).message(),
             "all_to_all over dp has operands of 64 and 64 bytes, which do not "
             "fit 3 ranks");
  EXPECT_HAS(loadCollective(32, QLORA_COLLECTIVE_ALL_TO_ALL, 64, 64).message(),
             "do not fit 32 ranks");
  // 3 ranks can divide 72 bytes into shards, but not into shards of 36 bytes.
  EXPECT_TRUE(loadCollective(2, QLORA_COLLECTIVE_ALL_GATHER, 72, 36).isOk());
  EXPECT_HAS(loadCollective(3, QLORA_COLLECTIVE_ALL_GATHER, 72, 36).message(),
             "all_gather over dp has operands of 72 and 36 bytes, which do not "
             "fit 3 ranks");
}

static Status loadOn(int ranks, DemoTables &tables) {
  QLORA_ASSIGN_OR_RETURN(const LoadedModule module, tables.load());
  DeviceOptions options;
  options.ranks = ranks;
  return std::move(createDevice("null", options))
      .value()
      ->load(module, nullptr);
}

TEST(NullDevice, RefusesABroadcastFromNobody) {
  DemoTables tables;
  qlora_command &broadcast = tables.commands[5];
  broadcast.collective = QLORA_COLLECTIVE_BROADCAST;
  broadcast.peer = 2;
  EXPECT_EQ(loadOn(2, tables).message(),
            "the program's broadcast over dp is from rank 2, but there are 2 "
            "ranks; start the number that it was compiled for");
  const Status status = loadOn(3, tables);
  EXPECT_TRUE(status.isOk()) << status.message();
}

TEST(NullDevice, RefusesToSendToTheRankItself) {
  DemoTables tables;
  qlora_command &send = tables.commands[5];
  send.collective = QLORA_COLLECTIVE_SEND;
  send.peer = -2;
  tables.operands[7].access = QLORA_READ;
  EXPECT_EQ(loadOn(2, tables).message(),
            "the program's send over dp at a distance of -2 in a group of 2 "
            "ranks would reach the rank itself; start the number that it was "
            "compiled for");
  const Status status = loadOn(3, tables);
  EXPECT_TRUE(status.isOk()) << status.message();
}

TEST(NullDevice, FindsReadsBeforeWrites) {
  DemoTables tables;
  std::swap(tables.commands[0], tables.commands[1]);
  const Status status = runNull(tables, kDemoEvaluate);
  EXPECT_HAS(status.message(), "evaluate, command 0 (copy): operand 1 in the "
                               "activation arena: reads bytes 0+64, but byte "
                               "0 was not written before");
}

TEST(NullDevice, FindsReadsOfHalfWrittenRanges) {
  DemoTables tables;
  tables.operands[2].bytes = 32;
  EXPECT_HAS(runNull(tables, kDemoEvaluate).message(), "byte 32 was not");
}

TEST(NullDevice, FindsInputsThatNobodyWrites) {
  DemoTables tables;
  qlora_entry &entry = tables.entries[kDemoAccumulate];
  ++entry.first_binding; // skips the first binding, which binds ids
  --entry.binding_count;
  EXPECT_HAS(runNull(tables, kDemoAccumulate).message(),
             "operand 0 in the input arena: reads bytes 0+64, but byte 0 was "
             "not written before");
}

TEST(NullDevice, FindsResultsThatNobodyWrites) {
  DemoTables tables;
  --tables.entries[kDemoEvaluate].command_count; // omits the copy of the result
  EXPECT_HAS(runNull(tables, kDemoEvaluate).message(),
             "result in the result arena: reads bytes 0+64, but byte 0 was not "
             "written before");
}

/// Opening a module does not check its tables; loading it on a device does.
TEST(NullDevice, ChecksTheTablesOfWhatItLoads) {
  DemoTables tables;
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  tables.operands[0].offset = 4;
  auto device = std::move(createDevice("null", {})).value();
  EXPECT_HAS(device->load(*module, nullptr).message(),
             "operand 0: bytes 4+64 of the frozen arena of 64");
}

TEST(NullDevice, FindsEventsOutOfOrder) {
  DemoTables few;
  few.entries[kDemoAccumulate].event_count = 1;
  EXPECT_HAS(runNull(few, kDemoAccumulate).message(), "event 1 of 1");
  DemoTables twice;
  twice.commands[6].target = 0;
  EXPECT_HAS(runNull(twice, kDemoAccumulate).message(),
             "event 0 is recorded twice");
  DemoTables early;
  std::swap(early.commands[3], early.commands[4]);
  EXPECT_HAS(runNull(early, kDemoAccumulate).message(),
             "event 0 is waited for before it is recorded");
}

TEST(NullDevice, FindsRaces) {
  // First race: all_reduce does not wait for gather.
  DemoTables noWait;
  std::swap(noWait.commands[4], noWait.commands[5]);
  EXPECT_HAS(runNull(noWait, kDemoAccumulate).message(),
             "race: reads bytes 0+72 while the compute queue writes 0+64");
  // Second race: a later fill of the gradient does not wait for the all-reduce.
  DemoTables noJoin;
  noJoin.operands.push_back(noJoin.operands[10]);
  noJoin.commands[8] = {
      QLORA_COMMAND_FILL, QLORA_QUEUE_COMPUTE, 1, 0, 11, 0, 0, 0};
  EXPECT_HAS(runNull(noJoin, kDemoAccumulate).message(),
             "race: writes bytes 0+72 while the communication queue writes");
}

TEST(NullDevice, AcceptsOrderThroughAThirdQueue) {
  DemoTables tables;
  ASSERT_TRUE(runNull(tables, kDemoAccumulate).isOk());
}

/// Returns tables in which evaluate computes three weights ahead of their
/// consumers: on the copy queue, in two alternating buffers. Event 4 is
/// recorded first.
DemoTables aheadTables() {
  DemoTables tables;
  tables.arenas[kDemoActivation].bytes = 128;
  // scale_add writes to the demo's buffer 0 and to buffer 1; copies read both
  // buffers.
  const uint32_t make1 = tables.operands.size();
  tables.operands.insert(tables.operands.end(), &tables.operands[0],
                         &tables.operands[0] + 5);
  tables.operands[make1 + 2].offset = tables.operands[make1 + 4].offset = 64;
  const uint32_t make[] = {0, make1}, use[] = {3, make1 + 3};
  std::vector<qlora_command> commands;
  auto add = [&](uint32_t kind, uint32_t queue, uint32_t target,
                 uint32_t count = 0, uint32_t first = 0) {
    commands.push_back({uint8_t(kind), uint8_t(queue), uint16_t(count), target,
                        first, 0});
  };
  const uint32_t compute = QLORA_QUEUE_COMPUTE, copy = QLORA_QUEUE_COPY;
  add(QLORA_COMMAND_RECORD, compute, 4);
  add(QLORA_COMMAND_LAUNCH, copy, 0, 3, make[0]);
  add(QLORA_COMMAND_RECORD, copy, 0);
  add(QLORA_COMMAND_LAUNCH, copy, 0, 3, make[1]);
  add(QLORA_COMMAND_RECORD, copy, 1);
  add(QLORA_COMMAND_WAIT, compute, 0);
  add(QLORA_COMMAND_COPY, compute, 0, 2, use[0]);
  add(QLORA_COMMAND_RECORD, compute, 2);
  add(QLORA_COMMAND_WAIT, copy, 2);
  add(QLORA_COMMAND_LAUNCH, copy, 0, 3, make[0]);
  add(QLORA_COMMAND_RECORD, copy, 3);
  add(QLORA_COMMAND_WAIT, compute, 1);
  add(QLORA_COMMAND_COPY, compute, 0, 2, use[1]);
  add(QLORA_COMMAND_WAIT, compute, 3);
  add(QLORA_COMMAND_COPY, compute, 0, 2, use[0]);
  qlora_entry &entry = tables.entries[kDemoEvaluate];
  entry.first_command = tables.commands.size();
  entry.command_count = commands.size();
  entry.event_count = 5;
  tables.commands.insert(tables.commands.end(), commands.begin(),
                         commands.end());
  return tables;
}

TEST(NullDevice, FindsEveryMissingWait) {
  DemoTables ahead = aheadTables();
  EXPECT_EQ(runNull(ahead, kDemoEvaluate).message(), "");
  const qlora_entry entry = ahead.entries[kDemoEvaluate];
  int found = 0;
  for (uint32_t i = 0; i < entry.command_count; ++i) {
    DemoTables tables = aheadTables();
    qlora_command &command = tables.commands[entry.first_command + i];
    if (command.kind != QLORA_COMMAND_WAIT)
      continue;
    command.target = 4; // recorded before all others
    EXPECT_HAS(runNull(tables, kDemoEvaluate).message(), "race: ");
    ++found;
  }
  EXPECT_EQ(found, 4);
}

/// Returns tables in which evaluate is one library launch: result := 1 * w .
/// a^T + beta * result.
DemoTables matmulTables(double beta) {
  DemoTables tables;
  tables.kernels[0] = libraryKernel("matmul.reference", 4, 10);
  tables.constants = {
      4, 4, 4, 4, 4, 4, 0, 1, 0x3ff0000000000000, std::bit_cast<int64_t>(beta)};
  tables.launches[0] = {"demo/matmul", 0, 0, 10, 0, 0};
  tables.operands.push_back({kDemoFrozen, 0, QLORA_READ, 0, 0, 0, 0, 64, 0, 0});
  tables.operands.push_back(
      {kDemoTrainable, 0, QLORA_READ, 0, 0, 0, 0, 64, 0, 0});
  tables.operands.push_back(
      {kDemoActivation, 0, QLORA_READ_WRITE, 0, 0, 0, 0, 64, 0, 0});
  tables.operands.push_back({}); // no workspace
  tables.commands[0] = {
      QLORA_COMMAND_LAUNCH, QLORA_QUEUE_COMPUTE, 4, 0, 11, 0, 0, 0};
  tables.commands[7] = {
      QLORA_COMMAND_FILL, QLORA_QUEUE_COMPUTE, 1, 0, 10, 0, 0, 0};
  return tables;
}

TEST(NullDevice, KnowsThatBetaZeroReadsNothing) {
  DemoTables zero = matmulTables(0.0);
  EXPECT_EQ(runNull(zero, kDemoEvaluate).message(), "");
  DemoTables one = matmulTables(1.0);
  EXPECT_HAS(runNull(one, kDemoEvaluate).message(), "not written before");
}

TEST(NullDevice, ChecksLibraryLaunches) {
  DemoTables tooSmall = matmulTables(0.0);
  tooSmall.constants[2] = 8; // k: a and b would be 4 x 8
  tooSmall.constants[3] = tooSmall.constants[4] = 8;
  EXPECT_HAS(runNull(tooSmall, kDemoEvaluate).message(),
             "operand 'a' has 64 bytes, but the kernel accesses 128");
  DemoTables badStride = matmulTables(0.0);
  badStride.constants[3] = 2;
  EXPECT_HAS(runNull(badStride, kDemoEvaluate).message(), "matmul.reference");
}

TEST(Registry, NamesDevices) {
  EXPECT_EQ((*createDevice("cpu", {}))->traits.name, "cpu");
  EXPECT_EQ((*createDevice("null", {}))->traits.name, "null");
  // If the machine has no usable GPU, the error says what is missing.
  const auto cuda = createDevice("cuda", {});
  EXPECT_EQ(cuda.isOk() ? StatusCode::kNotFound : cuda.status().code(),
            StatusCode::kNotFound);
  EXPECT_HAS(createDevice("tpu", {}).status().message(),
             "choose from: cpu, cuda, null");
}

} // namespace
} // namespace qlora
