// SPDX-License-Identifier: MIT

// What a file is, by its first bytes.

#include "tools/qloracc/ReadModel.h"

#include "mlir/Bytecode/BytecodeReader.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace llvm;

namespace qlora {

static Status folderInsteadOfModel(const std::string &folder) {
  if (sys::fs::exists(folder + "/config.json"))
    return Status::invalid("'{0}' is a Hugging Face model folder; import it "
                           "first: qlora-import {0} -o model.mlir",
                           folder);
  return Status::invalid("'{}' is a folder; expected the model.mlir that "
                         "qlora-import writes",
                         folder);
}

/// A length in 8 bytes, then a header in JSON.
static bool isSafetensors(StringRef text) {
  return text.size() > 8 && text[8] == '{' && text.take_front(8).contains('\0');
}

static Status checkText(const std::string &path, StringRef text) {
  const std::string name = path == "-" ? "standard input" : "'" + path + "'";
  StringRef start = text.ltrim();
  if (start.empty())
    return Status::invalid("{} is empty; expected the model.mlir that "
                           "qlora-import writes",
                           name);
  if (text.starts_with("\x7f" "ELF"))
    return Status::invalid("{} is compiled already; qlora-run trains it",
                           name);
  if (isSafetensors(text) || text.starts_with("GGUF"))
    return Status::invalid("{} holds weights; import the Hugging Face folder "
                           "of the model first: qlora-import MODEL_DIR -o "
                           "model.mlir",
                           name);
  if (start.starts_with("{") && !start.starts_with("{-#"))
    return Status::invalid("{} is JSON; expected the model.mlir that "
                           "qlora-import writes from a model folder",
                           name);
  if (StringRef(path).ends_with(".yaml") || StringRef(path).ends_with(".yml"))
    return Status::invalid("{} is YAML; give it with --config, beside the "
                           "model.mlir that qlora-import writes",
                           name);
  if (text.contains('\0'))
    return Status::invalid("{} is not text; expected the model.mlir that "
                           "qlora-import writes",
                           name);
  return Status::ok();
}

StatusOr<std::unique_ptr<MemoryBuffer>> openModel(const std::string &path) {
  if (sys::fs::is_directory(path))
    return folderInsteadOfModel(path);
  ErrorOr<std::unique_ptr<MemoryBuffer>> file =
      MemoryBuffer::getFileOrSTDIN(path);
  if (!file)
    return Status::error(StatusCode::kNotFound, "cannot read '{}': {}", path,
                         file.getError().message());
  if (!mlir::isBytecode((*file)->getMemBufferRef()))
    QLORA_RETURN_IF_ERROR(checkText(path, (*file)->getBuffer()));
  return std::move(*file);
}

} // namespace qlora
