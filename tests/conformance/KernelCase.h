// SPDX-License-Identifier: MIT

// One launch of a library kernel under test: a request by name, buffers of
// exactly the bytes that the op needs, and checks that no other memory changed.
//
// Guard bytes of 0xff surround every buffer. A kernel that reads them gets NaN
// in any floating-point type; checkGuards detects writes. Gaps between rows of
// a strided matrix are NaN, too.

#ifndef QLORA_TESTS_CONFORMANCE_KERNELCASE_H
#define QLORA_TESTS_CONFORMANCE_KERNELCASE_H

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/Kernels/Cuda/CudaKernel.h"
#include "runtime/Kernels/LibraryKernel.h"
#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Kernels/Rows.h"
#include "tests/conformance/CudaGpu.h"

namespace qlora {

inline double unitRoundoff(qlora_dtype dtype) {
  switch (dtype) {
  case QLORA_DTYPE_BF16:
    return 0x1p-8;
  case QLORA_DTYPE_F16:
    return 0x1p-11;
  default:
    return 0x1p-24;
  }
}

/// Returns the allowed difference between a kernel and the reference. Both
/// round once to the result's type. The kernel also has the error of an f32 sum
/// of `terms` products of at most `magnitude`. For random signs, partial sums
/// grow like sqrt(terms). Each addition has a rounding error of this size, and
/// these errors add up to sqrt(terms) times one of them: about `terms`.
inline double tolerance(qlora_dtype result, double exact, int64_t terms,
                        double magnitude = 1.0) {
  return 2 * unitRoundoff(result) * std::abs(exact) +
         4 * 0x1p-24 * double(terms) * magnitude;
}

inline double loadNumber(qlora_dtype dtype, const void *base, int64_t i) {
  switch (dtype) {
  case QLORA_DTYPE_BF16:
    return qlora_load_bf16(base, i);
  case QLORA_DTYPE_F16:
    return qlora_load_f16(base, i);
  case QLORA_DTYPE_I32:
    return qlora_load_i32(base, i);
  default:
    return qlora_load_f32(base, i);
  }
}

inline void storeNumber(qlora_dtype dtype, void *base, int64_t i, double x) {
  switch (dtype) {
  case QLORA_DTYPE_BF16:
    return qlora_store_bf16(base, i, float(x));
  case QLORA_DTYPE_F16:
    return qlora_store_f16(base, i, float(x));
  case QLORA_DTYPE_I32:
    return qlora_store_i32(base, i, int32_t(x));
  default:
    return qlora_store_f32(base, i, float(x));
  }
}

class GuardedBuffer {
public:
  explicit GuardedBuffer(uint64_t bytes = 0)
      : size(bytes), memory(bytes + 2 * kGuard + 64, 0xff) {}
  /// Returns the data, aligned to 64 bytes.
  uint8_t *data() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data()) + kGuard;
    return reinterpret_cast<uint8_t *>((address + 63) / 64 * 64);
  }
  uint64_t bytes() const { return size; }
  /// Returns the data with the guards on both sides.
  std::span<uint8_t> guarded() {
    return {data() - kGuard, data() + size + kGuard};
  }
  static constexpr uint64_t kGuard = 256;
  bool guardsHold() {
    const uint8_t *begin = data(), *end = begin + size;
    for (const uint8_t *p = memory.data(); p < begin; ++p)
      if (*p != 0xff)
        return false;
    for (const uint8_t *p = end; p < memory.data() + memory.size(); ++p)
      if (*p != 0xff)
        return false;
    return true;
  }

private:
  uint64_t size;
  std::vector<uint8_t> memory;
};

class KernelCase {
public:
  using Types = std::map<std::string, qlora_dtype>;
  using Constants = std::map<std::string, int64_t>;

  /// An operand that `types` lacks is absent. So are constants that a launch
  /// may lack, from the first that `constants` lacks.
  KernelCase(const std::string &op, const Types &types,
             const Constants &constants) {
    request.op = findKernelOp(op);
    for (const KernelOperand &operand : request.op->operands) {
      const auto found = types.find(operand.name);
      request.dtypes.push_back(
          operand.name == "workspace" ? std::optional(QLORA_DTYPE_U8)
          : found == types.end()      ? std::nullopt
                                      : std::optional(found->second));
    }
    for (const std::string &constant : request.op->constants) {
      if (request.constants.size() >= request.op->neededConstants &&
          !constants.contains(constant))
        break;
      request.constants.push_back(constants.at(constant));
    }
    for (uint64_t bytes : request.op->operandBytes(request))
      buffers.emplace_back(bytes);
  }

