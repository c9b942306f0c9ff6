// SPDX-License-Identifier: MIT

// Creates child processes by fork and redirects their stderr to a file;
// implements the client's calls.

#include "tests/cuda/Platform/Platform.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace qlora::platform {

static std::string temporaryFile() {
  char path[] = "/tmp/cuda-platform-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0)
    std::abort();
  close(file);
  return path;
}

static std::string readFile(const std::string &path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool inProcess(const Environment &environment,
               const std::function<bool()> &body, std::string *errors) {
  const std::string path = temporaryFile();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (!std::freopen(path.c_str(), "w", stderr))
      std::_Exit(3);
    for (const auto &[name, value] : environment)
      setenv(name.c_str(), value.c_str(), 1);
    std::exit(body() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  const std::string text = readFile(path);
  std::remove(path.c_str());
  if (errors)
    *errors = text;
  else
    std::fputs(text.c_str(), stderr);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Report::Report() : path(temporaryFile()) {}
Report::~Report() { std::remove(path.c_str()); }

std::pair<std::string, std::string> Report::variable() const {
  return {"QLORA_TEST_CUDA_REPORT", path};
}

uint64_t Report::operator[](const std::string &name) const {
  return nlohmann::json::parse(readFile(path)).value(name, uint64_t{0});
}

void Client::require(CUresult code, const char *what) {
  if (!code)
    return;
  fmt::print(stderr, "{}: {}\n", what, code);
  std::exit(4);
}

Client::Client(int gpu) {
  require(cuInit(0), "cuInit");
  CUcontext context = nullptr;
  require(cuDevicePrimaryCtxRetain(&context, gpu), "retain");
  require(cuCtxSetCurrent(context), "set current");
  require(load(&module), "load");
  stream = newStream();
}

CUresult Client::load(CUmodule *loaded, bool isPtx) {
  const std::string image =
      readFile(isPtx ? QLORA_PLATFORM_PTX : QLORA_PLATFORM_KERNELS);
  CUmodule unused;
  return cuModuleLoadData(loaded ? loaded : &unused, image.data());
}

CUdeviceptr Client::allocate(size_t floats) {
  CUdeviceptr address = 0;
  require(cuMemAlloc_v2(&address, floats * sizeof(float)), "allocate");
  return address;
}

CUstream Client::newStream() {
  CUstream created = nullptr;
  require(cuStreamCreate(&created, kCudaStreamNonBlocking), "stream");
  return created;
}

CUevent Client::newEvent() {
  CUevent created = nullptr;
  require(cuEventCreate(&created, kCudaEventDisableTiming), "event");
  return created;
}

CUfunction Client::function(const char *name) {
  CUfunction found = nullptr;
  require(cuModuleGetFunction(&found, module, name), name);
  return found;
}

CUresult Client::launch(const char *name, std::vector<CUdeviceptr> buffers,
                        CUstream on, int64_t constant, unsigned blocks,
                        unsigned threads, unsigned sharedBytes) {
  qlora_cuda_args args = {};
  for (size_t i = 0; i < buffers.size(); ++i)
    args.buffers[i] = reinterpret_cast<void *>(buffers[i]);
  args.constants[0] = constant;
  args.rows = int64_t(blocks) * threads;
  void *parameters[] = {&args};
  return cuLaunchKernel(function(name), blocks, 1, 1, threads, 1, 1,
                        sharedBytes, on, parameters, nullptr);
}

std::vector<float> Client::read(CUdeviceptr from, size_t floats) {
  require(cuCtxSynchronize(), "synchronise");
  std::vector<float> values(floats);
  require(cuMemcpyDtoHAsync_v2(values.data(), from, floats * sizeof(float),
                               stream),
          "read");
  return values;
}

void Client::write(CUdeviceptr to, const std::vector<float> &values) {
  require(cuMemcpyHtoDAsync_v2(to, values.data(),
                               values.size() * sizeof(float), stream),
          "write");
}

} // namespace qlora::platform
