// SPDX-License-Identifier: MIT

// Assigns offsets to parameters, and creates their program.parameter ops.

#include "compiler/Schedule/ParameterLayout.h"

#include "runtime/ABI/module.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// Bytes of a cache line, and the largest alignment that a vector load needs.
static constexpr int64_t kParameterAlignment = 64;

FailureOr<ParameterLayout> ParameterLayout::of(ModuleOp module) {
  auto names = module->getAttrOfType<ArrayAttr>("train.layout");
  auto offsets = module->getAttrOfType<DenseI64ArrayAttr>("train.offsets");
  if (!names || !offsets || names.size() != static_cast<size_t>(offsets.size()))
    return module.emitError("expects the attributes train.layout and "
                            "train.offsets, which bucket-gradients writes");
  ParameterLayout layout;
  layout.flatBytes = 4 * train::flatElements(module);
  layout.pieces = model::piecesOf(module);
  layout.trains = !train::onlyGenerates(module);
  if (layout.trains) {
    layout.update = train::planUpdate(module);
    layout.lowRank = train::planLowRank(module, layout.update);
  }
  llvm::StringMap<int64_t> flat;
  for (auto [name, offset] : llvm::zip_equal(names, offsets.asArrayRef()))
    flat[cast<FlatSymbolRefAttr>(name).getValue()] = 4 * offset;
  for (auto parameter : module.getOps<ParameterOp>()) {
    int64_t bytes = tensorBytes(parameter.getTensorType());
    if (parameter.getTrainable()) {
      auto known = flat.find(parameter.getSymName());
      if (known == flat.end())
        return parameter.emitOpError("is trainable but not in train.layout");
      layout.places[parameter.getSymName()] = {
          program::Arena::Trainable, known->second, bytes,
          int64_t(parameter.getPiece().value_or(0))};
      continue;
    }
    const bool isOnHost = parameter.getOnHost();
    int64_t &end = isOnHost ? layout.hostBytes : layout.frozenBytes;
    layout.places[parameter.getSymName()] = {
        isOnHost ? program::Arena::Host : program::Arena::Frozen, end, bytes,
        parameter.getPiece().value_or(0)};
    end = llvm::alignTo(
        end + layout.lookup(parameter.getSymName()).arenaBytes(),
        kParameterAlignment);
  }
  for (auto cache : module.getOps<CacheOp>()) {
    const int64_t bytes = tensorBytes(cache.getTensorType());
    layout.places[cache.getSymName()] = {program::Arena::Cache,
                                         layout.cacheBytes, bytes};
    layout.cacheBytes =
        llvm::alignTo(layout.cacheBytes + bytes, kParameterAlignment);
  }
  return layout;
}

static program::Init initOf(ParameterOp parameter) {
  return program::symbolizeInit(parameter.getInit().value_or("file"))
      .value_or(program::Init::File);
}

static program::Role roleOf(ParameterOp parameter) {
  if (!parameter.getTrainable())
    return program::Role::Frozen;
  return parameter.getInit() ? program::Role::Adapter
                             : program::Role::Trainable;
}

/// Returns whether a weight is quantized in the file (Stored), on load, on load
/// after a transposition (Turned), or not at all.
static program::Quantization quantizationOf(ParameterOp parameter,
                                            QuantizedType stored) {
  using program::Quantization;
  return !stored                          ? Quantization::None
         : parameter.getStoredQuantized() ? Quantization::Stored
         : parameter.getTransposed()      ? Quantization::Turned
                                          : Quantization::OnLoad;
}

static program::DType dtypeOf(Type element) {
  return program::DType(*elementDtype(element));
}

