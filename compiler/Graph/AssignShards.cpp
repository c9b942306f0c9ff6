// SPDX-License-Identifier: MIT

// assign-shards: weights lie in pieces on the ranks, or in host memory, and are
// gathered where they are used.
//
//   %w  = model.weight @w : tensor<64x64x!nf4>
//   %y  = model.linear %x, %w                      // forward of layer 1
//   ...
//   %dx = model.linear %dy, %w layout in_out       // its backward
//
// becomes, with @w in pieces of 1,152 bytes,
//
//   %w1 = model.gather_weight @w : tensor<64x64x!nf4>
//   %y  = model.linear %x, %w1                     // %w1 dies here
//   ...
//   %w2 = model.gather_weight @w : tensor<64x64x!nf4>
//   %dx = model.linear %dy, %w2 layout in_out
//
// That is ZeRO-3 (Rajbhandari et al., 2020), and what travels is the weight as it
// is stored: of 4 bits a quarter of what its numbers would be, and of one that is
// trained the bf16 copy where products take that. Which of these have pieces
// divide-trained has said; with keep-trained one gather serves the whole step, as
// FSDP's SHARD_GRAD_OP has it. Vectors (norms, biases) stay whole: they are
// small, and gathering them would cost more time than it saves memory. Of slices of
// products a piece is a part; those of experts and of tables are parts enough.
//
// With offload-base it is the same of frozen weights that are on_host, whole or in
// pieces: that is ZeRO-Infinity (Rajbhandari et al., 2021), and what travels comes
// over the bus first. A kernel that reads rows reads them there, of a whole one, be
// it that others of the same weight are gathered.

#include "compiler/Decisions.h"
#include "compiler/Graph/HostTables.h"
#include "compiler/Graph/StepProblem.h"
#include "compiler/Passes.h"
#include "dialects/Program/Program.h"

#include "runtime/ABI/module.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace qlora;
using namespace qlora::model;
using namespace qlora::train;

namespace qlora {
#define GEN_PASS_DEF_ASSIGNSHARDS
#include "compiler/Passes.h.inc"
} // namespace qlora

