// SPDX-License-Identifier: MIT

// Host memory while a GPU arena is filled. It includes the pinned buffer, but
// nothing that grows with a tensor. The fake driver's device memory is not
// counted.

#include "tests/runtime/Device/CudaDeviceFixture.h"

#include "runtime/Kernels/Cpu/QuantizeTensor.h"
#include "runtime/Kernels/Rows.h"
#include "runtime/Weights/Parameters.h"
#include "tests/runtime/Device/AllocationCount.h"
#include "tests/runtime/TemporaryFolder.h"

namespace qlora {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int64_t kRows = 8193;
constexpr int64_t kColumns = 4096;

/// Implements Device/Quantize.cu and Decode.cu with the CPU's functions.
void addQuantizers() {
  auto &kernels = fake::machine.kernels;
  kernels["qlora_quantize_bf16"] = [](const qlora_cuda_args &args, unsigned,
                                      unsigned) {
    const auto read = [&](int64_t first, int64_t count, float *out) {
      for (int64_t i = 0; i < count; ++i)
        out[i] = qlora_load_bf16(args.buffers[0], first + i);
    };
    quantizeBlocks(StoredLayout::of(QLORA_DTYPE_NF4, args.constants[0],
                                    args.constants[1], false),
                   {read, nullptr},
                      static_cast<uint8_t *>(args.buffers[1]),
                      static_cast<float *>(args.buffers[2]));
  };
  const auto scalesOf = [](const qlora_cuda_args &args) {
    return std::span(at<float>(args.buffers[0]),
                     static_cast<size_t>(args.constants[0]));
  };
  kernels["qlora_quantize_offset"] = [=](const qlora_cuda_args &args, unsigned,
                                         unsigned) {
    *static_cast<float *>(args.buffers[4]) = nf4ScaleOffset(scalesOf(args));
  };
  kernels["qlora_quantize_scales"] = [=](const qlora_cuda_args &args, unsigned,
                                         unsigned) {
    quantizeScales(scalesOf(args), *at<float>(args.buffers[4]),
                      at<float>(args.buffers[1]),
                      static_cast<uint8_t *>(args.buffers[2]),
                      static_cast<float *>(args.buffers[3]));
  };
}

class CudaLoading : public CudaDeviceFixture {
protected:
  CudaLoading() {
    addQuantizers();
    layout = StoredLayout::of(QLORA_DTYPE_NF4, kRows * kColumns, 64, true);
    qlora_parameter &weight = tables.parameters[0];
    weight.name = "w";
    weight.rank = 2;
    weight.shape[0] = kRows;
    weight.shape[1] = kColumns;
    weight.quantization = QLORA_QUANTIZATION_ON_LOAD;
    weight.dtype = QLORA_DTYPE_NF4;
    weight.format = QLORA_DTYPE_NF4;
    weight.file_dtype = QLORA_DTYPE_BF16;
    weight.block = 64;
    weight.double_quant = 1;
    weight.bytes = static_cast<uint64_t>(layout.bytes);
    tables.parameters.resize(1);
    tables.arenas[kDemoFrozen].bytes = weight.bytes;
    tables.operands.clear();
    tables.commands.clear();
    tables.entries.clear();
  }

  /// Writes a model with a weight of 64 MiB plus one row.
  void writeModel() {
    std::vector<uint16_t> values(kRows * kColumns);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<uint16_t>(0x3c00 + i * 2654435761u % 0x8100);
    ASSERT_TRUE(
        writeSafetensors(folder.path("model.safetensors"),
                         {{"w",
                           SafetensorsDtype::kBF16,
                           {kRows, kColumns},
                           {reinterpret_cast<const uint8_t *>(values.data()),
                            values.size() * sizeof(uint16_t)}}},
                         {})
            .isOk());
  }

  /// Fills the arena; returns the maximum number of host bytes in use
  /// meanwhile.
  StatusOr<uint64_t> fill(uint64_t scratch) {
    tables.arenas[kDemoActivation].bytes = scratch;
    QLORA_ASSIGN_OR_RETURN(ModelFiles model, ModelFiles::open(folder.path()));
    device.reset();
    const uint64_t before = allocations.liveBytes;
    allocations.mostBytes = before;
    QLORA_RETURN_IF_ERROR(create({}));
    const auto arena = openArena(*device, *module, QLORA_ARENA_FROZEN);
    QLORA_RETURN_IF_ERROR(fillFrozen(*module, {&model, nullptr, 0}, {},
                                     QLORA_ARENA_FROZEN, *arena));
    return allocations.mostBytes - before;
  }

  std::vector<uint8_t> frozen() {
    std::vector<uint8_t> bytes(static_cast<size_t>(layout.bytes));
    EXPECT_TRUE(device->read(kDemoFrozen, 0, bytes).isOk());
    return bytes;
  }

  const TemporaryFolder folder;
  StoredLayout layout;
};

TEST_F(CudaLoading, TakesTheHostNoMoreThanThePinnedBuffer) {
  writeModel();
  auto windows = fill(20 * kMiB);
  ASSERT_TRUE(windows.isOk()) << windows.status().message();
#ifdef COUNTS_ALLOCATIONS
  EXPECT_GT(*windows, 32 * kMiB); // includes the buffer
  EXPECT_LT(*windows, 33 * kMiB);
#endif
  EXPECT_TRUE(device->remarks().empty());
  EXPECT_EQ(fake::machine.calls["memAlloc"], 7); // arenas and step block
  EXPECT_EQ(fake::machine.calls["launchKernel"], 5 + 2);
  const std::vector<uint8_t> bytes = frozen();
  // Quantizing on the host fills the arena with the same bytes, but needs host
  // memory for one packed tensor.
  auto onHost = fill(64);
  ASSERT_TRUE(onHost.isOk()) << onHost.status().message();
#ifdef COUNTS_ALLOCATIONS
  EXPECT_GT(*onHost, 32 * kMiB + static_cast<uint64_t>(layout.bytes));
#endif
  EXPECT_EQ(device->remarks().size(), 1u);
  EXPECT_EQ(frozen(), bytes);
}

TEST_F(CudaLoading, SaysWhatFailed) {
  writeModel();
  fake::machine.failing = "launchKernel";
  fake::machine.failingFrom = 2;
  auto filled = fill(20 * kMiB);
  EXPECT_HAS(filled.status().message(),
             "weight 'w': cuLaunchKernel: CUDA_ERROR_FAKE (700)");
  EXPECT_EQ(filled.status().message().find('\n'), std::string::npos);
  fake::machine.failing.clear();
  fake::machine.kernels.erase("qlora_quantize_bf16");
  EXPECT_HAS(fill(20 * kMiB).status().message(),
             "the program's device code has no function "
             "'qlora_quantize_bf16'; "
             "compile the model again");
}

} // namespace
} // namespace qlora
