// SPDX-License-Identifier: MIT

// Data for the top of the report page: which model was compiled, how and when,
// and the assumed rates of the device.
//
//   {"family": "LlamaForCausalLM", "shape": {"hidden_size": 256, ...},
//    "parameters": 1705728,           // of the model, adapters not counted
//    "adapters": 89088,               // parameters of LoRA only
//    "trainable": 89088,              // adapters and modules_to_save
//    "quantized": {"parameters": 1245184, "block": 64, "double_quant": true},
//    "options": {"lora_r": 8, ...},   // all options recorded in train.so
//    "set": ["lora_r", ...],          // those that differ from the defaults
//    "target": "cpu", "date": "2026-11-21",
//    "rates": {"device": "default", "cores": 2, "is_assumed": true,
//              "gemm_f32_gflops": ..., "gemm_bf16_gflops": ...,
//              "copy_gbps": ..., "decode_gbps": ...}}
//
// "quantized" exists if a parameter is quantized. The date is SOURCE_DATE_EPOCH
// if set (reproducible-builds.org), else today, in UTC. No other output of the
// compiler contains a date.

#ifndef QLORA_COMPILER_REPORT_RUNMETADATA_H
#define QLORA_COMPILER_REPORT_RUNMETADATA_H

#include "mlir/IR/BuiltinOps.h"

#include "runtime/Base/Status.h"
#include "runtime/Kernels/DeviceProfile.h"

namespace qlora::program {
class ParameterOp;
}

namespace qlora {

/// Returns a parameter's unsharded shape, as in the model files.
llvm::SmallVector<int64_t> wholeShapeOf(program::ParameterOp parameter);

/// Returns the metadata as JSON. `program` must have `program.config`.
StatusOr<std::string> runMetadata(mlir::ModuleOp program,
                                  const DeviceProfile &device);

} // namespace qlora

#endif // QLORA_COMPILER_REPORT_RUNMETADATA_H
