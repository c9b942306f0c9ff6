// SPDX-License-Identifier: MIT

// place-frozen-weights: shards weights over ranks, or places them in host
// memory, and gathers them where they are used.
//
//   %w  = model.weight @w : tensor<64x64x!nf4>
//   %y  = model.linear %x, %w                      // forward of layer 1
//   ...
//   %dx = model.linear %dy, %w layout in_out       // its backward
//
// becomes, with fsdp shards of @w of 1,152 bytes,
//
//   %w1 = model.gather_weight @w : tensor<64x64x!nf4>
//   %y  = model.linear %x, %w1                     // %w1 dies here
//   ...
//   %w2 = model.gather_weight @w : tensor<64x64x!nf4>
//   %dx = model.linear %dy, %w2 layout in_out
//
// This is ZeRO-3 (Rajbhandari et al., 2020). Ranks send the weight as it is
// stored: a 4-bit weight is a quarter of its bf16 size. They send the bf16 copy
// of a trainable weight if matmuls use that. shard-trainable has decided
// which trainable weights are sharded; with keep-trained one gather serves the
// whole step, as FSDP's SHARD_GRAD_OP. Vectors (norms, biases) stay whole: they
// are small, and gathering them would cost more time than it saves memory. A tp
// shard is sharded further; ep shards and sharded tables are not.
//
// With offload-base, the same is done with frozen weights that are on_host,
// whole or sharded: ZeRO-Infinity (Rajbhandari et al., 2021). Weights first
// cross the bus. A kernel that reads single rows reads them in host memory if
// the weight is whole there, even if other uses of the weight are gathered.

#include "compiler/Memory/StepProblem.h"
#include "compiler/PassMetadata.h"
#include "compiler/Passes.h"
#include "compiler/Place/HostTables.h"
#include "dialects/Program/Program.h"

#include "runtime/ABI/module.h"
#include "runtime/Options/MeshAxes.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_PLACEFROZENWEIGHTS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// Uses of a weight that one gather serves.
struct GatherGroup {
  UsePlace place;
  SmallVector<OpOperand *> uses;
};

class PlaceFrozenWeightsPass
    : public qlora::impl::PlaceFrozenWeightsBase<PlaceFrozenWeightsPass> {
public:
  using PlaceFrozenWeightsBase::PlaceFrozenWeightsBase;

private:
  void runOnOperation() override;
  /// A parameter's name, and 1 for its rounded copy or 0 for its own values.
  using Gathered = std::pair<Attribute, unsigned>;
  using GroupsOfWeights = llvm::MapVector<Gathered, SmallVector<GatherGroup>>;

  bool isWhole(ParameterOp parameter) const;
  int64_t ownBytes(ParameterOp parameter) const;
  void findStaying(const llvm::StringSet<> &rows);
  void divideParameters();
  void keepGathers();
  GroupsOfWeights groupsIn(StepOp step) const;
  void gatherIn(StepOp step);
  void recordMetadata();

  bool isKept(Attribute parameter) const {
    return kept.contains(parameter) ||
           (keepTrained && trained.contains(parameter));
  }
  /// Returns whether `use` needs a gather of the whole weight on the GPU.
  bool isGathered(Attribute parameter, OpOperand &use) const {
    return divided.contains(parameter) ||
           (onHost.contains(parameter) && !isReadByRows(use));
  }

  /// Names of parameters:
  ///   divided  sharded parameters
  ///   trained  sharded parameters that are trainable
  ///   onHost   parameters in host memory
  ///   kept     frozen parameters that are gathered only once per step
  DenseSet<Attribute> divided, trained, onHost, kept;
  DenseSet<Operation *> staying; ///< on the GPU despite offload
  int64_t wholeBytes = 0, pieceBytes = 0, hostBytes = 0, gathers = 0;
  int64_t stayingBytes = 0, keptBytes = 0; ///< within the limit `room`
};

/// Selects weights of up to `room` bytes, spread evenly over the layers: then
/// all layers transfer similar bytes, each while the previous layer computes.
class Spread {
public:
  Spread(int64_t room, int64_t all)
      : share(all > 0 ? std::min(1.0, double(room) / double(all)) : 0) {}

