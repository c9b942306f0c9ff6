// SPDX-License-Identifier: MIT

// Modules, functions and launches. An image is a shared object from host-nvcc
// (HostImage.h). A real cubin is refused.

#include "tests/cuda/Driver/Api.h"

#include "runtime/ABI/kernel.h"
#include "tests/cuda/Driver/Codes.h"
#include "tests/cuda/Driver/Hook.h"
#include "tests/cuda/Driver/Memory.h"
#include "tests/cuda/Driver/Objects.h"
#include "tests/cuda/Driver/OperandGuard.h"
#include "tests/cuda/Driver/Settings.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace qlora {
namespace platform {

int enqueueLibraryWork(CUstream stream, const char *what,
                       std::function<int()> work,
                       std::function<bool()> mayRun) {
  const std::lock_guard lock(platformMutex());
  CUstream_st *const target = currentContext() ? streamOf(stream) : nullptr;
  if (!target)
    return kInvalidHandle;
  return enqueue(*target, what, std::move(work), std::move(mayRun));
}

int currentDevice() {
  return currentContext() ? currentContext()->device : -1;
}

/// Returns the size in bytes of an ELF file that ends with its section headers;
/// 0 if the image is not such a file.
static size_t elfBytes(const void *image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_machine != EM_X86_64)
    return 0;
  return header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
}

/// Loads an image from memory. Returns null on failure. Keeps the file open,
/// because dlopen identifies libraries by path, and no other image may get the
/// same path.
static void *openImage(const void *image, size_t bytes) {
  const int file = memfd_create("cuda-image", MFD_CLOEXEC);
  if (file < 0 || write(file, image, bytes) != ssize_t(bytes))
    return nullptr;
  return dlopen(fmt::format("/proc/self/fd/{}", file).c_str(),
                RTLD_NOW | RTLD_LOCAL);
}

/// Checks whether the GPU and this driver can run the image, by CUDA's rules
/// for cubins and PTX.
static CUresult checkFits(const qlora_host_image &image, int arch) {
  const int compiler = int(image.cudaVersion), driver = settings().version;
  if (image.isPtx ? compiler > driver : compiler / 1000 > driver / 1000)
    return image.isPtx ? kUnsupportedPtx : kInvalidImage;
  const int made = int(image.arch);
  if (image.isPtx)
    return made <= arch ? kSuccess : kInvalidPtx;
  const bool isSameMajor = made / 10 == arch / 10;
  return isSameMajor && made <= arch ? kSuccess : kNoBinary;
}

} // namespace platform

using namespace platform;

/// Finds the exported symbols. Sets the image's pointer to the driver's
/// functions.
static bool bindImage(CUmod_st &module) {
  auto **engine = static_cast<const qlora_host_engine **>(
      dlsym(module.library, "qlora_host"));
  module.image.table = static_cast<const qlora_host_image *>(
      dlsym(module.library, "qlora_host_image_table"));
  module.image.place = static_cast<qlora_host_place *>(
      dlsym(module.library, "qlora_host_at"));
  if (!engine || !module.image.table || !module.image.place ||
      module.image.table->magic != QLORA_HOST_IMAGE_MAGIC)
    return false;
  *engine = hostEngine();
  return true;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  Call call("cuModuleLoadData");
  if (call.notWhileCapturing().refused())
    return call.refused();
  const size_t bytes = elfBytes(image);
  auto created = std::make_unique<CUmod_st>();
  created->library = bytes ? openImage(image, bytes) : nullptr;
  if (!created->library || !bindImage(*created)) {
    const char *why = bytes ? dlerror() : nullptr;
    return call.fail(kInvalidImage,
                     why ? why : "the image was not made by host-nvcc");
  }
  const int arch = settings().gpus[currentContext()->device].arch;
  if (const CUresult code = checkFits(*created->image.table, arch)) {
    dlclose(created->library);
    return code;
  }
  *module = objects().modules.add(std::move(created));
  return kSuccess;
}

CUresult cuModuleUnload(CUmodule module) {
  Call call("cuModuleUnload");
  if (call.notWhileCapturing().refused())
    return call.refused();
  if (!objects().modules.has(module))
    return call.fail(kInvalidHandle, "no live module");
  runAll();
  // The library stays open: records about its kernels are keyed by address.
  objects().modules.remove(module);
  return stickyCode();
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
                             const char *name) {
  Call call("cuModuleGetFunction");
  if (call.refused())
    return call.refused();
  if (!objects().modules.has(module))
    return call.fail(kInvalidHandle, "no live module");
  const qlora_host_image &image = *module->image.table;
  for (uint32_t i = 0; i < image.kernelCount; ++i) {
    if (std::strcmp(image.kernels[i].name, name) != 0)
      continue;
    auto created = std::make_unique<CUfunc_st>();
    created->module = module;
    created->kernel = &image.kernels[i];
    created->context = currentContext();
    *function = created.get();
    module->functions.push_back(std::move(created));
    return kSuccess;
  }
  return kNotFound;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  Call call("cuFuncSetAttribute");
  if (call.refused())
    return call.refused();
  if (attribute != kCudaFuncMaxDynamicShared)
    return call.fail(kInvalidValue, "an attribute that is not known here");
  int limit = 0;
  if (const CUresult code = cuDeviceGetAttribute(
          &limit, kMaxSharedOptin, currentContext()->device))
    return code;
  if (value < 0 || value > limit)
    return call.fail(kInvalidValue,
                     fmt::format("{} bytes, at most {}", value, limit));
  function->maxDynamicShared = unsigned(value);
  return kSuccess;
}

