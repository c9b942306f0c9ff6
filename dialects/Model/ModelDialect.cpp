// SPDX-License-Identifier: MIT

// Registration of the model dialect, its types, and the sizes of tensors.

#include "dialects/Model/Model.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/ADT/bit.h"

#include "runtime/Kernels/Math/Stored.h"

using namespace mlir;
using namespace qlora::model;

#include "dialects/Model/ModelDialect.cpp.inc"
#include "dialects/Model/ModelEnums.cpp.inc"
#include "dialects/Model/ModelInterfaces.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Model/ModelAttrs.cpp.inc"

/// Parses a format by its name in kStoredFormats.
static ParseResult parseFormat(AsmParser &parser, qlora_dtype &dtype) {
  StringRef name;
  SMLoc at = parser.getCurrentLocation();
  if (parser.parseKeyword(&name))
    return failure();
  const qlora::StoredFormat *format =
      qlora::storedFormat(std::string_view(name));
  if (!format)
    return parser.emitError(at, "unknown format ") << name;
  dtype = format->dtype;
  return success();
}

static void printFormat(AsmPrinter &printer, qlora_dtype dtype) {
  printer << qlora::storedFormat(dtype)->name;
}

#define GET_TYPEDEF_CLASSES
#include "dialects/Model/ModelTypes.cpp.inc"

void ModelDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Model/ModelOps.cpp.inc"
      >();
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialects/Model/ModelTypes.cpp.inc"
      >();
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Model/ModelAttrs.cpp.inc"
      >();
}

LogicalResult
QuantizedType::verify(function_ref<InFlightDiagnostic()> emitError,
                      qlora_dtype dtype, int64_t block, bool doubleQuant) {
  const StoredFormat *format = storedFormat(dtype);
  if (!format)
    return emitError() << "expects a stored format";
  if (!format->takesBlock(block) && format->takesRows)
    return emitError() << "expects a row's elements as block, but got "
                       << block;
  if (!format->takesBlock(block))
    return emitError() << "expects a power of two from " << format->leastBlock
                       << " to " << format->mostBlock << " as block, but got "
                       << block;
  if (!format->takesDoubleQuant(doubleQuant))
    return emitError() << format->name << " expects " << !doubleQuant
                       << " as double quantization";
  return success();
}

LogicalResult MapAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                              MapKind kind, int64_t group) {
  if (group < 1)
    return emitError() << "expects a group of at least 1 row, but got "
                       << group;
  return success();
}

//===----------------------------------------------------------------------===//
// Stages
//===----------------------------------------------------------------------===//

int64_t qlora::model::layerOf(Operation *op) {
  auto staged = dyn_cast<StagedOp>(op);
  return staged ? staged.getLayer() : -1;
}

StepPhase qlora::model::phaseOf(Operation *op) {
  auto staged = dyn_cast<StagedOp>(op);
  return staged ? staged.getPhase() : StepPhase::Forward;
}

void qlora::model::setLayer(Operation *op, int64_t layer) {
  if (auto staged = dyn_cast<StagedOp>(op))
    staged.setLayer(layer);
}

void qlora::model::setPhase(Operation *op, StepPhase phase) {
  if (auto staged = dyn_cast<StagedOp>(op))
    staged.setPhase(phase);
}

void qlora::model::copyStage(Operation *from, Operation *to) {
  setLayer(to, layerOf(from));
  setPhase(to, phaseOf(from));
}

/// Rejects discardable attributes of this dialect on a StagedOp, because
/// nothing reads them (earlier versions had `model.block`).
LogicalResult ModelDialect::verifyOperationAttribute(Operation *op,
                                                     NamedAttribute attribute) {
  if (isa<StagedOp>(op))
    return op->emitOpError("has no attribute '")
           << attribute.getName().getValue() << "'";
  return success();
}

//===----------------------------------------------------------------------===//
// The mesh
//===----------------------------------------------------------------------===//

static constexpr StringLiteral kMeshAttr = "model.mesh";

static constexpr StringLiteral kAxes[] = {
#define QLORA_AXIS(NAME, GROUP, TRAITS, WORDS) #NAME,
#include "runtime/ABI/Enums.def"
};

static constexpr uint32_t qlora_mesh::*kSizes[] = {
#define QLORA_AXIS(NAME, GROUP, TRAITS, WORDS) &qlora_mesh::NAME,
#include "runtime/ABI/Enums.def"
};

qlora_mesh qlora::model::meshOf(Operation *module) {
  qlora_mesh mesh;
  if (auto attribute = module->getAttrOfType<MeshAttr>(kMeshAttr))
    for (auto [axis, size] : llvm::zip_equal(kSizes, attribute.getSizes()))
      mesh.*axis = size;
  return mesh;
}

void qlora::model::setAxis(Operation *module, uint32_t qlora_mesh::*axis,
                           int64_t ranks) {
  qlora_mesh mesh = meshOf(module);
  mesh.*axis = ranks;
  SmallVector<int64_t> sizes;
  for (uint32_t qlora_mesh::*size : kSizes)
    sizes.push_back(mesh.*size);
  module->setAttr(kMeshAttr, MeshAttr::get(module->getContext(), sizes));
}

