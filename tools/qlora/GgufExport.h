// SPDX-License-Identifier: MIT

// A merged model as one GGUF file: its plan, its writing, and the values that
// llama.cpp reads from it.
//
//   QLORA_ASSIGN_OR_RETURN(GgufExport file, GgufExport::plan(job, model, mix));
//   QLORA_RETURN_IF_ERROR(file.write(model, keys, "model-Q4_K_M.gguf"));
//   ... file.values() ...

#ifndef QLORA_TOOLS_QLORA_GGUFEXPORT_H
#define QLORA_TOOLS_QLORA_GGUFEXPORT_H

#include <cstdint>
#include <string>

#include "frontend/GgufModel.h"
#include "frontend/GgufValues.h"
#include "runtime/Base/Status.h"
#include "runtime/Export/MergedModel.h"
#include "runtime/Gguf/GgufMix.h"
#include "tools/qlora/ExportJob.h"

namespace qlora {

class GgufExport {
public:
  /// Describes the file. Reads no values.
  static StatusOr<GgufExport> plan(const ExportJob &job,
                                   const MergedModel &model,
                                   const GgufMix &mix);

  /// The description. Its sources have types, and name tensors of the merged
  /// model.
  const GgufModel &description() const { return described; }
  int64_t vocabularySize() const;
  /// Bytes of the file's tensors.
  uint64_t bytes() const;
  /// Upper bound of the memory for writing and for reading back, without the
  /// process.
  uint64_t peakBytes(const MergedModel &model) const;

  /// Writes PATH. `keys` follow those of the architecture.
  Status write(const MergedModel &model, const GgufMetadata &keys,
               const std::string &path);
  /// Opens the written file. The result must not outlive this object.
  StatusOr<GgufValues> values() const;
  /// Writes the values of the file as a Hugging Face folder in float32, for
  /// measuring: FOLDER exists and is empty.
  Status writeFolder(const MergedModel &model, const std::string &folder) const;

private:
  GgufModel described;
  const GgufMix *mix = nullptr;
  std::string path;
  uint64_t dataStart = 0;
};

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_GGUFEXPORT_H