/// Returns an error for wrong grid or block sizes, or an empty text.
static std::string checkGeometry(const Launch &launch, unsigned maxShared) {
  const uint64_t threads = uint64_t(launch.threads.x) * launch.threads.y *
                           launch.threads.z;
  const bool isEmpty = !threads || !launch.blocks.x || !launch.blocks.y ||
                       !launch.blocks.z;
  if (isEmpty)
    return "a dimension is 0";
  if (threads > launch.kernel->maxThreads || launch.threads.z > 64)
    return fmt::format("{} threads a block, at most {}", threads,
                       launch.kernel->maxThreads);
  if (launch.blocks.x > 0x7fffffffu || launch.blocks.y > 65535 ||
      launch.blocks.z > 65535)
    return "too many blocks";
  if (launch.dynamicSharedBytes > maxShared)
    return fmt::format("{} bytes of dynamic shared memory, at most {}",
                       launch.dynamicSharedBytes, maxShared);
  return "";
}

/// Returns an error if an address is not in the GPU's memory.
static std::string checkArguments(const qlora_cuda_args &args, int device) {
  for (int i = 0; i < QLORA_CUDA_MAX_OPERANDS; ++i) {
    if (!args.buffers[i])
      continue;
    const std::string wrong = checkDeviceRange(args.buffers[i], 1, device);
    if (!wrong.empty())
      return fmt::format("buffer {}: {}", i, wrong);
  }
  if (!args.step)
    return "";
  const std::string wrong =
      checkDeviceRange(args.step, sizeof(qlora_step_block), device);
  return wrong.empty() ? "" : "the step block: " + wrong;
}

/// Returns an error for the first operand whose allocation has a damaged guard.
static std::string checkAround(const qlora_cuda_args &args) {
  for (int i = 0; i < QLORA_CUDA_MAX_OPERANDS; ++i) {
    const Allocation *found =
        args.buffers[i] ? findMemory(args.buffers[i]) : nullptr;
    if (found && !isIntact(*found))
      return fmt::format("wrote outside of the allocation of buffer {}, {} "
                         "bytes",
                         i, found->bytes);
  }
  return "";
}

/// Explains a memory error that was found before or after a kernel ran.
static int failMemory(const char *name, std::string_view wrong) {
  explain(fmt::format("{}: {}", name, wrong));
  return kIllegalAddress;
}

static int runKernel(Launch launch, const qlora_cuda_args &asked, int device) {
  const char *name = launch.kernel->name;
  std::string wrong = checkArguments(asked, device);
  qlora_cuda_args args = asked;
  if (!wrong.empty())
    return failMemory(name, wrong);
  OperandGuard guard(name, args, device, wrong);
  if (!wrong.empty())
    return failMemory(name, wrong);
  launch.args = &args;
  launch.seed = nextRandom();
  const LaunchResult result = runBlocks(launch);
  if (result.code) {
    explain(result.message);
    return result.code;
  }
  wrong = checkAround(args);
  if (wrong.empty())
    wrong = guard.finish();
  return wrong.empty() ? int(kSuccess) : failMemory(name, wrong);
}

CUresult cuLaunchKernel(CUfunction function, unsigned blocksX, unsigned blocksY,
                        unsigned blocksZ, unsigned threadsX, unsigned threadsY,
                        unsigned threadsZ, unsigned sharedBytes,
                        CUstream stream, void **parameters, void **extra) {
  Call call("cuLaunchKernel");
  if (call.refused())
    return call.refused();
  CUstream_st *const target = streamOf(stream);
  if (!target || function->context != currentContext())
    return call.fail(kInvalidHandle, "no stream or function of this context");
  if (!parameters || !parameters[0] || extra)
    return call.fail(kInvalidValue, "expects one qlora_cuda_args");
  const Launch launch = {&function->module->image,
                         function->kernel,
                         nullptr,
                         {blocksX, blocksY, blocksZ},
                         {threadsX, threadsY, threadsZ},
                         sharedBytes,
                         0};
  const std::string wrong = checkGeometry(launch, function->maxDynamicShared);
  if (!wrong.empty())
    return call.fail(kInvalidValue,
                     fmt::format("{}: {}", function->kernel->name, wrong));
  const void *const kernel = function->kernel;
  if (!mayUse(stream, fmt::format("{} at {}", function->kernel->name, kernel)))
    return kCaptureUnsupported;
  qlora_cuda_args args;
  std::memcpy(&args, parameters[0], sizeof(args));
  const int device = currentContext()->device;
  return enqueue(*target, function->kernel->name,
                 [=] { return runKernel(launch, args, device); });
}

} // namespace qlora
