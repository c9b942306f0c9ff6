// SPDX-License-Identifier: MIT

// Complete runs on the software platform in which each driver call and each
// stream operation fails in turn. The run ends with one line that names the
// call. CudaDeviceTest.cpp tests calls that fail after a Device was created.
// tests/conformance tests failed calls of cuBLASLt and cuDNN.

#include <dlfcn.h>

#include <map>

#include "tests/runtime/Faults.h"
#include "tests/runtime/LibraryCalls.h"
#include "tests/runtime/Session/SessionHere.h"

namespace qlora {
namespace {

class CudaFaults : public SessionHere {
protected:
  CudaFaults() {
    module = QLORA_UNIGRAM_CUDA_MODULE;
    setenv("XDG_CACHE_HOME", at("cache").c_str(), 1);
  }
  ~CudaFaults() override { unsetenv("XDG_CACHE_HOME"); }

  /// Loads the platform's libraries first, so that the run finds them by name.
  int train() {
    for (const char *name : {"libcuda.so.1", "libnvidia-ml.so.1"})
      if (!dlopen((QLORA_CUDA_PLATFORM "/" + std::string(name)).c_str(),
                  RTLD_NOW)) {
        fmt::print(stderr, "{}\n", dlerror());
        return 2;
      }
    const int code = runHere("cuda", at("out"), {{"max_steps", "3"}});
    closeImages();
    return code;
  }

  /// Closes the files that the platform keeps open on purpose.
  static void closeImages() {
    for (int file = 0; file < 100; ++file) {
      std::error_code none;
      const auto link = std::filesystem::read_symlink(
          "/proc/self/fd/" + std::to_string(file), none);
      if (link.native().starts_with("/memfd:cuda-image"))
        close(file);
    }
  }

  /// Returns the lines of a run, except the platform's lines.
  static std::vector<std::string> linesOf(const FaultyRun &run) {
    std::vector<std::string> lines;
    std::istringstream text(run.errors);
    for (std::string line; std::getline(text, line);)
      if (!line.starts_with("cuda-platform: "))
        lines.push_back(line);
    return lines;
  }
};

TEST_F(CudaFaults, EndTheRunWithTheNameOfTheCall) {
  std::map<std::string, int> ignored;
  FaultSweep sweep({.calls = kCuda | kCudaWork, .error = 999});
  while (sweep.next()) {
    std::filesystem::remove_all(at("out"));
    const FaultyRun run = sweep.runChild([&] { return train(); });
    const auto lines = linesOf(run);
    const std::string &name = sweep.name();
    const std::string where = sweep.call() + "\n" + run.errors;
    ASSERT_LE(run.exitCode, 1) << where;
    ASSERT_EQ(lines.size(), size_t(run.exitCode)) << where;
    if (run.exitCode == 0) {
      ++ignored[name];
      continue;
    }
    EXPECT_NE(lines[0].find(name == "run" ? "CUDA_ERROR_UNKNOWN"
                                          : nameInMessages(name)),
              std::string::npos)
        << where;
  }
  EXPECT_GE(sweep.failures(), 100);
  // A run ignores failures of calls that only measure the GPU, and one failure
  // in the device's destructor.
  for (const auto &[name, count] : ignored)
    EXPECT_TRUE(name.starts_with("nvml") || name == "cuDeviceGetPCIBusId" ||
                name == "cuMemGetInfo_v2" ||
                (name == "cuStreamSynchronize" && count == 1) ||
                (name.empty() && count == 1))
        << count << " of " << name;
}

} // namespace
} // namespace qlora
