// SPDX-License-Identifier: MIT

// Compares our declarations of libnccl.so.2 with nccl.h.

#include <nccl.h>

#include "tests/cuda/Headers/SameAbi.h"

#include "runtime/Device/Cuda/NcclApi.h"

namespace qlora {

QLORA_SAME_STRUCT(ncclUniqueId)
QLORA_SAME_FIELD(ncclUniqueId, internal, internal)
// Our struct and its `size` are those of version 2.14.
template <>
inline constexpr bool abi::isSameClass<ncclConfig_t, ::ncclConfig_t> = true;
constexpr ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
constexpr ncclConfig_t ours;
QLORA_SAME_FIELD(ncclConfig_t, size, size)
QLORA_SAME_FIELD(ncclConfig_t, magic, magic)
QLORA_SAME_FIELD(ncclConfig_t, version, version)
QLORA_SAME_FIELD(ncclConfig_t, blocking, blocking)
QLORA_SAME_CONSTANT(ours.magic, theirs.magic);
QLORA_SAME_CONSTANT(ours.version, NCCL_VERSION(2, 14, 0));
QLORA_SAME_CONSTANT(ours.size, sizeof ours);
static_assert(sizeof ours <= sizeof theirs && alignof(ncclConfig_t) ==
                                                  alignof(::ncclConfig_t));

#define QLORA_NCCL(Name, Symbol, Parameters)                                   \
  QLORA_SAME_FUNCTION(#Symbol, Symbol, ncclResult_t, Parameters)
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
QLORA_SAME_MEMBER(Nccl::getLastError, ncclGetLastError)
QLORA_SAME_MEMBER(Nccl::commSplit, ncclCommSplit)
QLORA_SAME_FUNCTION("ncclGetErrorString", ncclGetErrorString, const char *,
                    (ncclResult_t))

QLORA_NCCL_RESULTS(QLORA_SAME_ROW)
QLORA_SAME_CONSTANT(0, ncclSuccess);
QLORA_SAME_CONSTANT(kNcclInt8, ncclInt8);
QLORA_SAME_CONSTANT(kNcclUint8, ncclUint8);
QLORA_SAME_CONSTANT(kNcclInt32, ncclInt32);
QLORA_SAME_CONSTANT(kNcclFloat16, ncclFloat16);
QLORA_SAME_CONSTANT(kNcclFloat32, ncclFloat32);
QLORA_SAME_CONSTANT(kNcclBfloat16, ncclBfloat16);
QLORA_SAME_CONSTANT(kNcclSum, ncclSum);

} // namespace qlora
