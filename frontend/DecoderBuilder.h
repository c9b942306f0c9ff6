// SPDX-License-Identifier: MIT

// A decoder's forward graph in the model dialect: one `model.parameter` per
// weight and one function, which qloracc starts from.
//
//   module attributes {model.folder = "/models/x", model.config = {...}} {
//     model.parameter @"model.embed_tokens.weight" : tensor<256x64xbf16>
//         {file = "model.safetensors"}
//     func.func @forward(%ids: tensor<?x?xi32> {model.input = "ids"},
//                        %targets, %positions, %segments: likewise)
//         -> (loss, count, correct)
//   }
//
// Every op carries the path of its Hugging Face module as its location, and
// those of decoder layer N the attribute `layer = N`.

#ifndef QLORA_FRONTEND_DECODERBUILDER_H
#define QLORA_FRONTEND_DECODERBUILDER_H

#include <string>

#include "dialects/Model/Model.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

#include "frontend/DecoderWeights.h"
#include "frontend/HfConfig.h"

namespace qlora {

/// `context` has the model and func dialects loaded. `folder` is written into
/// the module as it is.
mlir::OwningOpRef<mlir::ModuleOp> buildDecoder(mlir::MLIRContext &context,
                                               const ModelConfig &config,
                                               const DecoderWeights &weights,
                                               const std::string &folder);

} // namespace qlora

#endif // QLORA_FRONTEND_DECODERBUILDER_H
