// SPDX-License-Identifier: MIT

// A location in the text replaces the parser's; this puts it back beside it.

#include "tools/qloracc/ReadModel.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/AsmParser/AsmParserState.h"
#include "mlir/Bytecode/BytecodeReader.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"

using namespace mlir;

/// `named`, at the place where the text defines the op.
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
