// SPDX-License-Identifier: MIT

// The name under which a quantised base is kept: a hash of all that decides
// the bytes of the FROZEN arena, so that a cached one can only be right or
// missing.
//
//   what comes out   the arena's size; of each weight in it the name, shape,
//                    dtype in the file and in the arena, quantisation, block,
//                    double quantisation and offset; what our quantiser makes
//                    of a sample; a version of ours, which is raised where
//                    loading gives other bytes in another way
//   what goes in     of each file of the model folder its name, identity
//                    (FileIdentity.h) and tensors, and which file a tensor is
//                    taken from
//
// Hashing the weights would cost the very read that a cache is for, so a file
// is known by its identity: a changed file is another one, whatever has been
// done to its time; so is a copy, which is then read and quantised anew. Links
// are followed: two snapshots of the Hugging Face cache that share a blob
// share a base. The target, ranks and threads change no byte and are not in
// it.

#ifndef QLORA_RUNTIME_WEIGHTS_BASEKEY_H
#define QLORA_RUNTIME_WEIGHTS_BASEKEY_H

#include <string>

#include "runtime/Module/ModuleLoader.h"
#include "runtime/Weights/ModelFiles.h"

namespace qlora {

/// Whether reading the frozen weights is work: one of them is quantised when
/// it is loaded. Keeping a base that is only copied would save nothing.
bool quantizesBase(const LoadedModule &module);

/// 64 hexadecimal digits.
StatusOr<std::string> baseKey(const LoadedModule &module,
                              const ModelFiles &model);

/// kUnavailable, with the reason for people, where a file of the model was
/// written so lately that its identity does not tell (FileIdentity.h). Asked
/// before the weights are read.
Status checkSettled(const ModelFiles &model);

/// kUnavailable where a file is not what it was when it was opened. Asked
/// after the weights were read.
Status checkUnchanged(const ModelFiles &model);

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BASEKEY_H
