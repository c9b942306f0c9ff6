// SPDX-License-Identifier: MIT

// The nvmlReturn_t values of the NVML look-alike, with the names in nvml.h.

#ifndef QLORA_TESTS_CUDA_NVML_CODES_H
#define QLORA_TESTS_CUDA_NVML_CODES_H

namespace qlora::platform {

// X(name here, value, nvml.h's name)
#define QLORA_PLATFORM_NVML_CODES(X)                                           \
  X(kNvmlSuccess, 0, NVML_SUCCESS)                                             \
  X(kNvmlUninitialized, 1, NVML_ERROR_UNINITIALIZED)                           \
  X(kNvmlInvalidArgument, 2, NVML_ERROR_INVALID_ARGUMENT)                      \
  X(kNvmlNotFound, 6, NVML_ERROR_NOT_FOUND)

#define QLORA_PLATFORM_CODE(Name, Value, Nvml) Name = Value,
enum NvmlCode : int { QLORA_PLATFORM_NVML_CODES(QLORA_PLATFORM_CODE) };
#undef QLORA_PLATFORM_CODE

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_NVML_CODES_H
