// SPDX-License-Identifier: MIT

// Builds a decoder's forward graph in the model dialect, the input of qloracc:
// one `model.parameter` per weight and one function.
//
//   module attributes {model.folder = "/models/x", model.config = {...}} {
//     model.parameter @"model.embed_tokens.weight" : tensor<256x64xbf16>
//         {file = "model.safetensors"}
//     func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"},
//                        %targets, %positions, %segments: the same type)
//         -> (loss, count, correct)
//   }
//
// The location of an op is the path of its Hugging Face module. Ops of decoder
// layer N have the attribute `layer = N`.

#ifndef QLORA_FRONTEND_DECODERBUILDER_H
#define QLORA_FRONTEND_DECODERBUILDER_H

#include <string>

#include "dialects/Model/Model.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include "frontend/DecoderWeights.h"
#include "frontend/HfConfig.h"

namespace qlora {

/// Builds the module. `context` must have the model and func dialects loaded.
/// `folder` becomes the module's attribute model.folder.
mlir::OwningOpRef<mlir::ModuleOp> buildDecoder(mlir::MLIRContext &context,
                                               const ModelConfig &config,
                                               const DecoderWeights &weights,
                                               const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_DECODERBUILDER_H
