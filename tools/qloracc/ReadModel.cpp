// SPDX-License-Identifier: MIT

// Identifies a file by its first bytes, then parses it. An op's loc("...")
// replaces the position at which the text defines the op; readModel() restores
// it.

#include "tools/qloracc/ReadModel.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/AsmParser/AsmParserState.h"
#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;
using namespace qlora;

static Status folderInsteadOfModel(const std::string &folder) {
  if (llvm::sys::fs::exists(folder + "/config.json"))
    return Status::invalid("'{0}' is a Hugging Face model folder; import it "
                           "first: qlora-import {0} -o model.mlir",
                           folder);
  return Status::invalid("'{}' is a folder; expected the model.mlir that "
                         "qlora-import writes",
                         folder);
}

/// Detects the start of Safetensors: a length in 8 bytes, then a JSON header.
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
    return Status::invalid("{} is YAML; give it with --config, after the "
                           "model.mlir that qlora-import writes",
                           name);
  if (text.contains('\0'))
    return Status::invalid("{} is not text; expected the model.mlir that "
                           "qlora-import writes",
                           name);
  return Status::ok();
}

StatusOr<std::unique_ptr<llvm::MemoryBuffer>>
qlora::openModel(const std::string &path) {
  if (llvm::sys::fs::is_directory(path))
    return folderInsteadOfModel(path);
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> file =
      llvm::MemoryBuffer::getFileOrSTDIN(path);
  if (!file)
    return Status::notFound("cannot read '{}': {}", path,
                            file.getError().message());
  if (!isBytecode((*file)->getMemBufferRef()))
    QLORA_RETURN_IF_ERROR(checkText(path, (*file)->getBuffer()));
  return std::move(*file);
}

/// Returns `named` with the position at which the text defines the op.
static Location placed(NameLoc named, llvm::SMLoc start,
                       const llvm::SourceMgr &sources) {
  unsigned buffer = sources.getMainFileID();
  auto [line, column] = sources.getLineAndColumn(start, buffer);
  StringRef file = sources.getMemoryBuffer(buffer)->getBufferIdentifier();
  return NameLoc::get(named.getName(), FileLineColLoc::get(named.getContext(),
                                                           file, line, column));
}

OwningOpRef<ModuleOp> qlora::readModel(const llvm::SourceMgr &sources,
                                       MLIRContext &context) {
  const llvm::MemoryBuffer *buffer =
      sources.getMemoryBuffer(sources.getMainFileID());
  if (isBytecode(buffer->getMemBufferRef()))
    return parseSourceFile<ModuleOp>(sources, &context);
  Block block;
  AsmParserState state;
  ParserConfig config(&context, /*verifyAfterParse=*/false);
  if (failed(parseAsmSourceFile(sources, &block, config, &state)))
    return nullptr;
  for (const AsmParserState::OperationDefinition &definition :
       state.getOpDefs()) {
    auto named = dyn_cast<NameLoc>(definition.op->getLoc());
    if (named && isa<UnknownLoc>(named.getChildLoc()))
      definition.op->setLoc(placed(named, definition.loc.Start, sources));
  }
  auto start = FileLineColLoc::get(&context, buffer->getBufferIdentifier(),
                                   /*line=*/1, /*column=*/1);
  OwningOpRef<ModuleOp> module =
      mlir::detail::constructContainerOpForParserIfNecessary<ModuleOp>(
          &block, &context, start);
  if (!module || failed(verify(*module)))
    return nullptr;
  return module;
}