  uint8_t *data(const std::string &operand) {
    return buffers[request.op->operandIndex(operand)].data();
  }
  uint64_t bytes(const std::string &operand) {
    return buffers[request.op->operandIndex(operand)].bytes();
  }
  qlora_dtype dtype(const std::string &operand) const {
    return *request.dtype(operand);
  }
  double at(const std::string &operand, int64_t i) {
    return loadNumber(dtype(operand), data(operand), i);
  }
  void set(const std::string &operand, int64_t i, double x) {
    storeNumber(dtype(operand), data(operand), i, x);
  }
  int64_t constant(const std::string &name) const {
    return request.constant(name);
  }

  /// Fills a matrix with uniform values from [-limit, limit]. Gaps stay NaN.
  void fill(const std::string &operand, int64_t rows, int64_t columns,
            int64_t ld, unsigned seed, double limit = 1.0) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform(-limit, limit);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        set(operand, row * ld + column, uniform(generator));
  }

  /// Runs one implementation with exactly the workspace that it requests.
  Status run(const std::string &implementation,
             KernelObserver *observer = nullptr,
             const qlora_step_block *step = nullptr) {
    const KernelRow *row =
        findKernelRow(request.op->name + "." + implementation);
    GuardedBuffer workspace(row->workspaceBytes(request));
    QLORA_RETURN_IF_ERROR(row->target == "cuda"
                              ? runOnCuda(*row, workspace, observer, step)
                              : runOnCpu(*row, workspace, observer, step));
    EXPECT_TRUE(workspace.guardsHold()) << row->fullName() << ": workspace";
    checkGuards(row->fullName());
    return Status::ok();
  }

  /// Returns whether an implementation of rowsToTest supports this case. If
  /// not, the runtime uses the next one. cuDNN may be absent.
  bool isTaken(const std::string &implementation) const {
    const KernelRow *row =
        findKernelRow(request.op->name + "." + implementation);
    if (row->limits && row->reject(request))
      return false;
    if (implementation != "cudnn")
      return true;
    const auto kernel = prepareCudaKernel(
        *row, request, row->workspaceBytes(request), *CudaGpu::get());
    return kernel.isOk() || kernel.status().code() != StatusCode::kUnavailable;
  }

  void checkGuards(const std::string &name) {
    for (size_t i = 0; i < buffers.size(); ++i)
      EXPECT_TRUE(buffers[i].guardsHold())
          << name << ": " << request.op->operands[i].name;
  }

  /// Returns whether the gaps of a matrix still hold NaN.
  bool gapsHold(const std::string &operand, int64_t rows, int64_t columns,
                int64_t ld) {
    for (int64_t row = 0; row + 1 < rows; ++row)
      for (int64_t column = columns; column < ld; ++column)
        if (!std::isnan(at(operand, row * ld + column)))
          return false;
    return true;
  }

  /// Launches a device function with the op's buffers and constants.
  Status launch(std::string_view symbol, CudaGrid grid,
                GuardedBuffer &workspace) {
    QLORA_ASSIGN_OR_RETURN(
        CudaLaunch launch,
        CudaLaunch::prepare(*CudaGpu::get(), symbol, grid, request.constants));
    QLORA_ASSIGN_OR_RETURN(std::unique_ptr<CudaKernel> kernel,
                           makeCudaKernel([launch](const CudaKernelArgs &args) {
                             return launch.enqueue(args.buffers, args);
                           }));
    return CudaGpu::get()->run(*kernel, cudaOperands(workspace), nullptr,
                               nullptr);
  }

  KernelRequest request;

  /// On CUDA, every operand begins one element after an aligned address.
  bool isShifted = false;
  bool hasOneSegment = false; ///< see CudaKernelArgs

