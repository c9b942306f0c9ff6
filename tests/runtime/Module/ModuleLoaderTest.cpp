// SPDX-License-Identifier: MIT

// The loader accepts the demo module. If any field is changed, the loader
// rejects the module with a message that names the error.

#include "runtime/Module/ModuleLoader.h"

#include "tests/runtime/Module/RefusedTables.h"
#include "tests/runtime/TemporaryFolder.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

TEST(ModuleLoader, LoadsTheDemo) {
  auto module = LoadedModule::open(QLORA_DEMO_MODULE);
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(module->arenas().size(), 6u);
  EXPECT_EQ(module->arena(QLORA_ARENA_GRADIENT), 2u);
  EXPECT_EQ(module->arena(QLORA_ARENA_WORKSPACE), std::nullopt);
  EXPECT_EQ(module->arenaBytes(QLORA_ARENA_GRADIENT), 72u);
  const qlora_entry *entry = module->entry(QLORA_ENTRY_ACCUMULATE_LAST, 2, 8);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(module->commands(*entry).size(), 7u);
  EXPECT_NE(module->binding(*entry, QLORA_INPUT_IDS), nullptr);
  EXPECT_EQ(module->binding(*entry, QLORA_INPUT_SEGMENTS), nullptr);
  EXPECT_EQ(module->entry(QLORA_ENTRY_ACCUMULATE, 2, 8), nullptr);
  EXPECT_NE(module->entry(QLORA_ENTRY_UPDATE), nullptr);
}

TEST(ModuleLoader, RefusesHeaders) {
  EXPECT_REFUSED((void)t, "");
  EXPECT_REFUSED(t.header.magic ^= 1, "not a program of qloracc");
  EXPECT_REFUSED(t.header.abi_version = QLORA_ABI_VERSION + 1,
                 "format version " + std::to_string(QLORA_ABI_VERSION + 1));
  EXPECT_REFUSED(t.header.abi_version = 2, "format version 2");
  EXPECT_REFUSED(t.header.module_bytes -= 8, "208 bytes instead of 216");
  EXPECT_REFUSED(t.header.target = 7, "unknown target 7");
}

TEST(ModuleLoader, NamesMissingCpuFeatures) {
  DemoTables tables;
  tables.header.cpu_features = "warp_drive,flux,";
  const Status status = tables.load().status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_HAS(status.message(), "warp_drive, flux");
}

TEST(ModuleLoader, RefusesArenas) {
  EXPECT_REFUSED(t.arenas[0].kind = QLORA_ARENA_KIND_COUNT,
                 "arena 0: unknown, or a second unknown");
  EXPECT_REFUSED(t.arenas[1].kind = QLORA_ARENA_FROZEN, "second frozen arena");
  EXPECT_REFUSED(t.arenas[0].kind = QLORA_ARENA_RESULT, "second result arena");
  EXPECT_REFUSED(t.arenas[0].alignment = 0, "alignment 0");
  EXPECT_REFUSED(t.arenas[0].alignment = 48, "alignment 48");
  EXPECT_REFUSED(t.arenas[kDemoGradient].on_host = 1,
                 "a gradient arena with on_host 1");
  EXPECT_REFUSED(t.arenas[kDemoGradient].bytes = 60, "the gradient arena");
  EXPECT_REFUSED(t.arenas.push_back({QLORA_ARENA_ROUNDED, 64, 30, 0, 0}),
                 "the rounded arena has 30 bytes, the trainable one 64");
  EXPECT_REFUSED(t.arenas.push_back({QLORA_ARENA_RESIDUAL, 64, 64, 0, 0}),
                 "the residual arena has 64 bytes, the gradient one 72");
}

TEST(ModuleLoader, RefusesParameters) {
  EXPECT_REFUSED(t.parameters[1].name = t.parameters[0].name, "two param");
  EXPECT_REFUSED(t.parameters[0].arena = 6, "arena 6 of 6");
  EXPECT_REFUSED(t.parameters[0].arena = kDemoTrainable, "role 0 in the");
  EXPECT_REFUSED(t.parameters[0].init = QLORA_INIT_ZERO, "role 0 with init 1");
  EXPECT_REFUSED(t.parameters[1].init = QLORA_INIT_FILE, "role 1 with init 0");
  EXPECT_REFUSED(t.arenas.push_back({QLORA_ARENA_STATE, 64, 64, 0, 0});
                 t.parameters[1].arena = 6;
                 t.parameters[1].role = QLORA_ROLE_STATE;
                 t.parameters[1].init = QLORA_INIT_KAIMING,
                 "a state with init 2");
  EXPECT_REFUSED(t.parameters[1].dtype = QLORA_DTYPE_BF16, "is not f32");
  EXPECT_REFUSED(t.parameters[0].shape[0] = -4, "its shape has -16 elements");
  EXPECT_REFUSED(t.parameters[0].bytes = 60, "60 bytes instead of 64");
  EXPECT_REFUSED(t.parameters[0].offset = 4, "bytes 4+64 of an arena of 64");
  EXPECT_REFUSED(t.parameters[0].offset = ~uint64_t{0}, "of an arena of 64");
}

