// SPDX-License-Identifier: MIT

// What the head of the page says: which model was compiled, how, when, and the
// rates that its times assume.
//
//   {"family": "LlamaForCausalLM", "shape": {"hidden_size": 256, ...},
//    "parameters": 1705728,           // of the model, adapters not counted
//    "adapters": 89088,               // numbers of LoRA alone
//    "trainable": 89088,              // these, and modules_to_save
//    "quantized": {"parameters": 1245184, "block": 64, "double_quant": true},
//    "options": {"lora_r": 8, ...},   // all that train.so records
//    "set": ["lora_r", ...],          // those that differ from the defaults
//    "target": "cpu", "date": "2026-11-21",
//    "rates": {"device": "default", "cores": 2, "is_assumed": true,
//              "gemm_f32_gflops": ..., "gemm_bf16_gflops": ...,
//              "copy_gbps": ..., "decode_gbps": ...}}
//
// "quantized" is there where a parameter is. The date is that of
// SOURCE_DATE_EPOCH where it is set (reproducible-builds.org), else today's, in
// UTC; it is in no other output of the compiler.

#ifndef QLORA_COMPILER_REPORT_RUNFACTS_H
#define QLORA_COMPILER_REPORT_RUNFACTS_H

#include "mlir/IR/BuiltinOps.h"

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora::program {
class ParameterOp;
}

namespace qlora {

/// Of a parameter as its files have it, of which a rank may hold a slice.
llvm::SmallVector<int64_t> wholeShapeOf(program::ParameterOp parameter);

/// As JSON. `program` has its `program.config`.
StatusOr<std::string> runFacts(mlir::ModuleOp program,
                               const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_RUNFACTS_H
