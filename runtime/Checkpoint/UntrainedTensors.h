// SPDX-License-Identifier: MIT

// Full fine-tuning writes a whole model. These are the tensors of the model's
// files that it does not train: frozen weights (--unfrozen-parameters), and the
// parts of a multimodal model other than the text model. They are copied from
// the model's files, which must stay there during a run.

#ifndef QLORA_RUNTIME_CHECKPOINT_UNTRAINEDTENSORS_H
#define QLORA_RUNTIME_CHECKPOINT_UNTRAINEDTENSORS_H

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/Base/Status.h"
#include "runtime/Module/ModuleLoader.h"
#include "runtime/Options/Options.h"
#include "runtime/Weights/ModelFiles.h"
#include "runtime/Weights/Safetensors.h"

namespace qlora {

class UntrainedTensors {
public:
  /// Finds the tensors. There are none if the module trains an adapter.
  static StatusOr<UntrainedTensors> find(const LoadedModule &module,
                                         const Options &options);

  void addTo(std::vector<SafetensorsItem> &items) const;
  /// Returns the bytes of a file with `items`, to which addTo() has added these
  /// tensors. `trained`: the bytes of the other items, in file order.
  NextBytes joined(std::vector<SafetensorsItem> items, NextBytes trained) const;

private:
  std::shared_ptr<const ModelFiles> files;
  std::map<std::string, ModelFiles::Entry, std::less<>> entries; ///< by name
};

} // namespace qlora

#endif // QLORA_RUNTIME_CHECKPOINT_UNTRAINEDTENSORS_H