TEST(ModuleLoader, RefusesOverlappingParameters) {
  EXPECT_REFUSED(t.parameters.push_back(t.parameters[0]);
                 t.parameters[2].name = "other", "share bytes");
}

TEST(ModuleLoader, RefusesQuantizations) {
  EXPECT_REFUSED(t.parameters[0].quantization = 3; t.parameters[0].block = 64;
                 t.parameters[0].format = QLORA_DTYPE_NF4;
                 t.parameters[0].rank = 1,
                 "transposed, but of 1 dimensions");
  EXPECT_REFUSED(t.parameters[0].dtype = QLORA_DTYPE_NF4, "not quantized");
  EXPECT_REFUSED(t.parameters[0].block = 64, "not quantized, but");
  EXPECT_REFUSED(t.parameters[0].quantization = 1, "dtype 0 as format 0");
  EXPECT_REFUSED(t.parameters[0].quantization = 1;
                 t.parameters[0].format = QLORA_DTYPE_NF4, "block 0");
  EXPECT_REFUSED(t.parameters[0].quantization = 1;
                 t.parameters[0].format = QLORA_DTYPE_MXFP4;
                 t.parameters[0].block = 32, "mxfp4 with double_quant 0");
  EXPECT_REFUSED(t.parameters[0].quantization = 1;
                 t.parameters[0].format = QLORA_DTYPE_NF4;
                 t.parameters[0].block = 96, "block 96");
  EXPECT_REFUSED(t.parameters[0].quantization = 1; t.parameters[0].block = 64;
                 t.parameters[0].format = QLORA_DTYPE_NF4;
                 t.parameters[0].dtype = QLORA_DTYPE_NF4,
                 "64 bytes instead of");
}

TEST(ModuleLoader, RefusesKernelsAndLaunches) {
  EXPECT_REFUSED(t.kernels[0].function = nullptr, "no library kernel");
  EXPECT_REFUSED(t.kernels[0].function = nullptr;
                 t.kernels[0].name = "accumulate.cpu",
                 "3 operands and 1 constants instead of 2 and 4");
  EXPECT_REFUSED(t.launches[0].kernel = 3, "kernel 3 of 3");
  EXPECT_REFUSED(t.launches[0].constant_count = 0, "0 constants");
  EXPECT_REFUSED(t.launches[0].first_constant = 1, "constants 1+1 of 1");
  EXPECT_REFUSED(t.launches[0].first_constant = ~0u, "constants");
  EXPECT_REFUSED(t.launches[0].rows = -1, "-1 rows for kernel");
}

#define EXPECT_CUDA_REFUSED(change, part)                                      \
  EXPECT_HAS(errorAfter([](DemoTables &t) {                                    \
               t.retarget();                                                   \
               change;                                                         \
             }),                                                               \
             part)

TEST(ModuleLoader, RefusesDeviceKernels) {
  EXPECT_CUDA_REFUSED((void)t, "");
  EXPECT_CUDA_REFUSED(t.images.clear(), ""); // a plan has no images
  EXPECT_CUDA_REFUSED(t.kernels[0].threads = 0, "0 threads");
  EXPECT_CUDA_REFUSED(t.kernels[0].threads = 48, "48 threads");
  EXPECT_CUDA_REFUSED(t.kernels[0].threads = 1056, "1056 threads");
  EXPECT_CUDA_REFUSED(t.kernels[0].rows_per_block = 0, "or 0 rows per block");
  EXPECT_CUDA_REFUSED(t.kernels[0].operand_count = 33, "33 operands");
  EXPECT_CUDA_REFUSED(t.kernels[0].constant_count = 25, "25 constants");
  EXPECT_CUDA_REFUSED(t.launches[0].rows = int64_t{1} << 31,
                      "2147483648 rows");
  EXPECT_CUDA_REFUSED(t.kernels[1] = libraryKernel("clip_norm.cpu", 5, 3),
                      "a kernel of target cpu in a module for cuda");
  EXPECT_REFUSED(t.kernels[0].function = nullptr;
                 t.kernels[0].symbol = "scale_add", "another target than");
  EXPECT_REFUSED(t.header.target = QLORA_TARGET_CUDA, "another target than");
}

