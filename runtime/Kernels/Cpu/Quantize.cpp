// SPDX-License-Identifier: MIT

// quantize and quantize_scales: the parts of the quantiser that fills a model
// on the CPU (QuantizeNF4.h), as kernels.

#include "runtime/Kernels/Cpu/Convert.h"
#include "runtime/Kernels/Cpu/CpuKernels.h"
#include "runtime/Kernels/Cpu/QuantizeNF4.h"

namespace qlora::cpu {

PreparedKernel quantize::reference::prepare(const KernelRequest &request,
                                            uint64_t) {
  enum Operand { kX, kPacked, kScales };
  const qlora_dtype dtype = dtypeOf(request, "x");
  const int64_t elements = request.constant("elements");
  const int64_t block = request.constant("block");
  return makeKernel([=](const LibraryKernelArgs &args) {
    const auto read = [&](int64_t first, int64_t count, float *values) {
      widen(dtype, elementAt(args.buffers[kX], dtype, first), values, count);
    };
    quantizeNF4Blocks(block, elements, {read, nullptr},
                      bufferOf<uint8_t>(args, kPacked),
                      bufferOf<float>(args, kScales));
    return Status::ok();
  });
}

PreparedKernel quantize_scales::reference::prepare(const KernelRequest &request,
                                                   uint64_t) {
  enum Operand { kScales, kMap, kCodes, kAbsmax, kOffset };
  const auto blocks = static_cast<size_t>(request.constant("blocks"));
  return makeKernel([=](const LibraryKernelArgs &args) {
    const std::span scales(bufferOf<const float>(args, kScales), blocks);
    const float offset = nf4ScaleOffset(scales);
    *bufferOf<float>(args, kOffset) = offset;
    quantizeNF4Scales(scales, offset, bufferOf<const float>(args, kMap),
                      bufferOf<uint8_t>(args, kCodes),
                      bufferOf<float>(args, kAbsmax));
    return Status::ok();
  });
}

} // namespace qlora::cpu