private:
  /// Returns the shift in bytes: one element, or 4 bytes for tensors that also
  /// have scales. A workspace is not shifted.
  uint64_t shiftOf(size_t i) const {
    if (!isShifted || !request.dtypes[i] ||
        request.op->operands[i].name == "workspace")
      return 0;
    const bool hasScales = storedFormat(*request.dtypes[i]) ||
                           *request.dtypes[i] == QLORA_DTYPE_I8;
    return hasScales ? 4 : dtypeBits(*request.dtypes[i]) / 8;
  }

  GuardedBuffer &bufferOf(size_t i, GuardedBuffer &workspace) {
    return request.op->operands[i].name == "workspace" ? workspace : buffers[i];
  }

  Status runOnCpu(const KernelRow &row, GuardedBuffer &workspace,
                  KernelObserver *observer, const qlora_step_block *step) {
    QLORA_ASSIGN_OR_RETURN(std::unique_ptr<LibraryKernel> kernel,
                           prepareCpuKernel(row, request, workspace.bytes()));
    std::vector<void *> pointers;
    for (size_t i = 0; i < buffers.size(); ++i)
      pointers.push_back(request.dtypes[i] ? bufferOf(i, workspace).data()
                                           : nullptr);
    return kernel->run({pointers, step, observer});
  }

  std::vector<CudaOperand> cudaOperands(GuardedBuffer &workspace) {
    std::vector<CudaOperand> operands;
    for (size_t i = 0; i < buffers.size(); ++i)
      operands.push_back({bufferOf(i, workspace).guarded(),
                          GuardedBuffer::kGuard, shiftOf(i),
                          !request.dtypes[i]});
    return operands;
  }

  Status runOnCuda(const KernelRow &row, GuardedBuffer &workspace,
                   KernelObserver *observer, const qlora_step_block *step) {
    CudaGpu &gpu = *CudaGpu::get();
    QLORA_ASSIGN_OR_RETURN(
        std::unique_ptr<CudaKernel> kernel,
        prepareCudaKernel(row, request, workspace.bytes(), gpu));
    return gpu.run(*kernel, cudaOperands(workspace), step, observer,
                   hasOneSegment);
  }

  std::vector<GuardedBuffer> buffers;
};

/// Returns the implementations of an op that can run here, without the
/// reference.
inline std::vector<std::string> rowsToTest(const std::string &op) {
  std::vector<std::string> implementations;
  for (const KernelRow &row : kernelRows())
    if (row.op->name == op && !row.isOracle &&
        (row.target != "cuda" || CudaGpu::get()))
      implementations.push_back(row.implementation);
  return implementations;
}
/// Returns rowsToTest() and the reference, for tests that compute the expected
/// results themselves.
inline std::vector<std::string> allRowsToTest(const std::string &op) {
  std::vector<std::string> implementations = rowsToTest(op);
  if (findKernelRow(op + ".reference"))
    implementations.emplace_back("reference");
  return implementations;
}

inline int64_t bits(double value) { return std::bit_cast<int64_t>(value); }

inline void expectOk(const Status &status) {
  EXPECT_TRUE(status.isOk()) << status.message();
}

/// Writes a quantized tensor of random bytes and scales.
inline void fillStored(uint8_t *bytes, const StoredLayout &layout,
                       unsigned seed) {
  std::mt19937 generator(seed);
  for (int64_t i = 0; i < layout.bytes; ++i)
    bytes[i] = uint8_t(generator());
  // Zero points are random bytes; the smaller scales keep decoded values below
  // 1.
  const float unit = layout.format().hasZeros ? 0x1p-8f : 1.0f;
  std::uniform_real_distribution<float> scale(0.01f * unit, 0.2f * unit);
  const auto floats = [&](int64_t offset) {
    return reinterpret_cast<float *>(bytes + offset);
  };
  for (int64_t i = 0; !layout.doubleQuant && i < layout.blocks; ++i)
    floats(layout.scales)[i] = scale(generator);
  for (int64_t i = 0; i < layout.nestedBlocks; ++i)
    floats(layout.nestedAbsmax)[i] = scale(generator);
  for (int64_t i = 0; layout.doubleQuant && i < 256; ++i)
    floats(layout.nestedMap)[i] = float(i - 128) / 127;
  for (int64_t i = 0; i < 1 << layout.bits; ++i)
    floats(layout.codeBook)[i] = float(i * i % 256 - 100) / 157;
  floats(layout.correction)[0] = 0.3f;
}

} // namespace qlora

#endif // QLORA_TESTS_CONFORMANCE_KERNELCASE_H