/// Replaces evaluate's first launch by a column_sum with a workspace in the
/// activation arena.
void useWorkspace(DemoTables &t, uint64_t offset, uint32_t alignment) {
  t.kernels[0] = libraryKernel("column_sum.cuda", 3, 3);
  t.constants = {4, 4, 4};
  t.launches[0] = {"demo/column_sum", 0, 0, 3, 0, 0};
  t.operands[1].access = QLORA_READ_WRITE;
  t.arenas[kDemoActivation] = {QLORA_ARENA_ACTIVATION, alignment, 1024, 0, 0};
  t.operands[2].offset = offset;
}

TEST(ModuleLoader, RefusesWorkspacesThatLibrariesWould) {
  EXPECT_CUDA_REFUSED(useWorkspace(t, 256, 256), "");
  EXPECT_CUDA_REFUSED(useWorkspace(t, 320, 256),
                      "kernel 'column_sum.cuda': workspace at byte 320 of an "
                      "arena aligned to 256, not at a multiple of 256");
  EXPECT_CUDA_REFUSED(useWorkspace(t, 256, 64), "of an arena aligned to 64");
}

TEST(ModuleLoader, RefusesOperands) {
  EXPECT_REFUSED(t.operands[0].arena = 6, "operand 0: arena 6 of 6");
  EXPECT_REFUSED(t.operands[0].offset = 4, "bytes 4+64");
  EXPECT_REFUSED(t.operands[0].bytes = ~uint64_t{0}, "of the frozen arena");
  EXPECT_REFUSED(t.operands[0].skipped = 64, "64 of 64 bytes skipped");
  EXPECT_REFUSED(t.operands[0].bytes = 62, "not a range of");
  EXPECT_REFUSED(t.operands[0].offset = 2;
                 t.operands[0].bytes = 60, "not a range of");
  EXPECT_REFUSED(t.operands[0].access = QLORA_WRITE, "writes the frozen");
}

TEST(ModuleLoader, RefusesCommands) {
  EXPECT_REFUSED(t.commands[0].first_operand = 10, "operands 10+3 of 11");
  EXPECT_REFUSED(t.commands[0].first_operand = ~0u, "operands");
  EXPECT_REFUSED(t.commands[0].target = 3, "launch 3 of 3");
  EXPECT_REFUSED(t.commands[0].operand_count = 2, "2 operands, but kernel");
  EXPECT_REFUSED(t.commands[0].queue = QLORA_QUEUE_COMMUNICATION,
                 "on the communication queue");
  EXPECT_REFUSED(t.commands[1].operand_count = 1, "1 operands instead of 2");
  EXPECT_REFUSED(t.operands[3].bytes = 32, "32 bytes from 64");
  EXPECT_REFUSED(t.operands[3] = t.operands[4];
                 t.operands[3].access = 2, "overlap");
  EXPECT_REFUSED(t.operands[3].access = QLORA_READ,
                 "access 1 instead of 0 and 2");
  EXPECT_REFUSED(t.commands[5].queue = QLORA_QUEUE_COMPUTE,
                 "collective on the compute queue");
  EXPECT_REFUSED(t.operands[10].access = QLORA_READ, "access 1");
}

TEST(ModuleLoader, RefusesCollectives) {
  EXPECT_REFUSED(t.operands[7].dtype = QLORA_DTYPE_U8, "all_reduce of dtype 5");
  EXPECT_REFUSED(t.commands[5].collective = 7, "collective 7 over group 0");
  EXPECT_REFUSED(t.commands[5].group = 7, "collective 0 over group 7");
  EXPECT_REFUSED(t.commands[5].peer = 1, "all_reduce with peer 1");
  EXPECT_REFUSED(t.commands[5].collective = QLORA_COLLECTIVE_ALL_GATHER,
                 "1 operands instead of 2");
  EXPECT_REFUSED(t.commands[5].collective = QLORA_COLLECTIVE_SEND,
                 "operand 0 has dtype 0 and access 3 instead of 0 and 1");
  EXPECT_REFUSED(t.commands[5].collective = QLORA_COLLECTIVE_RECV,
                 "operand 0 has dtype 0 and access 3 instead of 0 and 2");
  EXPECT_REFUSED(t.commands[5].collective = QLORA_COLLECTIVE_RECV;
                 t.operands[7].access = QLORA_WRITE, "recv with peer 0");
  EXPECT_REFUSED(t.commands[5].collective = QLORA_COLLECTIVE_BROADCAST;
                 t.commands[5].peer = -1, "broadcast with peer -1");
}