namespace {

/// Uses of one weight that one gather serves.
struct GatherGroup {
  UsePlace place;
  SmallVector<OpOperand *> uses;
};

class AssignShardsPass
    : public qlora::impl::AssignShardsBase<AssignShardsPass> {
public:
  using AssignShardsBase::AssignShardsBase;

private:
  void runOnOperation() override;
  /// By the names of parameters; the second is 1 for their rounded copies.
  using Gathered = std::pair<Attribute, unsigned>;
  using GroupsOfWeights = llvm::MapVector<Gathered, SmallVector<GatherGroup>>;

  bool isWhole(ParameterOp parameter) const;
  int64_t ownBytes(ParameterOp parameter) const;
  void findStaying(const llvm::StringSet<> &rows);
  void divideParameters();
  void keepGathers();
  GroupsOfWeights groupsIn(StepOp step) const;
  void gatherIn(StepOp step);
  void recordFacts();

  bool isKept(Attribute parameter) const {
    return kept.contains(parameter) ||
           (keepTrained && trained.contains(parameter));
  }
  /// Whether a gather has to make it whole on the card.
  bool isGathered(Attribute parameter, OpOperand &use) const {
    return divided.contains(parameter) ||
           (onHost.contains(parameter) && !isReadByRows(use));
  }

  /// Names of parameters in pieces, of those in host memory, and of frozen ones
  /// that are gathered once.
  DenseSet<Attribute> divided, trained, onHost, kept;
  DenseSet<Operation *> staying; ///< that would be in host memory
  int64_t wholeBytes = 0, pieceBytes = 0, hostBytes = 0, gathers = 0;
  int64_t stayingBytes = 0, keptBytes = 0; ///< in the room
};

/// Room for some of many weights, spread evenly over them: so every layer's
/// travel as long, and hides behind the one before.
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

/// Whether an op does a part for each rank with what it has of a table.
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

/// What is a rank's own part already. Of slices of experts ranks of one group
/// have different ones.
static bool isPart(ParameterOp parameter) {
  const bool isOfExperts = parameter.getSlice() &&
                           program::expertRanksOf(
                               parameter->getParentOfType<ModuleOp>()) > 1;
  return isOfExperts || isDividedTable(parameter);
}

/// Of one that is frozen.
static bool canBeDivided(ParameterOp parameter) {
  RankedTensorType type = parameter.getTensorType();
  return parameter.getFile() && type.getRank() >= 2;
}

bool AssignShardsPass::isWhole(ParameterOp parameter) const {
  return shards == 1 || !canBeDivided(parameter) || isPart(parameter);
}

/// What a rank has of a parameter, where it has no more than its piece. That of a
/// table has whole rows.
int64_t AssignShardsPass::ownBytes(ParameterOp parameter) const {
  const int64_t bytes = tensorBytes(parameter.getTensorType());
  if (isWhole(parameter))
    return bytes;
  return parameter.getPiece().value_or(llvm::alignTo(
      llvm::divideCeil(bytes, shards), QLORA_PIECE_ALIGNMENT));
}

/// Of a base in host memory what there is room for on the card. Of tables whose
/// rows are read little travels.
void AssignShardsPass::findStaying(const llvm::StringSet<> &rows) {
  SmallVector<ParameterOp> moving;
  int64_t bytes = 0;
  for (auto parameter : getOperation().getOps<ParameterOp>())
    if (offloadBase && !parameter.getTrainable() && !parameter.getPiece() &&
        canBeDivided(parameter) && !rows.contains(parameter.getSymName())) {
      moving.push_back(parameter);
      bytes += ownBytes(parameter);
    }
  Spread onCard(room, bytes);
  for (ParameterOp parameter : moving)
    if (const int64_t own = ownBytes(parameter); onCard.takes(own)) {
      staying.insert(parameter);
      stayingBytes += own;
    }
}

void AssignShardsPass::divideParameters() {
  llvm::StringSet<> tables;
  if (offloadTables)
    tables = hostTables(getOperation());
  // Of these there are whole ones on the host alone; a table that is in pieces
  // already has its rows read where they are.
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

/// Of those in pieces, which are in `divided` without what is trained as yet.
void AssignShardsPass::keepGathers() {
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

AssignShardsPass::GroupsOfWeights
AssignShardsPass::groupsIn(StepOp step) const {
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

void AssignShardsPass::gatherIn(StepOp step) {
  for (auto &[weight, groups] : groupsIn(step))
    for (const GatherGroup &group : groups) {
      Operation *first = group.uses.front()->getOwner();
      OpBuilder builder(first);
      Value whole = group.uses.front()->get();
      auto gather =
          GatherWeightOp::create(builder, whole.getLoc(), whole.getType(),
                                 cast<FlatSymbolRefAttr>(weight.first),
                                 weight.second ? builder.getUnitAttr()
                                               : UnitAttr());
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

void AssignShardsPass::recordFacts() {
  recordDecision(getOperation(), getArgument(),
                 Facts(&getContext())
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

void AssignShardsPass::runOnOperation() {
  divided.clear();
  trained.clear();
  onHost.clear();
  kept.clear();
  staying.clear();
  wholeBytes = pieceBytes = hostBytes = gathers = 0;
  stayingBytes = keptBytes = 0;
  if (shards < 1) {
    getOperation().emitError("expects at least one rank for the pieces of the "
                             "base, but got ")
        << int64_t(shards);
    return signalPassFailure();
  }
  const bool isDivided =
      shards > 1 || program::trainedPiecesOf(getOperation()) > 1;
  if (isDivided)
    getOperation()->setAttr(program::kShardsAttr,
                            Builder(&getContext()).getI64IntegerAttr(shards));
  divideParameters();
  keepGathers();
  divided.insert_range(trained);
  if (!isDivided && onHost.empty())
    return;
  for (auto step : getOperation().getOps<StepOp>())
    gatherIn(step);
  recordFacts();
}