  bool takes(int64_t bytes) {
    credit += share * double(bytes);
    const bool isTaken = credit >= double(bytes);
    credit -= isTaken ? double(bytes) : 0;
    return isTaken;
  }

private:
  const double share;
  double credit = 0;
};

} // namespace

/// Returns whether the parameter is a sharded table.
static bool isDividedTable(ParameterOp parameter) {
  auto module = parameter->getParentOfType<ModuleOp>();
  return parameter.getSlice() &&
         llvm::any_of(module.getOps<StepOp>(), [&](StepOp step) {
           return llvm::any_of(step.getBody().getOps<WeightOp>(),
                               [&](WeightOp weight) {
             return weight.getParameter() == parameter.getSymName() &&
                    llvm::any_of(weight->getUsers(),
                                 llvm::IsaPred<TableOp>);
           });
         });
}

/// Returns whether the parameter is a slice over the ranks of fsdp, or a
/// sharded table: then fsdp ranks have different values, which cannot be
/// sharded further.
static bool isPart(ParameterOp parameter) {
  const bool isOfFsdpRanks =
      parameter.getSlice() && slicesOverPieceRanks(model::meshOf(
                                  parameter->getParentOfType<ModuleOp>()));
  return isOfFsdpRanks || isDividedTable(parameter);
}

/// Returns whether a frozen parameter can be sharded.
static bool canBeDivided(ParameterOp parameter) {
  RankedTensorType type = parameter.getTensorType();
  return parameter.getFile() && type.getRank() >= 2;
}

bool PlaceFrozenWeightsPass::isWhole(ParameterOp parameter) const {
  return shards == 1 || !canBeDivided(parameter) || isPart(parameter);
}

/// Returns the bytes of a rank's shard, or of the parameter if it is not
/// sharded. A table's shard has whole rows.
int64_t PlaceFrozenWeightsPass::ownBytes(ParameterOp parameter) const {
  const int64_t bytes = tensorBytes(parameter.getTensorType());
  if (isWhole(parameter))
    return bytes;
  return parameter.getPiece().value_or(llvm::alignTo(
      llvm::divideCeil(bytes, shards), QLORA_PIECE_ALIGNMENT));
}

/// Chooses the weights that stay on the GPU although the base is offloaded.
/// Tables that are read by rows do not stay: few of their bytes are read.
void PlaceFrozenWeightsPass::findStaying(const llvm::StringSet<> &rows) {
  SmallVector<ParameterOp> moving;
  int64_t bytes = 0;
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (offloadBase && !parameter.getTrainable() && !parameter.getPiece() &&
        canBeDivided(parameter) && !rows.contains(parameter.getSymName())) {
      moving.push_back(parameter);
      bytes += ownBytes(parameter);
    }
  Spread onGpu(room, bytes);
  for (ParameterOp parameter : moving)
    if (const int64_t own = ownBytes(parameter); onGpu.takes(own)) {
      staying.insert(parameter);
      stayingBytes += own;
    }
}

void PlaceFrozenWeightsPass::divideParameters() {
  llvm::StringSet<> tables;
  if (offloadTables)
    tables = hostTables(getOperation());
  // Weights with single-row reads stay whole on the host. Tables that are
  // already sharded have a piece and are not moved.
  const llvm::StringSet<> rows = readByRows(getOperation());
  findStaying(rows);
  for (auto parameter : getOperation().getOps<ParameterOp>()) {
    const auto name = FlatSymbolRefAttr::get(parameter.getSymNameAttr());
    if (parameter.getTrainable()) {
      if (parameter.getPiece())
        trained.insert(name);
      continue;
    }
    const bool isTable = tables.contains(parameter.getSymName());
    const bool isMoved =
        !staying.contains(parameter) && !parameter.getPiece() &&
        (isTable || (offloadBase && canBeDivided(parameter)));
    if (isMoved) {
      parameter.setOnHost(true);
      onHost.insert(name);
    }
    const int64_t bytes = tensorBytes(parameter.getTensorType());
    if (isWhole(parameter) ||
        (isMoved && rows.contains(parameter.getSymName()))) {
      hostBytes += isMoved ? bytes : 0;
      continue;
    }
    const int64_t piece = ownBytes(parameter);
    parameter.setPiece(piece);
    divided.insert(name);
    wholeBytes += bytes;
    (isMoved ? hostBytes : pieceBytes) += piece;
  }
}