/// Splits the first 16 elements of the gradients into two shards. The
/// all-reduce becomes an all-gather of the shards.
void gatherPieces(DemoTables &t) {
  t.header.mesh.zero1 = 2;
  t.commands[5].collective = QLORA_COLLECTIVE_ALL_GATHER;
  t.commands[5].group = QLORA_GROUP_FSDP;
  t.commands[5].operand_count = 2;
  t.commands[5].first_operand = uint32_t(t.operands.size());
  t.operands.push_back(
      {kDemoGradient, QLORA_DTYPE_F32, QLORA_WRITE, 0, 0, 0, 0, 64, 0, 0});
  t.operands.push_back({kDemoGradient, QLORA_DTYPE_F32, QLORA_READ, 2,
                        QLORA_GROUP_FSDP, 0, 0, 32, 0, 32});
}

TEST(ModuleLoader, RefusesPartsOfLines) {
  EXPECT_REFUSED(shareLines(t), "");
  EXPECT_REFUSED(shareLines(t); t.bindings[0].bytes = 64,
                 "kind 0 has 64 bytes instead of 32");
  EXPECT_REFUSED(shareLines(t); t.bindings[1].bytes = 64,
                                "kind 65 has 64 bytes instead of 32");
  EXPECT_REFUSED(t.header.mesh.cp = 16,
                 "sequences of 8 tokens on 16 context-parallel ranks");
  EXPECT_REFUSED(t.header.mesh.cp = 0, "'cp=0' is not AXIS=RANKS");
  EXPECT_REFUSED(t.header.mesh.cp = 65536, "'cp=65536' is not AXIS=RANKS");
  EXPECT_REFUSED(shareLines(t); t.header.mesh.tp = 2, "");
  EXPECT_REFUSED(shareLines(t); t.header.mesh.fsdp = 4, "");
  EXPECT_REFUSED(shareLines(t);
                 t.header.mesh.zero1 = 3, "zero1=3 and cp=2 do not fit");
}

TEST(ModuleLoader, RefusesPartsOfExperts) {
  EXPECT_REFUSED(t.header.mesh.ep = 2, "");
  EXPECT_REFUSED(t.header.mesh.ep = 2; t.header.mesh.cp = 4, "");
  EXPECT_REFUSED(t.header.mesh.ep = 0, "'ep=0' is not AXIS=RANKS");
  EXPECT_REFUSED(t.header.mesh.ep = 65536, "'ep=65536' is not AXIS=RANKS");
  EXPECT_REFUSED(t.header.mesh.ep = t.header.mesh.tp = 2,
                 "tp=2 does not work with ep=2");
  EXPECT_REFUSED(t.header.mesh.ep = 2;
                 t.header.mesh.zero1 = 3, "zero1=3 and ep=2 do not fit");
}

/// Adds a launch of sort_by_expert with one expert, compiled for `ranks` ranks.
static void sortRows(DemoTables &t, int64_t ranks) {
  const KernelOp &op = *findKernelOp("sort_by_expert");
  const auto constants = uint32_t(op.constants.size());
  t.launches.push_back({"experts", uint32_t(t.kernels.size()),
                        uint32_t(t.constants.size()), constants, 0, 0});
  t.kernels.push_back(libraryKernel(
      "sort_by_expert.cpu", uint32_t(op.operands.size()), constants));
  std::vector<int64_t> values(constants, 1);
  values[op.constantIndex("ranks")] = ranks;
  t.constants.insert(t.constants.end(), values.begin(), values.end());
}

TEST(ModuleLoader, RefusesRowsSortedForOtherRanks) {
  EXPECT_REFUSED(sortRows(t, 1), "");
  EXPECT_REFUSED(sortRows(t, 2),
                 "experts sorted for 2 ranks, but 1 are expert-parallel");
  EXPECT_REFUSED(sortRows(t, 1);
                 t.header.mesh.ep = 2,
                 "experts sorted for 1 ranks, but 2 are expert-parallel");
}

