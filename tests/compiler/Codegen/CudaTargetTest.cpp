// SPDX-License-Identifier: MIT

// The CUDA target except its kernels: architectures, finding the compiler, the
// cache, and the images in train.so. A script replaces nvcc if the test does
// not depend on nvcc's output.

#include "tests/compiler/Codegen/KernelHarness.h"

#include "compiler/Codegen/CudaTarget.h"
#include "runtime/Base/FindProgram.h"
#include "runtime/Base/UserFiles.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>

using namespace qlora;
using namespace qlora::test;

static std::string namesOf(StatusOr<std::vector<CudaArch>> archs) {
  if (!archs.isOk())
    return archs.status().message();
  std::string names;
  for (const CudaArch &arch : *archs)
    names += arch.name() + " ";
  return names;
}

TEST(CudaArchTest, AreSortedAndOnce) {
  EXPECT_EQ(namesOf(CudaTarget::parseArchs(
                {"compute_80", "120", "sm_90", "90", "80"})),
            "sm_80 sm_90 sm_120 compute_80 ");
}

TEST(CudaArchTest, RefusesWhatIsNone) {
  for (const char *name : {"", "sm_", "90x", "hopper", "75", "9.0", "-90"})
    EXPECT_NE(namesOf(CudaTarget::parseArchs({"80", name}))
                  .find(fmt::format("--cuda-arch: '{}' is not an architecture",
                                    name)),
              std::string::npos)
        << name;
}

