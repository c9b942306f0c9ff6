// SPDX-License-Identifier: MIT

// Registration and verifiers of the program dialect.

#include "dialects/Program/Program.h"

#include "llvm/ADT/TypeSwitch.h"
#include "mlir/IR/DialectImplementation.h"

#include "runtime/ABI/CollectiveForm.h"
#include "runtime/Kernels/KernelTable.h"
#include "runtime/Kernels/Math/Stored.h"

using namespace mlir;
using namespace qlora::program;

#include "dialects/Program/ProgramDialect.cpp.inc"
#include "dialects/Program/ProgramEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Program/ProgramAttrs.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Program/ProgramTypes.cpp.inc"
/// Parses "(%x read f32, %y write bf16)": access and dtype of each operand.
static ParseResult
parseUses(OpAsmParser &parser,
          SmallVectorImpl<OpAsmParser::UnresolvedOperand> &operands,
          DenseI64ArrayAttr &access, DenseI64ArrayAttr &dtypes) {
  SmallVector<int64_t> accesses, types;
  auto parseUse = [&]() -> ParseResult {
    FailureOr<Access> use;
    FailureOr<DType> type;
    if (parser.parseOperand(operands.emplace_back()) ||
        failed(use = FieldParser<Access>::parse(parser)) ||
        failed(type = FieldParser<DType>::parse(parser)))
      return failure();
    accesses.push_back(int64_t(*use));
    types.push_back(int64_t(*type));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parseUse))
    return failure();
  access = DenseI64ArrayAttr::get(parser.getContext(), accesses);
  dtypes = DenseI64ArrayAttr::get(parser.getContext(), types);
  return success();
}

static void printUses(OpAsmPrinter &printer, Operation *, OperandRange operands,
                      DenseI64ArrayAttr access, DenseI64ArrayAttr dtypes) {
  printer << '(';
  llvm::interleaveComma(
      llvm::zip(operands, access.asArrayRef(), dtypes.asArrayRef()), printer,
      [&](auto use) {
        auto [operand, access, dtype] = use;
        printer << operand << ' ' << stringifyAccess(Access(access)) << ' '
                << stringifyDType(DType(dtype));
      });
  printer << ')';
}

#define GET_OP_CLASSES
#include "dialects/Program/ProgramOps.cpp.inc"

// These enums are generated from runtime/ABI/Enums.def.
static_assert(getMaxEnumValForArena() + 1 == QLORA_ARENA_KIND_COUNT &&
              getMaxEnumValForEntryKind() + 1 == QLORA_ENTRY_KIND_COUNT &&
              getMaxEnumValForQueue() + 1 == QLORA_QUEUE_COUNT &&
              getMaxEnumValForCollective() + 1 == QLORA_COLLECTIVE_COUNT &&
              getMaxEnumValForGroup() + 1 == QLORA_GROUP_COUNT);

/// Returns whether values of our enum equal the ABI's, in order.
template <auto... Ours> static constexpr bool are(auto... theirs) {
  return ((static_cast<int64_t>(Ours) == static_cast<int64_t>(theirs)) && ...);
}
static_assert(are<DType::F32, DType::BF16, DType::F16, DType::I32, DType::NF4,
                  DType::U8, DType::I8, DType::LLMInt8, DType::MXFP4,
                  DType::FP4, DType::FP8, DType::Int4, DType::Int8>(
    QLORA_DTYPE_F32, QLORA_DTYPE_BF16, QLORA_DTYPE_F16, QLORA_DTYPE_I32,
    QLORA_DTYPE_NF4, QLORA_DTYPE_U8, QLORA_DTYPE_I8, QLORA_DTYPE_LLM_INT8,
    QLORA_DTYPE_MXFP4, QLORA_DTYPE_FP4, QLORA_DTYPE_FP8,
    QLORA_DTYPE_INT4, QLORA_DTYPE_INT8));
static_assert(getMaxEnumValForDType() + 1 == QLORA_DTYPE_COUNT);

void ProgramDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Program/ProgramOps.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialects/Program/ProgramTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Program/ProgramAttrs.cpp.inc"
      >();
}

LogicalResult ArenaOp::verify() {
  if (getOnHost() && getKind() != Arena::State)
    return emitOpError("(C1) expects only the state arena on_host, but got ")
           << stringifyArena(getKind());
  return success();
}

LogicalResult KernelOp::verify() {
  bool generated = !getBody().empty();
  if (generated == getOp().has_value())
    return emitOpError("(C1) expects either the name of a library op or a "
                       "body");
  if (getOp() && !qlora::findKernelOp(*getOp()))
    return emitOpError("(C1) '") << *getOp() << "' is not in Kernels.def";
  return success();
}