/// Chooses frozen weights that stay gathered for the whole step. `divided` must
/// not contain trainable weights yet.
void PlaceFrozenWeightsPass::keepGathers() {
  Spread together(room - stayingBytes, wholeBytes);
  for (auto parameter : getOperation().getOps<ParameterOp>()) {
    const auto name = FlatSymbolRefAttr::get(parameter.getSymNameAttr());
    const int64_t bytes = tensorBytes(parameter.getTensorType());
    if (divided.contains(name) && together.takes(bytes)) {
      kept.insert(name);
      keptBytes += bytes;
    }
  }
}

PlaceFrozenWeightsPass::GroupsOfWeights
PlaceFrozenWeightsPass::groupsIn(StepOp step) const {
  const StepZones zones = zonesOf(step);
  GroupsOfWeights weights;
  for (Operation &op : step.getBody().front())
    for (OpOperand &use : op.getOpOperands()) {
      auto weight = use.get().getDefiningOp<WeightOp>();
      if (!weight || !isGathered(weight.getParameterAttr(), use))
        continue;
      const UsePlace place = UsePlace::of(&op, zones);
      const Attribute name = weight.getParameterAttr();
      SmallVector<GatherGroup> &groups = weights[{name, weight.getRounded()}];
      auto known = llvm::find_if(groups, [&](const GatherGroup &group) {
        return isKept(name) || group.place == place;
      });
      if (known == groups.end())
        groups.push_back({place, {&use}});
      else
        known->uses.push_back(&use);
    }
  return weights;
}

void PlaceFrozenWeightsPass::gatherIn(StepOp step) {
  for (auto &[weight, groups] : groupsIn(step))
    for (const GatherGroup &group : groups) {
      Operation *first = group.uses.front()->getOwner();
      OpBuilder builder(first);
      Value whole = group.uses.front()->get();
      auto gather = GatherWeightOp::create(
          builder, whole.getLoc(), whole.getType(),
          cast<FlatSymbolRefAttr>(weight.first),
          weight.second ? builder.getUnitAttr() : UnitAttr());
      copyStage(first, gather);
      for (OpOperand *use : group.uses)
        use->set(gather);
      ++gathers;
    }
  for (auto weight :
       llvm::make_early_inc_range(step.getBody().getOps<WeightOp>()))
    if (weight->use_empty())
      weight.erase();
}

void PlaceFrozenWeightsPass::recordMetadata() {
  recordDecision(getOperation(), getArgument(),
                 MetadataBuilder(&getContext())
                     .add("shards", int64_t(shards))
                     .add("weights", divided.size() - trained.size())
                     .add("trained", trained.size())
                     .add("whole_bytes", wholeBytes)
                     .add("piece_bytes", pieceBytes)
                     .add("host_bytes", hostBytes)
                     .add("staying_bytes", stayingBytes)
                     .add("kept_bytes", keptBytes)
                     .add("gathers", gathers)
                     .get());
}

void PlaceFrozenWeightsPass::runOnOperation() {
  divided.clear();
  trained.clear();
  onHost.clear();
  kept.clear();
  staying.clear();
  wholeBytes = pieceBytes = hostBytes = gathers = 0;
  stayingBytes = keptBytes = 0;
  if (shards < 1) {
    getOperation().emitError("expects at least one rank to shard the base, "
                             "but got ")
        << int64_t(shards);
    return signalPassFailure();
  }
  const bool isSharded = shards > 1 || model::meshOf(getOperation()).zero2 > 1;
  if (isSharded)
    setAxis(getOperation(), &qlora_mesh::fsdp, shards);
  divideParameters();
  keepGathers();
  divided.insert_range(trained);
  if (!isSharded && onHost.empty())
    return;
  for (auto step : getOperation().getOps<StepOp>())
    gatherIn(step);
  recordMetadata();
}
