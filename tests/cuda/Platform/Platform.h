// SPDX-License-Identifier: MIT

// Runs each case of the platform's tests in a child process, since the platform
// reads its environment only once. Client is a small user of the driver.
//
//   EXPECT_TRUE(inProcess({{"QLORA_TEST_CUDA_SEED", "3"}}, [] {
//     Client client;
//     ...
//     return values[0] == 1.0f;
//   }));

#ifndef QLORA_TESTS_CUDA_PLATFORM_PLATFORM_H
#define QLORA_TESTS_CUDA_PLATFORM_PLATFORM_H

#include "runtime/ABI/kernel.h"
#include "tests/cuda/CublasLt/Objects.h"
#include "tests/cuda/Driver/Api.h"
#include "tests/cuda/Driver/Codes.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace qlora::platform {

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs the body in a child process with these environment variables. Returns
/// the body's result, or false if the child ends in another way. `errors`
/// receives its stderr.
bool inProcess(const Environment &environment,
               const std::function<bool()> &body,
               std::string *errors = nullptr);

/// The counters of a process, from its QLORA_TEST_CUDA_REPORT.
class Report {
public:
  Report();
  ~Report();
  std::pair<std::string, std::string> variable() const;
  uint64_t operator[](const std::string &name) const;

private:
  std::string path;
};

/// A context of GPU 0, the kernels of Kernels.cu and one stream. A failing call
/// in the constructor ends the process.
class Client {
public:
  explicit Client(int gpu = 0);

  CUdeviceptr allocate(size_t floats);
  CUstream newStream();
  CUevent newEvent();
  CUfunction function(const char *name);
  /// Launches `blocks` blocks of `threads` threads; the kernel's rows are
  /// blocks * threads.
  CUresult launch(const char *name, std::vector<CUdeviceptr> buffers,
                  CUstream on, int64_t constant = 0, unsigned blocks = 1,
                  unsigned threads = 64, unsigned sharedBytes = 0);
  /// Waits for the stream, then copies.
  std::vector<float> read(CUdeviceptr from, size_t floats);
  void write(CUdeviceptr to, const std::vector<float> &values);
  /// Loads the image of Kernels.cu for sm_90, or its PTX for compute_80, into
  /// the current context.
  static CUresult load(CUmodule *loaded = nullptr, bool isPtx = false);
  /// Ends the process with a message if the code is not 0.
  static void require(CUresult code, const char *what);

  CUstream stream = nullptr;
  CUmodule module = nullptr;
};

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_PLATFORM_PLATFORM_H
