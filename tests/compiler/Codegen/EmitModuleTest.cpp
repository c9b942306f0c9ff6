// SPDX-License-Identifier: MIT

// train.so of a small program: the runtime's loader accepts it, its tables
// match the program, and the same program gives the same bytes.

#include "tests/compiler/Codegen/KernelHarness.h"

#include "compiler/Codegen/Tools.h"
#include "llvm/Object/ELFObjectFile.h"
#include "runtime/ABI/CollectiveForm.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

using namespace qlora;
using namespace qlora::test;

static constexpr const char *kProgram = R"(
module attributes {program.config = "{\"seed\": 7}"} {
  program.arena frozen bytes 4096 alignment 64
  program.arena trainable bytes 4096 alignment 64
  program.arena gradient bytes 8192 alignment 64
  program.arena activation bytes 1024 alignment 64
  program.arena input bytes 256 alignment 64
  program.parameter "model.w" frozen offset 64 bytes 512 [16, 16]
      : bf16 from bf16 frozen init file quantization none
      {block = 0, double_quant = false, file = "model.safetensors"}
  program.parameter "a.\22quoted\22" trainable offset 0 bytes 64 [4, 4]
      : f32 from f32 adapter init kaiming quantization none
      {block = 0, double_quant = false}
  program.kernel @matmul.reference attributes
      {op = "matmul", implementation = "reference"} {}
  program.kernel @"add+one" attributes {columns = 8 : i64,
      maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
      strides = array<i64: 8, 8>, groups = array<i64: 1, 1>} {
  ^bb0(%x: tensor<8xf32>):
    %one = arith.constant 1.0 : f32
    %ones = model.row_splat %one : tensor<8xf32>
    %y = arith.addf %x, %ones : tensor<8xf32>
    model.row_yield %y : tensor<8xf32>
  }
  program.entry accumulate_last batch 2 length 4 {
    %ids = program.buffer input offset 64 bytes 32 : i32
    program.bind ids %ids
    %a = program.buffer activation offset 0 bytes 512 : f32
    %b = program.view %a offset 256 bytes 256
    %g = program.buffer gradient offset 0 bytes 64 : f32
    program.fill %g
    program.launch @"add+one"(%a read f32, %b write f32)
        constants [] rows 8 label "same"
    program.launch @"add+one"(%b read f32, %a write f32)
        constants [] rows 8 label "same"
    program.launch @matmul.reference(%a read f32, %b read f32, %g read_write f32)
        absent [3] constants [4, 4, 4, 4, 4, 4, 0, 0, 0, 0] rows 0
        label "product"
    program.record 1 on compute
    program.wait 1 on communication
    program.collective all_reduce 2 %g
  }
})";

static constexpr const char *kCollectives = R"(
module {
  program.arena activation bytes 1024 alignment 64
  program.entry evaluate batch 1 length 4 {
    %a = program.buffer activation offset 0 bytes 512 : f32
    %b = program.buffer activation offset 512 bytes 256 : f32
    %c = program.view %a offset 0 bytes 256
    program.fill %a
    program.collective all_reduce 7 %a
    program.collective all_gather 0 %a from %b
    program.collective reduce_scatter 0 %b from %a
    program.collective broadcast 0 %a peer 3
    program.collective all_to_all 0 %c from %b
    program.collective send 0 %a peer 1
    program.collective recv 0 %a peer -2
  }
})";

class EmitModuleTest : public testing::Test {
protected:
  mlir::LogicalResult emit(const std::string &path,
                           const char *program = kProgram) {
    auto module = mlir::parseSourceString<mlir::ModuleOp>(program, &context());
    CodegenOptions options;
    options.cacheFolder = folder.path("cache");
    return emitTrainSo(*module, options, path);
  }

  TemporaryFolder folder;
};

TEST_F(EmitModuleTest, LoadsAndSaysWhatTheProgramSays) {
  std::string path = folder.path("train.so");
  ASSERT_TRUE(succeeded(emit(path)));
  StatusOr<LoadedModule> loaded = LoadedModule::open(path);
  ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
  LoadedModule &m = *loaded;
  EXPECT_STREQ(m.table().config_json, "{\"seed\": 7}");
  EXPECT_STREQ(m.table().plan_json, "{}");
  EXPECT_STREQ(m.parameters()[1].name, "a.\"quoted\"");
  EXPECT_EQ(m.parameters()[0].shape[1], 16);
  EXPECT_EQ(m.parameters()[0].offset, 64u);
  EXPECT_EQ(m.parameters()[1].init, QLORA_INIT_KAIMING);
  EXPECT_STREQ(m.kernels()[0].name, "matmul.reference");
  EXPECT_EQ(m.kernels()[0].function, nullptr);
  EXPECT_NE(m.kernels()[1].function, nullptr);
  // The two equal launches share a record.
  ASSERT_EQ(m.launches().size(), 2u);
  EXPECT_EQ(m.constants(m.launches()[1]).size(), 10u);
  const qlora_entry *entry = m.entry(QLORA_ENTRY_ACCUMULATE_LAST, 2, 4);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->event_count, 2u);
  EXPECT_EQ(m.binding(*entry, QLORA_INPUT_IDS)->offset, 64u);
  auto commands = m.commands(*entry);
  ASSERT_EQ(commands.size(), 7u);
  EXPECT_EQ(commands[1].target, commands[2].target);
  auto operands = m.operands(commands[2]);
  EXPECT_EQ(operands[0].offset, 256u);
  EXPECT_EQ(operands[1].access, QLORA_WRITE);
  // The workspace operand is absent.
  EXPECT_EQ(m.operands(commands[3])[3].bytes, 0u);
  EXPECT_EQ(commands[5].kind, QLORA_COMMAND_WAIT);
  EXPECT_EQ(commands[6].target, 2u);
}

