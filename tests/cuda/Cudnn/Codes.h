// SPDX-License-Identifier: MIT

// The cudnnStatus_t values that the cuDNN look-alike returns, with the names in
// cudnn_graph.h.

#ifndef QLORA_TESTS_CUDA_CUDNN_CODES_H
#define QLORA_TESTS_CUDA_CUDNN_CODES_H

namespace qlora::platform {

// X(name here, value, cudnn_graph.h's name)
#define QLORA_PLATFORM_DNN_CODES(X)                                            \
  X(kDnnSuccess, 0, CUDNN_STATUS_SUCCESS)                                      \
  X(kDnnNotInitialized, 1001, CUDNN_STATUS_NOT_INITIALIZED)                    \
  X(kDnnBadParam, 2000, CUDNN_STATUS_BAD_PARAM)                                \
  X(kDnnMisaligned, 2003, CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER)           \
  X(kDnnNotFinalized, 2004, CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED)              \
  X(kDnnSizeInsufficient, 2006, CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT)      \
  X(kDnnShapeMismatch, 2008, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH)            \
  X(kDnnAttributeType, 2010, CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE)            \
  X(kDnnNotSupported, 3000, CUDNN_STATUS_NOT_SUPPORTED)                        \
  X(kDnnExecutionFailed, 5000, CUDNN_STATUS_EXECUTION_FAILED)

#define QLORA_PLATFORM_CODE(Name, Value, Dnn) Name = Value,
enum DnnStatus : int { QLORA_PLATFORM_DNN_CODES(QLORA_PLATFORM_CODE) };
#undef QLORA_PLATFORM_CODE

} // namespace qlora::platform

#endif // QLORA_TESTS_CUDA_CUDNN_CODES_H
