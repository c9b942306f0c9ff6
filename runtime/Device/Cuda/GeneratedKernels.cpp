// SPDX-License-Identifier: MIT

// Lookups and launches.

#include "runtime/Device/Cuda/GeneratedKernels.h"

#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"

#include <algorithm>

namespace qlora {

Status GeneratedKernels::prepare(const LoadedModule &ofModule,
                                 CudaImages &images) {
  module = &ofModule;
  for (const qlora_kernel &kernel : module->kernels()) {
    functions.push_back(nullptr);
    if (!isGenerated(kernel))
      continue;
    auto function = images.function(kernel.symbol);
    if (!function.isOk())
      return function.status().withContext(
          fmt::format("kernel '{}'", kernel.name));
    functions.back() = *function;
    ++found;
  }
  return Status::ok();
}

Status GeneratedKernels::launch(const CudaDriver &driver,
                                const qlora_command &command,
                                std::span<void *const> buffers,
                                const qlora_step_block *step,
                                CUstream stream) const {
  const qlora_launch &launch = module->launches()[command.target];
  const qlora_kernel &kernel = module->kernels()[launch.kernel];
  if (launch.rows == 0)
    return Status::ok();
  qlora_cuda_args args{};
  std::copy(buffers.begin(), buffers.end(), args.buffers);
  const auto constants = module->constants(launch);
  std::copy(constants.begin(), constants.end(), args.constants);
  args.step = step;
  args.rows = launch.rows;
  void *parameters[] = {&args};
  return driver.check(
      driver.launchKernel(functions[launch.kernel],
                          static_cast<unsigned>(blocksOf(kernel, launch)), 1, 1,
                          kernel.threads, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

} // namespace qlora
