// SPDX-License-Identifier: MIT

// Chooses and loads device images, looks up functions and launches them.

#include "runtime/Device/Cuda/CudaImages.h"

#include "runtime/Device/PreparedLaunches.h"
#include "runtime/Kernels/Cuda/CudaKernel.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace qlora {

/// A CUDA version and the release of the first driver that supports it.
struct FirstDriver {
  uint32_t cudaVersion;
  const char *release;
};
static constexpr FirstDriver kFirstDrivers[] = {{12000, "525.60"},
                                                {13000, "580.65"}};

static bool fits(const qlora_image &image, uint32_t arch) {
  if (image.kind == QLORA_IMAGE_PTX)
    return image.arch <= arch;
  return image.arch / 10 == arch / 10 && image.arch % 10 <= arch % 10;
}

const qlora_image *bestImage(std::span<const qlora_image> images, uint32_t unit,
                             uint32_t arch) {
  const qlora_image *best = nullptr;
  for (const qlora_image &image : images) {
    if (image.unit != unit || !fits(image, arch))
      continue;
    const bool isBetter = !best || image.kind < best->kind ||
                          (image.kind == best->kind && image.arch > best->arch);
    if (isBetter)
      best = &image;
  }
  return best;
}

/// Returns "sm_80" or "PTX of compute_80".
static std::string imageName(const qlora_image &image) {
  if (image.kind == QLORA_IMAGE_PTX)
    return fmt::format("PTX of compute_{}", image.arch);
  return fmt::format("sm_{}", image.arch);
}

static std::string listImages(std::span<const qlora_image> images,
                              uint32_t unit) {
  std::set<std::string> names;
  for (const qlora_image &image : images)
    if (image.unit == unit)
      names.insert(imageName(image));
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Returns the error for a driver that cannot load `image`. `made` is the CUDA
/// version of the image's compiler, `there` that of the driver.
static Status driverTooOld(const qlora_image &image, uint32_t arch,
                           uint32_t made, uint32_t there) {
  const bool isPtx = image.kind == QLORA_IMAGE_PTX;
  const uint32_t needed = isPtx ? made : made / 1000 * 1000;
  std::string release;
  for (const FirstDriver &first : kFirstDrivers)
    if (first.cudaVersion == needed)
      release = fmt::format(" ({} or newer)", first.release);
  return Status::unavailable(
      "its {}{} was compiled by nvcc {} and needs a driver for CUDA {}{}, but "
      "the installed driver is for CUDA {}; update the driver, or compile the "
      "model with {}",
      isPtx ? "" : "code for ", imageName(image), cudaVersionText(made),
      cudaVersionText(needed), release, cudaVersionText(there),
      made / 1000 > there / 1000
          ? fmt::format("an nvcc of CUDA {} or older", cudaVersionText(there))
          : fmt::format("sm_{} in --cuda-arch", arch));
}

static StatusOr<CudaModule> loadImage(const CudaDriver &driver,
                                      const qlora_image &image, uint32_t arch,
                                      uint32_t made) {
  int version = 0;
  QLORA_RETURN_IF_ERROR(driver.check(driver.driverGetVersion(&version),
                                     "cuDriverGetVersion"));
  const auto there = static_cast<uint32_t>(version);
  if (made / 1000 > there / 1000)
    return driverTooOld(image, arch, made, there);
  CUmodule loaded = nullptr;
  CUresult result = 0;
  if (image.kind == QLORA_IMAGE_PTX) {
    // The driver reads PTX up to a zero byte, which the image may lack.
    const std::string text(image.bytes, image.bytes + image.size);
    result = driver.moduleLoadData(&loaded, text.c_str());
  } else {
    result = driver.moduleLoadData(&loaded, image.bytes);
  }
  // Not every CUDA release has a new PTX version, so only the driver can decide
  // whether the PTX is too new.
  if (result == kCudaUnsupportedPtx && made > there)
    return driverTooOld(image, arch, made, there);
  QLORA_RETURN_IF_ERROR(
      driver.check(result, "cuModuleLoadData")
          .withContext(fmt::format("device code, unit {} ({})", image.unit,
                                   imageName(image))));
  return CudaModule(driver, loaded);
}

Status CudaImages::load(const CudaDriver &theDriver, const LoadedModule &module,
                        const CudaGpu &gpu, std::vector<std::string> &remarks) {
  driver = &theDriver;
  const std::span<const qlora_image> images = module.images();
  if (images.empty())
    return Status::invalid(
        "it has no device code, as it was compiled with --cuda-arch none; "
        "compile it with --cuda-arch native");
  uint32_t count = 0;
  for (const qlora_image &image : images)
    count = std::max(count, image.unit + 1);
  bool isCompiledHere = false;
  for (uint32_t unit = 0; unit < count; ++unit) {
    const qlora_image *image = bestImage(images, unit, gpu.arch);
    if (!image)
      return Status::unavailable(
          "{} is sm_{}, but the program has code for {} only; "
          "compile it with sm_{} in --cuda-arch",
          gpu.name, gpu.arch, listImages(images, unit), gpu.arch);
    isCompiledHere |= image->kind == QLORA_IMAGE_PTX;
    QLORA_ASSIGN_OR_RETURN(
        CudaModule loaded,
        loadImage(*driver, *image, gpu.arch, module.table().cuda_version));
    units.push_back(std::move(loaded));
  }
  if (isCompiledHere)
    remarks.push_back(fmt::format("{} is sm_{}, for which the driver compiled "
                                  "PTX; add sm_{} to --cuda-arch to avoid that",
                                  gpu.name, gpu.arch, gpu.arch));
  return Status::ok();
}

StatusOr<CUfunction> CudaImages::function(std::string_view symbol) {
  if (const auto known = functions.find(symbol); known != functions.end())
    return known->second;
  const std::string name(symbol);
  for (const CudaModule &unit : units) {
    CUfunction found = nullptr;
    const CUresult result =
        driver->moduleGetFunction(&found, unit.get(), name.c_str());
    if (result == kCudaNotFound)
      continue;
    QLORA_RETURN_IF_ERROR(driver->check(result, "cuModuleGetFunction"));
    functions.emplace(name, found);
    return found;
  }
  return Status::notFound("the program's device code has no function '{}'; "
                          "compile the model again",
                          name);
}

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