TEST(CudaCompilerTest, MustBeThere) {
  StatusOr<std::string> found = findCudaCompiler("/no/such/nvcc");
  ASSERT_FALSE(found.isOk());
  EXPECT_EQ(found.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(found.status().message(),
            "--cuda-compiler: '/no/such/nvcc' is not an executable file; give "
            "the path of an nvcc");
  EXPECT_FALSE(findCudaCompiler("no-such-nvcc").isOk());
}

TEST(CudaCompilerTest, WithoutOneNamesThePackage) {
  std::string path = getenv("PATH");
  setenv("PATH", "/no/such/folder", 1);
  StatusOr<std::string> found = findCudaCompiler("", "/no/toolkit");
  setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(found.isOk());
  EXPECT_EQ(found.status().message(),
            "no nvcc on PATH or in /no/toolkit; install NVIDIA's package "
            "cuda-nvcc-13-0 (or Debian's nvidia-cuda-toolkit), or name one "
            "with --cuda-compiler");
}

namespace {

class CudaTargetTest : public testing::Test {
protected:
  /// Returns a script that replaces nvcc: the image is the script's arguments
  /// and the source. It appends a line to the file `calls` per run.
  std::string fakeCompiler(const std::string &version = "1",
                           const std::string &end = "exit 0") {
    std::string path = folder.write(
        "nvcc", "#!/bin/sh\n"
                "[ \"$1\" = --version ] && echo tools, release 13.0, V" +
                    version + " && exit 0\n"
                "echo call >> " + folder.path("calls") + "\n"
                "while [ \"$1\" != -o ]; do flags=\"$flags $1\"; shift; done\n"
                "{ echo \"$flags\"; cat \"$3\"; } > \"$2\"\n" + end + "\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  /// Compiles the functions for `archs`, and returns the bytes of each image.
  std::vector<std::string> compile(const std::vector<std::string> &archs,
                                   const std::vector<std::string> &functions,
                                   const std::string &compiler) {
    std::vector<std::string> bytes;
    CudaTarget target(*CudaTarget::parseArchs(archs),
                      KernelCache(folder.path("cache")), compiler);
    StatusOr<ScratchFolder> scratch = ScratchFolder::create();
    StatusOr<CompiledKernels> kernels = target.compile(functions, *scratch);
    status = kernels.isOk() ? Status::ok() : kernels.status();
    if (kernels.isOk())
      for (const DeviceImage &image : kernels->images)
        bytes.push_back(*readWholeFile(image.file));
    return bytes;
  }

  /// Returns how often the compiler ran since this function was last called.
  size_t calls() {
    StatusOr<std::string> lines = readWholeFile(folder.path("calls"));
    std::filesystem::remove(folder.path("calls"));
    return lines.isOk() ? std::ranges::count(*lines, '\n') : 0;
  }

  TemporaryFolder folder;
  Status status;
};

} // namespace

TEST_F(CudaTargetTest, CompilesWhatIsNotCached) {
  std::string compiler = fakeCompiler();
  auto first = compile({"90"}, {"// one\n"}, compiler);
  ASSERT_TRUE(status.isOk()) << status.message();
  size_t units = first.size();
  ASSERT_GE(units, 1u);
  EXPECT_EQ(calls(), units);
  EXPECT_NE(first[0].find("-std=c++20 -O3 -fmad=false -arch=sm_90 -cubin"),
            std::string::npos);
  EXPECT_NE(first[0].find("// one"), std::string::npos);
  // The source is self-contained: it includes no header of this project.
  for (const std::string &image : first)
    EXPECT_EQ(image.find("#include \"runtime/"), std::string::npos);
  EXPECT_EQ(compile({"90"}, {"// one\n"}, compiler), first);
  EXPECT_EQ(calls(), 0u);
  // Another kernel changes unit 0; another architecture changes all units.
  compile({"90"}, {"// two\n"}, compiler);
  EXPECT_EQ(calls(), 1u);
  auto both = compile({"90", "compute_80"}, {"// one\n"}, compiler);
  EXPECT_EQ(calls(), units);
  EXPECT_EQ(both.size(), 2 * units);
  EXPECT_NE(both[1].find("-arch=compute_80 -ptx"), std::string::npos);
}

TEST_F(CudaTargetTest, AnotherVersionIsAnotherImage) {
  size_t units = compile({"90"}, {"// one\n"}, fakeCompiler("1")).size();
  EXPECT_EQ(calls(), units);
  compile({"90"}, {"// one\n"}, fakeCompiler("2"));
  EXPECT_EQ(calls(), units);
}

TEST(CudaCompilerTest, SaysItsVersion) {
  const auto versionOf = [](std::string_view text) {
    auto version = CudaTarget::parseVersion(text);
    return version.isOk() ? *version : 0;
  };
  EXPECT_EQ(versionOf("nvcc: NVIDIA (R) Cuda compiler driver\n"
                      "Cuda compilation tools, release 13.0, V13.0.88\n"),
            13000u);
  EXPECT_EQ(versionOf("release 12.9"), 12090u);
  for (const char *text : {"", "release", "release x.y", "release 13",
                           "release 13.", "release 0.1", "13.0"})
    EXPECT_EQ(versionOf(text), 0u) << text;
}

TEST_F(CudaTargetTest, SaysWhatTheCompilerSaid) {
  compile({"90"}, {"// one\n"},
          fakeCompiler("1", "echo 'unit0.cu(3): error: no' >&2; exit 2"));
  EXPECT_NE(status.message().find("failed (exit code 2): unit0.cu(3): error: "
                                  "no"),
            std::string::npos)
      << status.message();
  // A failed compilation is not cached.
  calls();
  compile({"90"}, {"// one\n"}, fakeCompiler());
  EXPECT_TRUE(status.isOk());
  EXPECT_GE(calls(), 1u);
}

//===----------------------------------------------------------------------===//
// train.so
//===----------------------------------------------------------------------===//

static constexpr const char *kProgram = R"(
module {
  program.arena activation bytes 1048576 alignment 64
  program.kernel @matmul.cublaslt attributes
      {op = "matmul", implementation = "cublaslt"} {}
  program.kernel @"add+one" attributes {columns = 8 : i64,
      maps = [#model.map<full>], dtypes = array<i64: 0, 0>,
      strides = array<i64: 8, 8>, groups = array<i64: 1, 1>} {
  ^bb0(%x: tensor<8xf32>):
    model.row_yield %x : tensor<8xf32>
  }
  program.kernel @wide attributes {columns = 4096 : i64,
      maps = [#model.map<full>], dtypes = array<i64: 1, 1>,
      strides = array<i64: 4096, 4096>, groups = array<i64: 1, 1>} {
  ^bb0(%x: tensor<4096xf32>):
    %sum = model.row_sum %x : tensor<4096xf32>
    %sums = model.row_splat %sum : tensor<4096xf32>
    %y = arith.addf %x, %sums : tensor<4096xf32>
    model.row_yield %y : tensor<4096xf32>
  }
  program.entry evaluate batch 1 length 1 {
    %a = program.buffer activation offset 0 bytes 256 : f32
    program.launch @"add+one"(%a read f32, %a write f32)
        constants [] rows 8 label "x"
  }
})";

TEST_F(CudaTargetTest, PutsImagesIntoTheModule) {
  auto module = mlir::parseSourceString<mlir::ModuleOp>(kProgram, &context());
  CodegenOptions options;
  options.target = "cuda";
  options.cudaArchs = {"compute_80", "90"};
  options.cudaCompiler = fakeCompiler();
  options.useCache = false;
  std::string path = folder.path("train.so");
  ASSERT_TRUE(succeeded(emitTrainSo(*module, options, path)));
  StatusOr<LoadedModule> loaded = LoadedModule::open(path);
  ASSERT_TRUE(loaded.isOk()) << loaded.status().message();
  const qlora_module &table = loaded->table();
  EXPECT_EQ(table.target, uint32_t(QLORA_TARGET_CUDA));
  EXPECT_STREQ(table.cpu_features, "");
  EXPECT_EQ(table.cuda_version, 13000u);
  auto kernels = loaded->kernels();
  EXPECT_EQ(kernels[0].symbol, nullptr);
  EXPECT_EQ(kernels[1].function, nullptr);
  EXPECT_STREQ(kernels[1].symbol, "add_x2bone_kernel");
  EXPECT_EQ(kernels[1].threads, 256u);
  EXPECT_EQ(kernels[1].rows_per_block, 8u);
  EXPECT_EQ(kernels[2].threads, 512u);
  EXPECT_EQ(kernels[2].rows_per_block, 1u);
  ASSERT_GE(table.image_count, 2u);
  const qlora_image *images = table.images;
  EXPECT_EQ(images[0].unit, 0u);
  EXPECT_EQ(images[0].arch, 90u);
  EXPECT_EQ(images[0].kind, uint32_t(QLORA_IMAGE_CUBIN));
  EXPECT_EQ(images[1].unit, 0u);
  EXPECT_EQ(images[1].arch, 80u);
  EXPECT_EQ(images[1].kind, uint32_t(QLORA_IMAGE_PTX));
  std::string text(reinterpret_cast<const char *>(images[1].bytes),
                   images[1].size);
  EXPECT_NE(text.find("wide_kernel(const __grid_constant__"),
            std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(images[1].bytes[images[1].size], 0);
}

/// Images must not depend on the folder in which they are compiled. To save
/// time, a script replaces nvcc for the handwritten kernels.
TEST_F(CudaTargetTest, GivesTheSameBytes) {
  auto compiler = findCudaCompiler("");
  if (!compiler.isOk())
    GTEST_SKIP() << compiler.status().message();
  std::string fake = fakeCompiler();
  std::string path = folder.write(
      "nvcc-0", "#!/bin/sh\ncase \"$*\" in *unit0.cu) exec " + *compiler +
                    " \"$@\";; esac\nexec " + fake + " \"$@\"\n");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  auto module = mlir::parseSourceString<mlir::ModuleOp>(kProgram, &context());
  CodegenOptions options;
  options.target = "cuda";
  options.cudaArchs = {"90"};
  options.cudaCompiler = path;
  options.useCache = false;
  ASSERT_TRUE(succeeded(emitTrainSo(*module, options, folder.path("a.so"))));
  ASSERT_TRUE(succeeded(emitTrainSo(*module, options, folder.path("b.so"))));
  EXPECT_TRUE(*readWholeFile(folder.path("a.so")) ==
              *readWholeFile(folder.path("b.so")));
}
