// SPDX-License-Identifier: MIT

// Compares our declarations of libcublasLt.so with cublasLt.h and
// library_types.h.

#include <cublasLt.h>

#include "tests/cuda/Headers/SameAbi.h"

#include "runtime/Kernels/Cuda/CudaTypes.h"

namespace qlora {

QLORA_SAME_STRUCT(cublasLtMatmulAlgo_t)
QLORA_SAME_FIELD(cublasLtMatmulAlgo_t, data, data)
QLORA_SAME_STRUCT(cublasLtMatmulHeuristicResult_t)
QLORA_SAME_FIELD(cublasLtMatmulHeuristicResult_t, algo, algo)
QLORA_SAME_FIELD(cublasLtMatmulHeuristicResult_t, workspaceSize, workspaceSize)
QLORA_SAME_FIELD(cublasLtMatmulHeuristicResult_t, state, state)
QLORA_SAME_FIELD(cublasLtMatmulHeuristicResult_t, wavesCount, wavesCount)
QLORA_SAME_FIELD(cublasLtMatmulHeuristicResult_t, reserved, reserved)

#define QLORA_CUBLASLT(Name, Symbol, Parameters)                               \
  QLORA_SAME_FUNCTION(#Symbol, Symbol, cublasStatus_t, Parameters)
#include "runtime/Kernels/Cuda/CudaSymbols.inc"
QLORA_SAME_FUNCTION("cublasLtGetVersion", cublasLtGetVersion, size_t, ())

QLORA_CUBLAS_STATUSES(QLORA_SAME_ROW)
QLORA_SAME_CONSTANT(0, CUBLAS_STATUS_SUCCESS);
QLORA_SAME_CONSTANT(kCudaR32F, CUDA_R_32F);
QLORA_SAME_CONSTANT(kCudaR16BF, CUDA_R_16BF);
QLORA_SAME_CONSTANT(kCublasCompute32F, CUBLAS_COMPUTE_32F);
QLORA_SAME_CONSTANT(kCublasDescTransposeA, CUBLASLT_MATMUL_DESC_TRANSA);
QLORA_SAME_CONSTANT(kCublasDescTransposeB, CUBLASLT_MATMUL_DESC_TRANSB);
QLORA_SAME_CONSTANT(kCublasOpN, CUBLAS_OP_N);
QLORA_SAME_CONSTANT(kCublasOpT, CUBLAS_OP_T);
QLORA_SAME_CONSTANT(kCublasPreferenceMaxWorkspace,
                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
QLORA_SAME_CONSTANT(kCublasPreferenceReductionMask,
                    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
QLORA_SAME_CONSTANT(kCublasPreferenceMinAlignmentA,
                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
// The constants for B, C and D are the three values after the one for A.
QLORA_SAME_CONSTANT(kCublasPreferenceMinAlignmentA + 3,
                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
QLORA_SAME_CONSTANT(kCublasConfigReduction,
                    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
QLORA_SAME_CONSTANT(kCublasReductionNone, CUBLASLT_REDUCTION_SCHEME_NONE);
QLORA_SAME_CONSTANT(kCublasReductionInPlace, CUBLASLT_REDUCTION_SCHEME_INPLACE);
QLORA_SAME_CONSTANT(kCublasReductionComputeType,
                    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
QLORA_SAME_CONSTANT(kCublasReductionOutputType,
                    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);

} // namespace qlora
