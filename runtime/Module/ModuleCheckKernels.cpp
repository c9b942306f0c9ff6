// SPDX-License-Identifier: MIT

// Checks of a module's device images and kernels.

#include "runtime/Module/ModuleCheck.h"

#include "runtime/Kernels/KernelTable.h"
#include "runtime/Module/ModuleLoader.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

namespace qlora {

/// No card of CUDA 12 or later is older, none will be newer than this says.
static constexpr uint32_t kMinArch = 50;
static constexpr uint32_t kMaxArch = 999;
static constexpr uint32_t kWarp = 32;
static constexpr uint32_t kMaxThreads = 1024;

static Status checkImage(const qlora_image &image) {
  if (image.size == 0)
    return damaged("it has no bytes");
  if (image.kind > QLORA_IMAGE_PTX)
    return damaged("unknown kind {}", image.kind);
  if (image.arch < kMinArch || image.arch > kMaxArch)
    return damaged("unknown architecture {}", image.arch);
  return Status::ok();
}

Status checkImages(const qlora_module &m) {
  if (m.target == QLORA_TARGET_CPU && m.image_count > 0)
    return damaged("{} device images in a module for the CPU", m.image_count);
  if (m.image_count > 0 && m.cuda_version < 1000)
    return damaged("{} device images of CUDA version {}", m.image_count,
                   m.cuda_version);
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> seen;
  std::set<uint32_t> units;
  for (uint32_t i = 0; i < m.image_count; ++i) {
    const qlora_image &image = m.images[i];
    if (Status status = checkImage(image); !status.isOk())
      return status.withContext(fmt::format("image {}", i));
    if (!seen.insert({image.unit, image.kind, image.arch}).second)
      return damaged("image {}: a second {} of unit {} for architecture {}", i,
                     image.kind == QLORA_IMAGE_PTX ? "PTX" : "CUBIN",
                     image.unit, image.arch);
    units.insert(image.unit);
  }
  if (!units.empty() && *units.rbegin() != units.size() - 1)
    return damaged("the images have {} units, but one is number {}",
                   units.size(), *units.rbegin());
  return Status::ok();
}

static Status checkLibraryKernel(const qlora_module &m,
                                 const qlora_kernel &kernel) {
  const KernelRow *row = findKernelRow(kernel.name);
  if (!row)
    return Status::error(StatusCode::kUnavailable,
                         "this qlora-run has no library kernel of that name; "
                         "compile the model again with its own qloracc");
  const std::string_view target =
      m.target == QLORA_TARGET_CUDA ? "cuda" : "cpu";
  if (row->target != target)
    return damaged("a kernel of target {} in a module for {}", row->target,
                   target);
  if (kernel.threads != 0 || kernel.rows_per_block != 0)
    return damaged("a library kernel with {} threads and {} rows per block",
                   kernel.threads, kernel.rows_per_block);
  if (kernel.operand_count != row->op->operands.size() ||
      kernel.constant_count != row->op->constants.size())
    return damaged("{} operands and {} constants instead of {} and {}",
                   kernel.operand_count, kernel.constant_count,
                   row->op->operands.size(), row->op->constants.size());
  return Status::ok();
}

static Status checkHostKernel(const qlora_module &m,
                              const qlora_kernel &kernel) {
  if (m.target != QLORA_TARGET_CPU)
    return damaged("code for the CPU in a module for another target");
  if (kernel.symbol || kernel.threads != 0 || kernel.rows_per_block != 0)
    return damaged("code for the CPU, but also a symbol, threads or rows per "
                   "block");
  return Status::ok();
}

static bool isIdentifier(std::string_view text) {
  const auto isLetter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && isLetter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return isLetter(c) || (c >= '0' && c <= '9');
         });
}

static Status checkDeviceKernel(const qlora_module &m,
                                const qlora_kernel &kernel) {
  if (m.target != QLORA_TARGET_CUDA)
    return damaged("a symbol in a module for the CPU");
  if (!isIdentifier(kernel.symbol))
    return damaged("its symbol is not a C name in the module");
  if (m.image_count == 0)
    return damaged("symbol '{}', but the module has no device image",
                   kernel.symbol);
  if (kernel.threads == 0 || kernel.threads % kWarp != 0 ||
      kernel.threads > kMaxThreads)
    return damaged("{} threads are not a multiple of {} up to {}",
                   kernel.threads, kWarp, kMaxThreads);
  if (kernel.rows_per_block == 0)
    return damaged("0 rows per block");
  if (kernel.operand_count > QLORA_CUDA_MAX_OPERANDS ||
      kernel.constant_count > QLORA_CUDA_MAX_CONSTANTS)
    return damaged("{} operands and {} constants are more than {} and {}",
                   kernel.operand_count, kernel.constant_count,
                   QLORA_CUDA_MAX_OPERANDS, QLORA_CUDA_MAX_CONSTANTS);
  return Status::ok();
}

static Status checkKernel(const qlora_module &m, const qlora_kernel &kernel) {
  if (kernel.function)
    return checkHostKernel(m, kernel);
  if (kernel.symbol)
    return checkDeviceKernel(m, kernel);
  return checkLibraryKernel(m, kernel);
}

Status checkKernels(const qlora_module &m) {
  for (uint32_t i = 0; i < m.kernel_count; ++i) {
    const qlora_kernel &kernel = m.kernels[i];
    if (kernel.name[0] == '\0')
      return damaged("kernel {} has no name", i);
    if (Status status = checkKernel(m, kernel); !status.isOk())
      return status.withContext(fmt::format("kernel '{}'", kernel.name));
  }
  return Status::ok();
}

} // namespace qlora
