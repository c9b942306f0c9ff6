// SPDX-License-Identifier: MIT

// GEMMs and attention on the software platform while calls of cuBLASLt, cuDNN
// or the driver fail. Errors must name the call, and all objects must be freed.

#include "tests/runtime/Faults.h"

#include <algorithm>

#include "runtime/Device/Cuda/GemmTiming.h"
#include "runtime/Kernels/Cuda/Gemm.h"
#include "tests/conformance/AttentionCase.h"
#include "tests/runtime/LibraryCalls.h"

namespace qlora {
namespace {

/// Functions that create an object, each with the function that frees it.
constexpr std::pair<const char *, const char *> kLives[] = {
    {"cuStreamCreate", "cuStreamDestroy_v2"},
    {"cuEventCreate", "cuEventDestroy_v2"},
    {"cuMemAlloc_v2", "cuMemFree_v2"},
    {"cuMemHostAlloc", "cuMemFreeHost"},
    {"cuGraphInstantiateWithFlags", "cuGraphExecDestroy"},
    {"cublasLtCreate", "cublasLtDestroy"},
    {"cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy"},
    {"cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy"},
    {"cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"},
    {"cudnnCreate", "cudnnDestroy"},
    {"cudnnBackendCreateDescriptor", "cudnnBackendDestroyDescriptor"},
};

class CudaFaults : public testing::Test {
protected:
  void SetUp() override {
    if (!CudaGpu::get() || CudaGpu::isReal())
      GTEST_SKIP() << "not on the software platform";
    gpu = CudaGpu::get();
  }
  void TearDown() override {
    for (const CUdeviceptr address : owned)
      expectOk(driver().check(driver().memFree(address), "free"));
  }
  const CudaDriver &driver() const { return gpu->driver(); }

  CUdeviceptr allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    expectOk(driver().check(driver().memAlloc(&address, bytes), "memory"));
    expectOk(driver().check(driver().memsetD8Async(address, 0, bytes, nullptr),
                            "zeros"));
    expectOk(driver().check(driver().streamSynchronize(nullptr), "wait"));
    return owned.emplace_back(address);
  }

  /// Makes each call of `work` fail in turn. `end` frees what `work` created.
  template <typename Work, typename End>
  void sweepCalls(const Work &work, const End &end, long atLeast) {
    FaultSweep sweep({.calls = kCuda, .error = 999});
    while (sweep.next()) {
      RecordedCalls recorded(kCuda);
      const Status status = sweep.run(work);
      end();
      const std::string where = sweep.call() + ": " + status.message();
      const auto count = [&](std::string_view name) {
        return std::ranges::count(recorded.all, name,
                                  &RecordedCalls::Call::function);
      };
      for (const auto &[make, free] : kLives)
        EXPECT_EQ(count(make) - (sweep.name() == make), count(free))
            << make << ", " << where;
      // If a call for a cuDNN plan fails, another engine is tried, so the work
      // may succeed. If it fails, the error names cuDNN instead of the call.
      const bool isOfPlan = sweep.name().starts_with("cudnnBackend");
      EXPECT_TRUE(!status.isOk() || !sweep.hasFailed() || isOfPlan) << where;
      if (!status.isOk())
        EXPECT_NE(status.message().find(
                      isOfPlan ? "cuDNN" : nameInMessages(sweep.name())),
                  std::string::npos)
            << where;
    }
    EXPECT_GE(sweep.failures(), atLeast);
  }

  CudaGpu *gpu = nullptr;
  std::vector<CUdeviceptr> owned;
};

TEST_F(CudaFaults, AGemmNamesTheCall) {
  struct Objects {
    CublasHandle handle;
    CudaQueues queues;
    CudaTransfers transfers;
    std::unique_ptr<CudaGemm> product;
  };
  std::optional<Objects> made;
  constexpr uint64_t kBytes = 1 << 15;
  const CUdeviceptr memory = allocate(kBytes);
  const CudaSpan span[] = {{memory, kBytes}};
  const auto at = [&](uint64_t offset) {
    return reinterpret_cast<void *>(memory + offset);
  };
  const auto multiply = [&]() -> Status {
    Objects &o = made.emplace();
    gpu->gemms.setCandidates(2);
    QLORA_RETURN_IF_ERROR(o.handle.create());
    QLORA_RETURN_IF_ERROR(o.queues.create(driver(), 0));
    QLORA_RETURN_IF_ERROR(o.transfers.create(driver(), o.queues, 1 << 16));
    QLORA_ASSIGN_OR_RETURN(
        o.product,
        CudaGemm::create(*gpu,
                         {16, 16, 16, 16, 16, 16, false, false, QLORA_DTYPE_F32,
                          QLORA_DTYPE_F32, QLORA_DTYPE_F32, 1, 0},
                         1 << 12));
    QLORA_RETURN_IF_ERROR(measureGemms(gpu->gemms, driver(), o.queues,
                                       o.transfers, span,
                                       std::chrono::minutes(1))
                              .status());
    QLORA_RETURN_IF_ERROR(o.product->enqueue(at(0), at(1024), at(2048),
                                             at(4096), o.queues.compute()));
    return o.queues.synchronize();
  };
  const auto end = [&] {
    if (made->queues.compute())
      (void)made->queues.synchronize();
    gpu->gemms.choices.clear();
    gpu->gemms.setCandidates(1);
    made.reset();
  };
  sweepCalls(multiply, end, 100);
}

TEST_F(CudaFaults, AttentionNamesTheCall) {
  const Attention a = {
      1, 128, 1, 1, 64, 0, 0, Segments::kNone, QLORA_DTYPE_BF16};
  expectOk(gpu->cudnn().status());
  CUstream stream = nullptr;
  expectOk(driver().check(driver().streamCreate(&stream, 0), "stream"));
  for (const bool isGradient : {false, true}) {
    const KernelRequest request = makeCase(a, isGradient).request;
    const KernelRow &row = *findKernelRow(request.op->name + ".cudnn");
    const uint64_t workspace = row.workspaceBytes(request);
    std::vector<void *> buffers;
    const auto sizes = request.op->operandBytes(request);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool isScratch = request.op->operands[i].name == "workspace";
      const CUdeviceptr address =
          request.dtypes[i] ? allocate(isScratch ? workspace : sizes[i]) : 0;
      buffers.push_back(reinterpret_cast<void *>(address));
    }
    std::optional<CudnnHandle> handle;
    std::unique_ptr<CudaKernel> kernel;
    const auto attend = [&]() -> Status {
      QLORA_RETURN_IF_ERROR(handle.emplace().create());
      QLORA_ASSIGN_OR_RETURN(kernel,
                             prepareCudaKernel(row, request, workspace, *gpu));
      return kernel->enqueue({buffers, nullptr, stream});
    };
    const auto end = [&] {
      expectOk(driver().check(driver().streamSynchronize(stream), "wait"));
      kernel.reset();
      handle.reset();
    };
    sweepCalls(attend, end, 100);
  }
  expectOk(driver().check(driver().streamDestroy(stream), "stream"));
}

} // namespace
} // namespace qlora