TEST(ModuleLoader, RefusesPieces) {
  EXPECT_REFUSED(gatherPieces(t), "");
  EXPECT_REFUSED(gatherPieces(t);
                 t.header.mesh.zero1 = 1,
                 "2 pieces, but group fsdp shards over 1 ranks");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().pieces = 4,
                 "4 pieces, but group fsdp shards over 2 ranks");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().pieces_of = QLORA_GROUP_TP,
                 "2 pieces, but group tp shards over 1 ranks");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().pieces_of = 9,
                 "2 pieces, but group unknown shards over 1 ranks");
  EXPECT_REFUSED(gatherPieces(t); t.header.mesh.tp = 2, "");
  EXPECT_REFUSED(t.header.mesh.tp = 0, "'tp=0' is not AXIS=RANKS");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().pieces_of = QLORA_GROUP_CP;
                 t.header.mesh.cp = 4,
                 "2 pieces, but group cp shards over 4 ranks");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().pieces_of = QLORA_GROUP_DP;
                 t.header.run_ranks = 3,
                 "2 pieces, but group dp shards over 3 ranks");
  EXPECT_REFUSED(t.header.run_ranks = 65536, "a program for 65536 ranks");
  EXPECT_REFUSED(t.operands[0].step = 64,
                 "one piece, but of group dp with a step of 64 bytes");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().step = 0,
                 "2 x 32 bytes, 0 apart");
  EXPECT_REFUSED(
      gatherPieces(t);
      t.operands.back().bytes = 48,
      "2 x 48 bytes, 32 apart, from byte 0 of an arena of 72");
  EXPECT_REFUSED(gatherPieces(t); t.operands.back().offset = 4, "overlap");
  EXPECT_REFUSED(gatherPieces(t); t.commands[5].group = QLORA_GROUP_DP,
                 "overlap");
  EXPECT_REFUSED(gatherPieces(t);
                 t.header.mesh.fsdp = 3,
                 "fsdp=3 and zero1=2 shard over the same ranks");
  EXPECT_REFUSED(t.header.mesh.zero1 = 0, "'zero1=0' is not AXIS=RANKS");
}

/// Moves a frozen weight to host memory, in shards of 64 bytes.
void moveToHost(DemoTables &t) {
  t.arenas[t.parameters[0].arena].kind = QLORA_ARENA_HOST;
  t.parameters[0].piece = 64;
  t.header.mesh.fsdp = 2;
}

TEST(ModuleLoader, RefusesPiecesOnTheHost) {
  EXPECT_REFUSED(moveToHost(t); t.header.mesh.fsdp = 1,
                                "1 pieces of 64 bytes, in the host arena");
  EXPECT_REFUSED(moveToHost(t); t.parameters[0].shape[0] = 12;
                 t.parameters[0].bytes = 192,
                 "2 pieces of 64 bytes, in the host arena");
  EXPECT_REFUSED(moveToHost(t); t.parameters[0].piece = 128, "of an arena of");
}

/// Shards the trainable parameters over two ranks.
void divideTrained(DemoTables &t) {
  t.header.mesh.zero2 = 2;
  t.parameters[1].shape[0] = 8;
  t.parameters[1].bytes = 128;
  t.parameters[1].piece = 64;
}

TEST(ModuleLoader, RefusesPiecesOfWhatIsTrained) {
  EXPECT_REFUSED(divideTrained(t), "");
  EXPECT_REFUSED(divideTrained(t);
                 t.header.mesh.zero2 = 1,
                 "1 pieces of 64 bytes, in the trainable arena");
  EXPECT_REFUSED(divideTrained(t); t.parameters[1].first = 4,
                 "2 pieces of 64 bytes, in the trainable arena");
  EXPECT_REFUSED(divideTrained(t);
                 t.header.mesh.zero1 = 2, "zero2=2 includes zero1");
  EXPECT_REFUSED(divideTrained(t);
                 t.header.mesh.fsdp = 4,
                 "fsdp=4 and zero2=2 shard over the same ranks");
  EXPECT_REFUSED(t.header.mesh.zero2 = 0, "'zero2=0' is not AXIS=RANKS");
  EXPECT_REFUSED(divideTrained(t); t.header.mesh.tp = 2, "");
  EXPECT_REFUSED(divideTrained(t);
                 t.header.mesh.cp = 3, "zero2=2 and cp=3 do not fit");
}