bool qlora::model::haveSameRows(Ranks ranks) {
  enum Rows { Own, Same };
  static constexpr Rows kRows[] = {
#define QLORA_GROUP(NAME, NUMBER, CASE, WORD, PLACE, ROWS, TITLE) ROWS,
#include "runtime/ABI/Enums.def"
  };
  return kRows[unsigned(ranks)] == Same;
}

int64_t qlora::model::piecesOf(Operation *module) {
  const qlora_mesh mesh = meshOf(module);
  return std::max({mesh.fsdp, mesh.zero1, mesh.zero2});
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<";
  StringRef separator = "";
  for (auto [axis, size] : llvm::zip_equal(kAxes, getSizes())) {
    if (size == 1)
      continue;
    printer << separator << axis << " = " << size;
    separator = ", ";
  }
  printer << ">";
}

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> sizes(std::size(kAxes), 1);
  auto parseAxis = [&]() -> ParseResult {
    StringRef name;
    const SMLoc loc = parser.getCurrentLocation();
    if (parser.parseKeyword(&name) || parser.parseEqual())
      return failure();
    const auto *axis = llvm::find(kAxes, name);
    if (axis == std::end(kAxes))
      return parser.emitError(loc, "expected an axis: ")
             << llvm::join(ArrayRef(kAxes), ", ");
    int64_t &size = sizes[axis - std::begin(kAxes)];
    if (parser.parseInteger(size))
      return failure();
    return size >= 1 && size <= UINT16_MAX
               ? success()
               : parser.emitError(loc, "expected 1 to 65535 ranks");
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater,
                                     parseAxis))
    return {};
  return get(parser.getContext(), sizes);
}

//===----------------------------------------------------------------------===//
// Types and sizes
//===----------------------------------------------------------------------===//

/// Maximum elements for which indices and byte counts of any type fit int64_t.
static constexpr int64_t kMaxElements = int64_t(1) << 48;

bool qlora::model::isStorable(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.getRank() || !elementDtype(tensor.getElementType()))
    return false;
  int64_t room = kMaxElements;
  for (int64_t dim : tensor.getShape()) {
    if (ShapedType::isDynamic(dim))
      continue;
    if (dim < 1 || dim > room)
      return false;
    room /= dim;
  }
  return true;
}

bool qlora::model::isFloatStorable(Type type) {
  return isStorable(type) &&
         isa<FloatType>(cast<RankedTensorType>(type).getElementType());
}

bool qlora::model::isRowStorable(Type type) {
  return isFloatStorable(type) ||
         (isStorable(type) &&
          cast<RankedTensorType>(type).getElementType().isInteger(8));
}

bool qlora::model::isWeightStorable(Type type) {
  return isStorable(type) && isa<FloatType, QuantizedType>(
                                 cast<RankedTensorType>(type).getElementType());
}

bool qlora::model::isRow(Type type) {
  auto row = dyn_cast<RankedTensorType>(type);
  return row && row.getRank() == 1 && row.hasStaticShape() &&
         row.getElementType().isF32();
}

int64_t qlora::model::doubleBits(double value) {
  return llvm::bit_cast<int64_t>(value);
}

int64_t qlora::model::matrixRows(RankedTensorType type) {
  int64_t rows = 1;
  for (int64_t dim : type.getShape().drop_back())
    rows *= dim;
  return rows;
}

int64_t qlora::model::matrixColumns(RankedTensorType type) {
  return type.getRank() ? type.getShape().back() : 1;
}

RankedTensorType qlora::model::withLength(RankedTensorType type,
                                          unsigned dimension, int64_t length) {
  SmallVector<int64_t> shape(type.getShape());
  shape[dimension] = length;
  return type.clone(shape);
}

int64_t qlora::model::tensorBytes(RankedTensorType type) {
  int64_t elements = type.getNumElements();
  if (auto stored = dyn_cast<QuantizedType>(type.getElementType()))
    return StoredLayout::of(stored.getFormat(), elements, stored.getBlock(),
                            stored.getDoubleQuant())
        .bytes;
  return elements * (type.getElementTypeBitWidth() / 8);
}

std::optional<qlora_dtype> qlora::model::elementDtype(Type type) {
  if (auto stored = dyn_cast<QuantizedType>(type))
    return stored.getFormat();
  if (type.isF32())
    return QLORA_DTYPE_F32;
  if (type.isBF16())
    return QLORA_DTYPE_BF16;
  if (type.isF16())
    return QLORA_DTYPE_F16;
  if (type.isInteger(32))
    return QLORA_DTYPE_I32;
  if (type.isUnsignedInteger(8))
    return QLORA_DTYPE_U8;
  if (type.isInteger(8))
    return QLORA_DTYPE_I8;
  return std::nullopt;
}