void BufferOp::build(OpBuilder &builder, OperationState &state, Arena arena,
                     std::optional<int64_t> offset, int64_t bytes, DType dtype,
                     StringRef label, bool saved, int64_t pieces) {
  build(builder, state, BufferType::get(builder.getContext()),
        ArenaAttr::get(builder.getContext(), arena),
        offset ? builder.getI64IntegerAttr(*offset) : IntegerAttr(),
        builder.getI64IntegerAttr(bytes),
        DTypeAttr::get(builder.getContext(), dtype),
        label.empty() ? StringAttr() : builder.getStringAttr(label),
        saved ? builder.getUnitAttr() : UnitAttr(), /*backward=*/UnitAttr(),
        /*recomputed=*/UnitAttr(), builder.getI64IntegerAttr(pieces));
}

void ViewOp::build(OpBuilder &builder, OperationState &state, Value source,
                   int64_t offset, int64_t bytes) {
  build(builder, state, BufferType::get(builder.getContext()), source,
        builder.getI64IntegerAttr(offset), builder.getI64IntegerAttr(bytes));
}

LogicalResult BufferOp::verify() {
  int64_t bytes = getBytes(), offset = getOffset().value_or(0);
  if (bytes < 1 || offset < 0)
    return emitOpError("(C1) expects a positive number of bytes at an offset "
                       "of at least 0, but got ")
           << bytes << " at " << offset;
  if (int64_t pieces = getPieces(); pieces != 1 && (pieces < 1 || !getOffset()))
    return emitOpError("(C2) expects an offset with ") << pieces << " pieces";
  return success();
}

LogicalResult ViewOp::verify() {
  auto buffer = getSource().getDefiningOp<BufferOp>();
  int64_t offset = getOffset(), bytes = getBytes();
  int64_t room = buffer ? static_cast<int64_t>(buffer.getBytes()) : 0;
  if (!buffer || offset < 0 || bytes < 1 || offset > room ||
      bytes > room - offset)
    return emitOpError("(C1) expects a range of a program.buffer, but got ")
           << bytes << " bytes at " << offset << " of " << room;
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!symbols.lookupNearestSymbolFrom<KernelOp>(*this, getKernelAttr()))
    return emitOpError("(C1) refers to ")
           << getKernelAttr() << ", which is not a program.kernel";
  return success();
}

LogicalResult LaunchOp::verify() {
  if (getAccess().size() != getNumOperands() ||
      getDtypes().size() != getNumOperands())
    return emitOpError("(C2) expects one access and dtype for each of ")
           << getNumOperands() << " operands, but got " << getAccess().size()
           << " and " << getDtypes().size();
  for (auto [access, dtype] : llvm::zip(getAccess(), getDtypes()))
    if (!symbolizeAccess(access) || !symbolizeDType(dtype))
      return emitOpError("(C2) expects an access and a dtype, but got ")
             << access << " and " << dtype;
  return success();
}

//===----------------------------------------------------------------------===//
// Collectives
//===----------------------------------------------------------------------===//

static const qlora::CollectiveForm &formOf(Collective kind) {
  return qlora::kCollectiveForms[static_cast<unsigned>(kind)];
}

Access CollectiveOp::getTargetAccess() {
  return Access(formOf(getKind()).target);
}

/// Bytes and dtype of a buffer or a view.
static std::pair<int64_t, DType> contentsOf(Value buffer) {
  int64_t bytes = 0;
  for (auto view = buffer.getDefiningOp<ViewOp>(); view;
       view = buffer.getDefiningOp<ViewOp>()) {
    bytes = bytes ? bytes : view.getBytes();
    buffer = view.getSource();
  }
  auto whole = buffer.getDefiningOp<BufferOp>();
  return {bytes ? bytes : whole.getBytes(), whole.getDtype()};
}

LogicalResult CollectiveOp::verify() {
  const qlora::CollectiveForm &form = formOf(getKind());
  StringRef name = stringifyCollective(getKind());
  if (form.hasSource != bool(getSource()))
    return emitOpError("(C1) expects ")
           << (form.hasSource ? "a source" : "no source") << " for " << name;
  auto [bytes, dtype] = contentsOf(getTarget());
  auto [sourceBytes, sourceDtype] =
      contentsOf(getSource() ? getSource() : getTarget());
  bool isAddable = dtype == DType::F32 || dtype == DType::BF16 ||
                   dtype == DType::F16 || dtype == DType::I32;
  if (dtype != sourceDtype || qlora::storedFormat(uint32_t(dtype)) ||
      (form.isSum && !isAddable))
    return emitOpError("(C2) cannot be of ")
           << stringifyDType(dtype) << " and " << stringifyDType(sourceDtype);
  bool isWhole = getKind() == Collective::AllToAll
                     ? bytes == sourceBytes
                     : bytes % sourceBytes == 0 || sourceBytes % bytes == 0;
  if (!isWhole)
    return emitOpError("(C3) has ")
           << bytes << " and " << sourceBytes << " bytes";
  int64_t peer = getPeer();
  bool isPeer = form.peer == qlora::CollectiveForm::kRank     ? peer >= 0
                : form.peer == qlora::CollectiveForm::kPlaces ? peer != 0
                                                       : peer == 0;
  if (!isPeer || !llvm::isInt<16>(peer))
    return emitOpError("(C4) ") << name << " cannot have the peer " << peer;
  return success();
}