void ParameterLayout::emit(OpBuilder &builder, ModuleOp module) const {
  for (auto parameter : module.getOps<ParameterOp>()) {
    const ParameterPlace &place = lookup(parameter.getSymName());
    RankedTensorType type = parameter.getTensorType();
    Type element = type.getElementType();
    auto stored = dyn_cast_or_null<QuantizedType>(
        parameter.getQuantized() ? *parameter.getQuantized() : element);
    Type fileType = parameter.getFileType().value_or(element);
    auto emitPart = [&](StringRef name, int64_t firstRow, int64_t rows,
                        ArrayAttr parts = {}) {
      SmallVector<int64_t> shape(type.getShape());
      int64_t rowBytes = place.bytes / type.getDimSize(0);
      bool whole = rows == type.getDimSize(0);
      // The rows of a part may begin in any rank's shard, or span several.
      const int64_t before = firstRow * rowBytes;
      shape[0] = rows;
      auto emitted = program::ParameterOp::create(
          builder, parameter.getLoc(), name, place.arena,
          place.offset + (place.piece ? 0 : before),
          whole ? place.bytes : rows * rowBytes, shape, dtypeOf(element),
          roleOf(parameter), initOf(parameter),
          quantizationOf(parameter, stored), stored ? stored.getBlock() : 0,
          stored && stored.getDoubleQuant(), dtypeOf(fileType),
          parameter.getFileAttr(), parts,
          stored
              ? program::DTypeAttr::get(builder.getContext(), dtypeOf(stored))
              : program::DTypeAttr(),
          place.piece, place.piece ? before : 0);
      if (std::optional<SliceAttr> slice = parameter.getSlice()) {
        emitted.setSlices(slice->getRanks());
        emitted.setSliceDimension(slice->getDimension());
        emitted.setSegments(slice->getSegments());
        emitted.setDecodedScales(slice->getCodedScales());
      }
    };
    // Quantized tensors, slices and frozen fsdp shards are one op
    // with the names of all parts. Other tensors get one op per part.
    if (!parameter.getPartNames() || stored || parameter.getSlice() ||
        (place.piece && !parameter.getTrainable())) {
      emitPart(parameter.getSymName(), 0, type.getDimSize(0),
               parameter.getPartNamesAttr());
      continue;
    }
    for (const train::ParameterPart &part : train::partsOf(parameter))
      emitPart(part.name, part.row, part.shape.front());
  }
  emitStates(builder, module);
  emitBases(builder, module);
}

namespace {
/// Place of one tensor's values in an optimizer state of a rank.
struct StatePlace {
  SmallVector<int64_t> shape;
  int64_t offset = 0; ///< elements into the state
  /// `piece`: elements of a rank's shard; 0: not sharded. `first`: index of the
  /// tensor's first element in the concatenated shards.
  int64_t piece = 0, first = 0;
};
} // namespace

/// Returns the place of a parameter's `part` in the optimizer state of `piece`.
/// The parameter's values begin at element `at` of the flat arenas.
static StatePlace placeOf(const train::UpdatePiece &piece,
                          model::ParameterOp parameter,
                          const train::ParameterPart &part, int64_t at) {
  RankedTensorType type = parameter.getTensorType();
  const int64_t before =
      part.row * (type.getNumElements() / type.getDimSize(0));
  const int64_t start =
      piece.parameter ? at : (1 + piece.row) * train::kFlatColumns;
  if (parameter.getPiece())
    return {part.shape, at - start, train::flatElements(parameter), before};
  // A tensor may span the shards of several ranks.
  if (piece.pieces > 1)
    return {part.shape, 0, piece.type.getNumElements(), at - start + before};
  return {part.shape, piece.parameter ? 0 : at - start + before};
}

void ParameterLayout::emitStates(OpBuilder &builder, ModuleOp module) const {
  using namespace program;
  auto emit = [&](const train::UpdatePiece::State &state, StringRef name,
                  const StatePlace &place) {
    const DType dtype = dtypeOf(state.type.getElementType());
    const int64_t width = state.type.getElementTypeBitWidth() / 8;
    program::ParameterOp::create(
        builder, module.getLoc(), name, Arena::State,
        state.offset + width * place.offset,
        width * ShapedType::getNumElements(place.shape), place.shape, dtype,
        Role::State, Init::Zero, Quantization::None, 0, false, dtype,
        StringAttr(), ArrayAttr(), DTypeAttr(), width * place.piece,
        width * place.first);
  };
  for (const train::UpdatePiece &piece : update.pieces)
    for (auto [row, state] : llvm::zip_equal(piece.kind.optimizer->getStates(),
                                             piece.states))
      for (auto parameter : module.getOps<model::ParameterOp>()) {
        if (!parameter.getTrainable() ||
            train::updateKindOf(parameter) != piece.kind)
          continue;
        for (const train::ParameterPart &part : train::partsOf(parameter)) {
          if (piece.parameter && part.name != piece.name)
            continue;
          StatePlace place = placeOf(piece, parameter, part,
                                     lookup(parameter.getSymName()).offset / 4);
          if (row.extent != train::StateExtent::Element)
            place.shape = llvm::to_vector(state.type.getShape().take_front());
          emit(state, (part.name + "." + row.name).str(), place);
        }
      }
}

void ParameterLayout::emitBases(OpBuilder &builder, ModuleOp module) const {
  using namespace program;
  for (const train::SummedTensor &tensor : lowRank.tensors)
    if (tensor.basis)
      program::ParameterOp::create(
          builder, module.getLoc(), tensor.name + train::kBasisSuffix.str(),
          Arena::State, *tensor.basis, 4 * lowRank.rank * tensor.columns,
          ArrayRef{lowRank.rank, tensor.columns}, DType::F32, Role::State,
          Init::Normal, Quantization::None, 0, false, DType::F32, StringAttr(),
          ArrayAttr(), DTypeAttr(), 0, 0);
}