TEST(ModuleLoader, HasThePieceOfItsRank) {
  DemoTables tables;
  gatherPieces(tables);
  auto module = tables.load();
  ASSERT_TRUE(module.isOk()) << module.status().message();
  EXPECT_EQ(module->groupSize(), 2);
  EXPECT_EQ(module->operands().back().offset, 0u);
  module->chooseRank(3, 4);
  EXPECT_EQ(module->operands().back().offset, 32u);
  EXPECT_EQ(module->operands()[0].offset, tables.operands[0].offset);
}

TEST(ModuleLoader, RefusesEntries) {
  EXPECT_REFUSED(t.entries[0].first_command = 11, "commands 11+2 of 11");
  EXPECT_REFUSED(t.entries[0].command_count = ~0u, "commands");
  EXPECT_REFUSED(t.entries[0].batch = 0, "batch 0 and length 8");
  EXPECT_REFUSED(t.entries[0].length = -8, "batch 2 and length -8");
  EXPECT_REFUSED(t.entries[2].batch = 1, "batch 1 and length 0");
  EXPECT_REFUSED(t.entries[0].kind = QLORA_ENTRY_PREFILL;
                 t.entries[0].length = 0, "batch 2 and length 0 for prefill");
  EXPECT_REFUSED(t.entries[0].kind = QLORA_ENTRY_DECODE;
                 t.entries[0].batch = 0, "batch 0 and length 8 for decode");
  EXPECT_REFUSED(t.entries.push_back(t.entries[0]), "two entries evaluate");
}

TEST(ModuleLoader, RefusesBindings) {
  EXPECT_REFUSED(t.entries[0].first_binding = 5, "bindings 5+2 of 5");
  EXPECT_REFUSED(t.bindings[0].arena = 6, "arena 6 of 6");
  EXPECT_REFUSED(t.bindings[0].arena = kDemoResult, "in the result arena");
  EXPECT_REFUSED(t.bindings[1].arena = kDemoInput, "in the input arena");
  EXPECT_REFUSED(t.bindings[0].bytes = 60, "60 bytes instead of 64");
  EXPECT_REFUSED(t.bindings[0].kind = QLORA_INPUT_LAST,
                 "64 bytes instead of 8");
  EXPECT_REFUSED(t.bindings[0].kind = QLORA_INPUT_SLOTS;
                 t.bindings[0].bytes = 8, "8 bytes instead of 64");
  EXPECT_REFUSED(t.bindings[1].kind = QLORA_RESULT_LOGITS;
                 t.bindings[1].bytes = 60, "60 bytes instead of 56");
  EXPECT_REFUSED(t.bindings[0].offset = 4, "bytes 4+64");
  EXPECT_REFUSED(t.bindings[0].offset = ~uint64_t{3}, "of the input arena");
  EXPECT_REFUSED(t.bindings[4].kind = QLORA_RESULT_LOSS_SUM, "two bindings");
}

/// A truncated copy of the demo is rejected; tests many lengths.
TEST(ModuleLoader, RefusesTruncatedFiles) {
  const TemporaryFolder folder;
  std::ostringstream text;
  text << std::ifstream(QLORA_DEMO_MODULE, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  for (size_t length = 0; length < bytes.size();
       length += length < 256 ? 17 : 1021) {
    const std::string path = folder.write("x.so", bytes.substr(0, length));
    const Status status = LoadedModule::open(path).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length;
    EXPECT_HAS(status.message(), path);
  }
}

/// A copy of the demo with one flipped byte is rejected, whether the byte
/// belongs to code, tables, headers or the seal.
TEST(ModuleLoader, RefusesFlippedBytes) {
  const TemporaryFolder folder;
  std::ostringstream text;
  text << std::ifstream(QLORA_DEMO_MODULE, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  for (size_t at = 5; at < bytes.size(); at += 199) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    const std::string path = folder.write("x.so", flipped);
    const Status status = LoadedModule::open(path).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << at;
    EXPECT_HAS(status.message(), "'" + path + "' is damaged: its ");
  }
}

TEST(ModuleLoader, RefusesOtherFiles) {
  const TemporaryFolder folder;
  EXPECT_EQ(LoadedModule::open(folder.path("x.so")).status().code(),
            StatusCode::kNotFound);
  EXPECT_HAS(LoadedModule::open(folder.path()).status().message(),
             "is a folder. Fix: give the train.so that qloracc writes");
  const std::string text(4096, 'x');
  EXPECT_HAS(LoadedModule::open(folder.write("x.so", text)).status().message(),
             "is not a program. Fix: give the train.so that qloracc writes");
}

} // namespace
} // namespace qlora