TEST_F(EmitModuleTest, WritesEveryKindOfCollective) {
  std::string path = folder.path("train.so");
  ASSERT_TRUE(succeeded(emit(path, kCollectives)));
  StatusOr<LoadedModule> loaded = LoadedModule::open(path);
  ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
  LoadedModule &m = *loaded;
  auto commands = m.commands(*m.entry(QLORA_ENTRY_EVALUATE, 1, 4));
  ASSERT_EQ(commands.size(), 1u + QLORA_COLLECTIVE_COUNT);
  EXPECT_EQ(commands[1].target, 7u);
  static constexpr int kPeers[] = {0, 0, 0, 3, 0, 1, -2};
  for (unsigned kind = 0; kind < QLORA_COLLECTIVE_COUNT; ++kind) {
    const qlora_command &command = commands[1 + kind];
    EXPECT_EQ(command.kind, QLORA_COMMAND_COLLECTIVE);
    EXPECT_EQ(command.collective, kind);
    EXPECT_EQ(command.queue, QLORA_QUEUE_COMMUNICATION);
    EXPECT_EQ(command.group, QLORA_GROUP_DP);
    EXPECT_EQ(command.peer, kPeers[kind]);
    const CollectiveForm &form = kCollectiveForms[kind];
    auto operands = m.operands(command);
    ASSERT_EQ(operands.size(), form.hasSource ? 2u : 1u);
    EXPECT_EQ(operands[0].access, form.target);
    if (form.hasSource)
      EXPECT_EQ(operands[1].access, QLORA_READ);
  }
}

TEST_F(EmitModuleTest, GivesTheSameBytes) {
  ASSERT_TRUE(succeeded(emit(folder.path("a.so"))));
  ASSERT_TRUE(succeeded(emit(folder.path("b.so")))); // from the cache
  std::filesystem::remove_all(folder.path("cache"));
  ASSERT_TRUE(succeeded(emit(folder.path("c.so"))));
  std::string a = *readWholeFile(folder.path("a.so"));
  EXPECT_EQ(a, *readWholeFile(folder.path("b.so")));
  EXPECT_EQ(a, *readWholeFile(folder.path("c.so")));
  EXPECT_EQ(a.find(folder.path()), std::string::npos);
  EXPECT_EQ(a.find("/tmp"), std::string::npos);
}

TEST_F(EmitModuleTest, ExportsOneSymbolAndImportsNone) {
  std::string path = folder.path("train.so");
  ASSERT_TRUE(succeeded(emit(path)));
  auto file = llvm::object::ObjectFile::createObjectFile(path);
  ASSERT_TRUE(static_cast<bool>(file));
  auto *elf = llvm::dyn_cast<llvm::object::ELF64LEObjectFile>(
      file->getBinary());
  std::vector<std::string> names;
  for (const auto &symbol : elf->getDynamicSymbolIterators())
    names.push_back(symbol.getName()->str());
  EXPECT_EQ(names, std::vector<std::string>{QLORA_MODULE_QUERY});
}

TEST_F(EmitModuleTest, RefusesAnOlderRuntime) {
  std::string path = folder.path("train.so");
  ASSERT_TRUE(succeeded(emit(path)));
  void *library = dlopen(path.c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto query = reinterpret_cast<qlora_module_query_function>(
      dlsym(library, QLORA_MODULE_QUERY));
  EXPECT_EQ(query(0), nullptr);
  EXPECT_NE(query(QLORA_ABI_VERSION + 5), nullptr);
  dlclose(library);
}

TEST_F(EmitModuleTest, KeepsTheOldFileWhenItCannotWrite) {
  std::string message;
  mlir::ScopedDiagnosticHandler handler(
      &context(), [&](mlir::Diagnostic &diagnostic) {
        message = diagnostic.str();
        return mlir::success();
      });
  EXPECT_TRUE(failed(emit("/dev/full")));
  EXPECT_NE(message.find("cannot write '/dev/full': No space left"),
            std::string::npos)
      << message;
  EXPECT_TRUE(failed(emit(folder.path("missing/train.so"))));
  EXPECT_NE(message.find("No such file or directory"), std::string::npos)
      << message;
}
