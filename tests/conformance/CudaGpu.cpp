// SPDX-License-Identifier: MIT

// Context, stream, and copies to and from the GPU.

#include "tests/conformance/CudaGpu.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace qlora {

static StatusOr<CUdeviceptr> allocate(const CudaDriver &driver, size_t bytes) {
  CUdeviceptr address = 0;
  QLORA_RETURN_IF_ERROR(
      driver.check(driver.memAlloc(&address, bytes), "cuMemAlloc_v2"));
  return address;
}

Status CudaGpu::open() {
  // Each kernel runs only once, in a capture, which forbids lazy loading.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  QLORA_ASSIGN_OR_RETURN(driverTable, CudaDriver::open());
  QLORA_ASSIGN_OR_RETURN(blasTable, CublasLt::open());
  const CudaDriver &cuda = *driverTable;
  CUdevice device = 0;
  CUcontext context = nullptr;
  QLORA_RETURN_IF_ERROR(cuda.check(cuda.init(0), "cuInit"));
  QLORA_RETURN_IF_ERROR(cuda.check(cuda.deviceGet(&device, 0), "cuDeviceGet"));
  int major = 0, minor = 0;
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.deviceGetAttribute(&major, kCudaAttributeMajor, device),
                 "cuDeviceGetAttribute"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.deviceGetAttribute(&minor, kCudaAttributeMinor, device),
                 "cuDeviceGetAttribute"));
  architecture = static_cast<uint32_t>(10 * major + minor);
  QLORA_RETURN_IF_ERROR(cuda.check(cuda.primaryCtxRetain(&context, device),
                                   "cuDevicePrimaryCtxRetain"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.ctxSetCurrent(context), "cuCtxSetCurrent"));
  QLORA_RETURN_IF_ERROR(cuda.check(
      cuda.streamCreate(&stream, kCudaStreamNonBlocking), "cuStreamCreate"));
  QLORA_RETURN_IF_ERROR(
      blasTable->check(blasTable->create(&handle), "cublasLtCreate"));
  return loadImages();
}

Status CudaGpu::loadImages() {
  const char *chosen = std::getenv("QLORA_CUDA_IMAGES");
  const std::string folder = chosen ? chosen : QLORA_HOST_IMAGES;
  for (const auto &entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".cubin")
      continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
    CUmodule module = nullptr;
    QLORA_RETURN_IF_ERROR(
        driverTable
            ->check(driverTable->moduleLoadData(&module, image.data()),
                    "cuModuleLoadData")
            .withContext(entry.path().string()));
    modules.push_back(module);
  }
  return Status::ok();
}

StatusOr<CUfunction> CudaGpu::function(std::string_view symbol) {
  const std::string name(symbol);
  CUresult result = 0;
  for (CUmodule module : modules) {
    CUfunction found = nullptr;
    result = driverTable->moduleGetFunction(&found, module, name.c_str());
    if (result == 0)
      return found;
  }
  return driverTable->check(result, "cuModuleGetFunction").withContext(name);
}

StatusOr<CUdeviceptr> CudaGpu::upload(std::span<const uint8_t> bytes,
                                      uint64_t shift,
                                      std::vector<CUdeviceptr> &owned) {
  QLORA_ASSIGN_OR_RETURN(const CUdeviceptr base,
                         allocate(*driverTable, bytes.size() + shift));
  owned.push_back(base);
  QLORA_RETURN_IF_ERROR(
      driverTable->check(driverTable->memcpyHtoDAsync(
                             base + shift, bytes.data(), bytes.size(), stream),
                         "cuMemcpyHtoDAsync_v2"));
  return base + shift;
}

Status CudaGpu::launch(CudaKernel &kernel, const CudaKernelArgs &args) {
  const CudaDriver &cuda = *driverTable;
  if (args.observer)
    return kernel.enqueue(args);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.streamBeginCapture(stream, kCudaCaptureThreadLocal),
                 "cuStreamBeginCapture_v2"));
  const Status enqueued = kernel.enqueue(args);
  const Status ended =
      cuda.check(cuda.streamEndCapture(stream, &graph), "cuStreamEndCapture");
  QLORA_RETURN_IF_ERROR(enqueued);
  QLORA_RETURN_IF_ERROR(ended);
  QLORA_RETURN_IF_ERROR(cuda.check(cuda.graphInstantiate(&executable, graph, 0),
                                   "cuGraphInstantiateWithFlags"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.graphLaunch(executable, stream), "cuGraphLaunch"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.streamSynchronize(stream), "cuStreamSynchronize"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.graphExecDestroy(executable), "cuGraphExecDestroy"));
  return cuda.check(cuda.graphDestroy(graph), "cuGraphDestroy");
}

Status CudaGpu::run(CudaKernel &kernel, std::span<const CudaOperand> operands,
                    const qlora_step_block *step, KernelObserver *observer,
                    bool hasOneSegment) {
  const CudaDriver &cuda = *driverTable;
  std::vector<CUdeviceptr> addresses, owned;
  std::vector<void *> pointers;
  for (const CudaOperand &operand : operands) {
    QLORA_ASSIGN_OR_RETURN(const CUdeviceptr address,
                           upload(operand.bytes, operand.shift, owned));
    addresses.push_back(address);
    pointers.push_back(
        operand.isAbsent ? nullptr
                         : reinterpret_cast<void *>(address + operand.offset));
  }
  const qlora_step_block none = {};
  const auto *stepBytes =
      reinterpret_cast<const uint8_t *>(step ? step : &none);
  QLORA_ASSIGN_OR_RETURN(
      const CUdeviceptr stepAddress,
      upload({stepBytes, sizeof(qlora_step_block)}, 0, owned));
  QLORA_RETURN_IF_ERROR(
      launch(kernel,
             {pointers, reinterpret_cast<const qlora_step_block *>(stepAddress),
              stream, observer,
              step ? static_cast<int64_t>(step->labelled_rows) : INT64_MAX,
              hasOneSegment}));
  for (size_t i = 0; i < operands.size(); ++i)
    QLORA_RETURN_IF_ERROR(
        cuda.check(cuda.memcpyDtoHAsync(operands[i].bytes.data(), addresses[i],
                                        operands[i].bytes.size(), stream),
                   "cuMemcpyDtoHAsync_v2"));
  QLORA_RETURN_IF_ERROR(
      cuda.check(cuda.streamSynchronize(stream), "cuStreamSynchronize"));
  for (CUdeviceptr address : owned)
    QLORA_RETURN_IF_ERROR(cuda.check(cuda.memFree(address), "cuMemFree_v2"));
  return Status::ok();
}

namespace {
struct OpenedGpu {
  CudaGpu gpu;
  std::string reason;
};
} // namespace

static OpenedGpu &openedGpu() {
  static OpenedGpu *opened = [] {
    auto *gpu = new OpenedGpu;
    const Status status = CudaGpu::openInto(gpu->gpu);
    gpu->reason = status.isOk() ? "" : status.message();
    return gpu;
  }();
  return *opened;
}

Status CudaGpu::openInto(CudaGpu &gpu) { return gpu.open(); }

CudaGpu *CudaGpu::get() {
  return openedGpu().reason.empty() ? &openedGpu().gpu : nullptr;
}

const std::string &CudaGpu::reason() { return openedGpu().reason; }

bool CudaGpu::isReal() { return std::getenv("QLORA_CUDA_IMAGES") != nullptr; }

} // namespace qlora
