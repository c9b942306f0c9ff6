// SPDX-License-Identifier: MIT

// Choice and loading of device images.

#include "runtime/Device/Cuda/CudaImages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace qlora {

static constexpr CUresult kSymbolNotFound = 500; // CUDA_ERROR_NOT_FOUND

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

/// "sm_80", or "PTX of compute_80".
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

static StatusOr<CudaModule> loadImage(const CudaDriver &driver,
                                      const qlora_image &image) {
  CUmodule loaded = nullptr;
  CUresult result = 0;
  if (image.kind == QLORA_IMAGE_PTX) {
    // The driver reads text up to a zero, which the table does not promise.
    const std::string text(image.bytes, image.bytes + image.size);
    result = driver.moduleLoadData(&loaded, text.c_str());
  } else {
    result = driver.moduleLoadData(&loaded, image.bytes);
  }
  QLORA_RETURN_IF_ERROR(driver.check(result, "cuModuleLoadData"));
  return CudaModule(driver, loaded);
}

Status CudaImages::load(const CudaDriver &theDriver,
                        std::span<const qlora_image> images,
                        const CudaCard &card,
                        std::vector<std::string> &remarks) {
  driver = &theDriver;
  uint32_t count = 0;
  for (const qlora_image &image : images)
    count = std::max(count, image.unit + 1);
  bool isCompiledHere = false;
  for (uint32_t unit = 0; unit < count; ++unit) {
    const qlora_image *image = bestImage(images, unit, card.arch);
    if (!image)
      return Status::error(StatusCode::kUnavailable,
                           "{} is sm_{}, but the module has code for {} only; "
                           "compile it with sm_{} in --cuda-arch",
                           card.name, card.arch, listImages(images, unit),
                           card.arch);
    isCompiledHere |= image->kind == QLORA_IMAGE_PTX;
    auto loaded = loadImage(*driver, *image);
    if (!loaded.isOk())
      return loaded.status().withContext(
          fmt::format("device code, unit {} ({})", unit, imageName(*image)));
    units.push_back(std::move(*loaded));
  }
  if (isCompiledHere)
    remarks.push_back(fmt::format("{} is sm_{}: the driver compiled PTX for "
                                  "it; with sm_{} in --cuda-arch it need not",
                                  card.name, card.arch, card.arch));
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
    if (result == kSymbolNotFound)
      continue;
    QLORA_RETURN_IF_ERROR(driver->check(result, "cuModuleGetFunction"));
    functions.emplace(name, found);
    return found;
  }
  return Status::error(StatusCode::kNotFound,
                       "the module's device code has no function '{}'; "
                       "compile the model again",
                       name);
}

} // namespace qlora
