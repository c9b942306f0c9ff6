// SPDX-License-Identifier: MIT

// Types and constants of cuDNN's backend interface, so that the runtime builds
// without its headers. Names and values equal those of cudnn_graph.h (cuDNN 9).

#ifndef QLORA_RUNTIME_KERNELS_CUDA_CUDNNTYPES_H
#define QLORA_RUNTIME_KERNELS_CUDA_CUDNNTYPES_H

namespace qlora {

using cudnnStatus_t = int; ///< 0: success
using cudnnHandle_t = struct cudnnContext *;
using cudnnBackendDescriptor_t = void *;

inline constexpr cudnnStatus_t kCudnnHostAllocationFailed = 4003;
inline constexpr cudnnStatus_t kCudnnDeviceAllocationFailed = 4004;

/// cudnnBackendDescriptorType_t
namespace cudnn_descriptor {
inline constexpr int kPointwise = 0, kEngine = 2, kEngineConfig = 3,
                     kEngineHeuristics = 4, kExecutionPlan = 5, kKnobChoice = 7,
                     kPointwiseOperation = 13, kOperationGraph = 15,
                     kVariantPack = 16, kTensor = 17, kMatmul = 18,
                     kMatmulOperation = 19, kReduction = 21,
                     kReductionOperation = 22, kReshapeOperation = 31,
                     kDeviceProperties = 38;
} // namespace cudnn_descriptor

/// cudnnBackendAttributeType_t: the type of an attribute's values.
namespace cudnn_type {
inline constexpr int kHandle = 0, kDataType = 1, kBoolean = 2, kInt64 = 3,
                     kVoidPointer = 6, kHeuristicsMode = 8, kKnobType = 9,
                     kPointwiseMode = 14, kDescriptor = 15,
                     kReductionOperator = 18, kChar = 24;
} // namespace cudnn_type

/// cudnnBackendAttributeName_t
namespace cudnn_attribute {
inline constexpr int kPointwiseMode = 0, kPointwiseMathType = 1,
                     kPointwiseAxis = 9;
inline constexpr int kHeuristicsMode = 200, kHeuristicsGraph = 201,
                     kHeuristicsResults = 202, kHeuristicsDevice = 204;
inline constexpr int kConfigEngine = 300, kConfigKnobs = 302;
inline constexpr int kPlanHandle = 400, kPlanConfig = 401,
                     kPlanWorkspaceBytes = 402, kPlanDevice = 407;
inline constexpr int kKnobType = 600, kKnobValue = 601;
inline constexpr int kPointwiseDescriptor = 750, kPointwiseX = 751,
                     kPointwiseB = 752, kPointwiseY = 753, kPointwiseT = 758;
inline constexpr int kGraphHandle = 800, kGraphOperations = 801;
inline constexpr int kTensorAlignment = 900, kTensorDataType = 901,
                     kTensorDimensions = 902, kTensorStrides = 903,
                     kTensorUniqueId = 906, kTensorIsVirtual = 907,
                     kTensorIsByValue = 908;
inline constexpr int kPackUniqueIds = 1000, kPackPointers = 1001,
                     kPackWorkspace = 1003;
inline constexpr int kEngineGraph = 1300, kEngineIndex = 1301,
                     kEngineDevice = 1307;
inline constexpr int kMatmulMathType = 1500;
inline constexpr int kMatmulA = 1520, kMatmulB = 1521, kMatmulC = 1522,
                     kMatmulDescriptor = 1523;
inline constexpr int kReductionOperator = 1600, kReductionMathType = 1601;
inline constexpr int kReductionX = 1610, kReductionY = 1611,
                     kReductionDescriptor = 1612;
inline constexpr int kReshapeX = 2200, kReshapeY = 2201;
inline constexpr int kDeviceJson = 2702;
} // namespace cudnn_attribute

/// cudnnDataType_t
namespace cudnn_data {
inline constexpr int kFloat = 0, kInt32 = 4, kBFloat16 = 9, kBoolean = 11;
} // namespace cudnn_data

/// cudnnPointwiseMode_t
namespace cudnn_pointwise {
inline constexpr int kAdd = 0, kMultiply = 1, kDivide = 6, kSubtract = 9,
                     kExponential = 13, kLogarithm = 15, kIdentity = 21,
                     kEqual = 300, kGreater = 302, kGreaterOrEqual = 303,
                     kIndex = 501, kSelect = 601;
} // namespace cudnn_pointwise

/// cudnnReduceTensorOp_t
namespace cudnn_reduce {
inline constexpr int kSum = 0, kMaximum = 3;
} // namespace cudnn_reduce

/// cudnnBackendHeurMode_t, cudnnBackendKnobType_t.
namespace cudnn_engine {
inline constexpr int kHeuristicsFallback = 2, kHeuristicsA = 3;
inline constexpr int kStages = 14, kKernelConfig = 24, kTileCgaM = 27,
                     kStreamK = 38, kTileM = 40, kTileN = 41;
} // namespace cudnn_engine

} // namespace qlora

#endif // QLORA_RUNTIME_KERNELS_CUDA_CUDNNTYPES_H
