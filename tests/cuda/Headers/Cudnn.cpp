// SPDX-License-Identifier: MIT

// Compares our declarations of libcudnn.so.9 with cudnn_graph.h.

#include <cudnn.h>

#include "tests/cuda/Headers/SameAbi.h"

#include "runtime/Kernels/Cuda/CudaApi.h"
#include "tests/cuda/Cudnn/Codes.h"

namespace qlora {

#define QLORA_CUDNN(Name, Symbol, Parameters)                                  \
  QLORA_SAME_FUNCTION(#Symbol, Symbol, cudnnStatus_t, Parameters)
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
QLORA_SAME_MEMBER(Cudnn::getVersion, cudnnGetVersion)
QLORA_SAME_MEMBER(Cudnn::getLastErrorString, cudnnGetLastErrorString)

QLORA_SAME_CONSTANT(0, CUDNN_STATUS_SUCCESS);
QLORA_SAME_CONSTANT(kCudnnHostAllocationFailed,
                    CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
QLORA_SAME_CONSTANT(kCudnnDeviceAllocationFailed,
                    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);

QLORA_SAME_CONSTANT(cudnn_descriptor::kPointwise,
                    CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kEngineConfig,
                    CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kEngineHeuristics,
                    CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kExecutionPlan,
                    CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kKnobChoice,
                    CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kPointwiseOperation,
                    CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kOperationGraph,
                    CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kVariantPack,
                    CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kMatmulOperation,
                    CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kReduction,
                    CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kReductionOperation,
                    CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kReshapeOperation,
                    CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_descriptor::kDeviceProperties,
                    CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);

QLORA_SAME_CONSTANT(cudnn_type::kHandle, CUDNN_TYPE_HANDLE);
QLORA_SAME_CONSTANT(cudnn_type::kDataType, CUDNN_TYPE_DATA_TYPE);
QLORA_SAME_CONSTANT(cudnn_type::kBoolean, CUDNN_TYPE_BOOLEAN);
QLORA_SAME_CONSTANT(cudnn_type::kInt64, CUDNN_TYPE_INT64);
QLORA_SAME_CONSTANT(cudnn_type::kVoidPointer, CUDNN_TYPE_VOID_PTR);
QLORA_SAME_CONSTANT(cudnn_type::kHeuristicsMode, CUDNN_TYPE_HEUR_MODE);
QLORA_SAME_CONSTANT(cudnn_type::kKnobType, CUDNN_TYPE_KNOB_TYPE);
QLORA_SAME_CONSTANT(cudnn_type::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
QLORA_SAME_CONSTANT(cudnn_type::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_type::kReductionOperator,
                    CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
QLORA_SAME_CONSTANT(cudnn_type::kChar, CUDNN_TYPE_CHAR);

QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseMathType,
                    CUDNN_ATTR_POINTWISE_MATH_PREC);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
QLORA_SAME_CONSTANT(cudnn_attribute::kHeuristicsMode,
                    CUDNN_ATTR_ENGINEHEUR_MODE);
QLORA_SAME_CONSTANT(cudnn_attribute::kHeuristicsGraph,
                    CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
QLORA_SAME_CONSTANT(cudnn_attribute::kHeuristicsResults,
                    CUDNN_ATTR_ENGINEHEUR_RESULTS);
QLORA_SAME_CONSTANT(cudnn_attribute::kHeuristicsDevice,
                    CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
QLORA_SAME_CONSTANT(cudnn_attribute::kConfigEngine,
                    CUDNN_ATTR_ENGINECFG_ENGINE);
QLORA_SAME_CONSTANT(cudnn_attribute::kConfigKnobs,
                    CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
QLORA_SAME_CONSTANT(cudnn_attribute::kPlanHandle,
                    CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
QLORA_SAME_CONSTANT(cudnn_attribute::kPlanConfig,
                    CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
QLORA_SAME_CONSTANT(cudnn_attribute::kPlanWorkspaceBytes,
                    CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
QLORA_SAME_CONSTANT(cudnn_attribute::kPlanDevice,
                    CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
QLORA_SAME_CONSTANT(cudnn_attribute::kKnobType,
                    CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
QLORA_SAME_CONSTANT(cudnn_attribute::kKnobValue,
                    CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseDescriptor,
                    CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseX,
                    CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseB,
                    CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseY,
                    CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kPointwiseT,
                    CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kGraphHandle,
                    CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
QLORA_SAME_CONSTANT(cudnn_attribute::kGraphOperations,
                    CUDNN_ATTR_OPERATIONGRAPH_OPS);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorAlignment,
                    CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorDataType,
                    CUDNN_ATTR_TENSOR_DATA_TYPE);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorDimensions,
                    CUDNN_ATTR_TENSOR_DIMENSIONS);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorUniqueId,
                    CUDNN_ATTR_TENSOR_UNIQUE_ID);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorIsVirtual,
                    CUDNN_ATTR_TENSOR_IS_VIRTUAL);
QLORA_SAME_CONSTANT(cudnn_attribute::kTensorIsByValue,
                    CUDNN_ATTR_TENSOR_IS_BY_VALUE);
QLORA_SAME_CONSTANT(cudnn_attribute::kPackUniqueIds,
                    CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
QLORA_SAME_CONSTANT(cudnn_attribute::kPackPointers,
                    CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
QLORA_SAME_CONSTANT(cudnn_attribute::kPackWorkspace,
                    CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
QLORA_SAME_CONSTANT(cudnn_attribute::kEngineGraph,
                    CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
QLORA_SAME_CONSTANT(cudnn_attribute::kEngineIndex,
                    CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
QLORA_SAME_CONSTANT(cudnn_attribute::kEngineDevice,
                    CUDNN_ATTR_ENGINE_DEVICEPROP);
QLORA_SAME_CONSTANT(cudnn_attribute::kMatmulMathType,
                    CUDNN_ATTR_MATMUL_COMP_TYPE);
QLORA_SAME_CONSTANT(cudnn_attribute::kMatmulA,
                    CUDNN_ATTR_OPERATION_MATMUL_ADESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kMatmulB,
                    CUDNN_ATTR_OPERATION_MATMUL_BDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kMatmulC,
                    CUDNN_ATTR_OPERATION_MATMUL_CDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kMatmulDescriptor,
                    CUDNN_ATTR_OPERATION_MATMUL_DESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kReductionOperator,
                    CUDNN_ATTR_REDUCTION_OPERATOR);
QLORA_SAME_CONSTANT(cudnn_attribute::kReductionMathType,
                    CUDNN_ATTR_REDUCTION_COMP_TYPE);
QLORA_SAME_CONSTANT(cudnn_attribute::kReductionX,
                    CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kReductionY,
                    CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kReductionDescriptor,
                    CUDNN_ATTR_OPERATION_REDUCTION_DESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kReshapeX,
                    CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kReshapeY,
                    CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
QLORA_SAME_CONSTANT(cudnn_attribute::kDeviceJson,
                    CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);

QLORA_SAME_CONSTANT(cudnn_data::kFloat, CUDNN_DATA_FLOAT);
QLORA_SAME_CONSTANT(cudnn_data::kInt32, CUDNN_DATA_INT32);
QLORA_SAME_CONSTANT(cudnn_data::kBFloat16, CUDNN_DATA_BFLOAT16);
QLORA_SAME_CONSTANT(cudnn_data::kBoolean, CUDNN_DATA_BOOLEAN);

QLORA_SAME_CONSTANT(cudnn_pointwise::kAdd, CUDNN_POINTWISE_ADD);
QLORA_SAME_CONSTANT(cudnn_pointwise::kMultiply, CUDNN_POINTWISE_MUL);
QLORA_SAME_CONSTANT(cudnn_pointwise::kDivide, CUDNN_POINTWISE_DIV);
QLORA_SAME_CONSTANT(cudnn_pointwise::kSubtract, CUDNN_POINTWISE_SUB);
QLORA_SAME_CONSTANT(cudnn_pointwise::kExponential, CUDNN_POINTWISE_EXP);
QLORA_SAME_CONSTANT(cudnn_pointwise::kLogarithm, CUDNN_POINTWISE_LOG);
QLORA_SAME_CONSTANT(cudnn_pointwise::kIdentity, CUDNN_POINTWISE_IDENTITY);
QLORA_SAME_CONSTANT(cudnn_pointwise::kEqual, CUDNN_POINTWISE_CMP_EQ);
QLORA_SAME_CONSTANT(cudnn_pointwise::kGreater, CUDNN_POINTWISE_CMP_GT);
QLORA_SAME_CONSTANT(cudnn_pointwise::kGreaterOrEqual, CUDNN_POINTWISE_CMP_GE);
QLORA_SAME_CONSTANT(cudnn_pointwise::kIndex, CUDNN_POINTWISE_GEN_INDEX);
QLORA_SAME_CONSTANT(cudnn_pointwise::kSelect, CUDNN_POINTWISE_BINARY_SELECT);

QLORA_SAME_CONSTANT(cudnn_reduce::kSum, CUDNN_REDUCE_TENSOR_ADD);
QLORA_SAME_CONSTANT(cudnn_reduce::kMaximum, CUDNN_REDUCE_TENSOR_MAX);

QLORA_SAME_CONSTANT(cudnn_engine::kHeuristicsFallback,
                    CUDNN_HEUR_MODE_FALLBACK);
QLORA_SAME_CONSTANT(cudnn_engine::kHeuristicsA, CUDNN_HEUR_MODE_A);
QLORA_SAME_CONSTANT(cudnn_engine::kStages, CUDNN_KNOB_TYPE_STAGES);
QLORA_SAME_CONSTANT(cudnn_engine::kKernelConfig, CUDNN_KNOB_TYPE_KERNEL_CFG);
QLORA_SAME_CONSTANT(cudnn_engine::kTileCgaM, CUDNN_KNOB_TYPE_TILE_CGA_M);
QLORA_SAME_CONSTANT(cudnn_engine::kStreamK, CUDNN_KNOB_TYPE_STREAM_K);
QLORA_SAME_CONSTANT(cudnn_engine::kTileM, CUDNN_KNOB_TYPE_TILE_M);
QLORA_SAME_CONSTANT(cudnn_engine::kTileN, CUDNN_KNOB_TYPE_TILE_N);

namespace platform {
QLORA_PLATFORM_DNN_CODES(QLORA_SAME_ROW)
} // namespace platform

} // namespace qlora
