// SPDX-License-Identifier: MIT

// Finds sets of values with shardable columns, and selects among them.

#include "compiler/Graph/ShardableColumnGroups.h"

#include "compiler/Graph/OpCost.h"
#include "runtime/Base/Amounts.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <fmt/format.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

//===----------------------------------------------------------------------===//
// Properties of ops
//===----------------------------------------------------------------------===//

/// Returns whether an element of a result depends only on its own column.
/// Random numbers depend on the column's index, which ColumnwiseOps handle.
static bool isByColumn(RowOp op) {
  Region region(op);
  Block &block = writeArithmetic(op, region);
  return llvm::none_of(block, [](Operation &inner) {
    return inner.hasTrait<RowReduction>() ||
           isa<RowRotateOp, RowRandomOp, RowConstantOp>(inner);
  });
}

/// Sets with operands or results of table ops are never sharded, for this
/// reason. It replaces other reasons and is not shown to users.
static constexpr const char *kWholeAnyway = "it is whole";

static std::string needsWhole(Operation *op) {
  if (isa<TableOp>(op))
    return kWholeAnyway;
  return fmt::format("{} ({}) needs all columns",
                     op->getName().getStringRef().str(), labelOf(op));
}

/// Returns whether the columns of a matmul can be sharded: it has one group, or
/// frozen matrices stacked by rows. (Ranges of stacked trainable matrices are
/// not supported.)
static bool canDivideGroups(WeightedMatmul product) {
  if (product.getGroups() == 1)
    return true;
  auto weight = product.getWeight().getDefiningOp<WeightOp>();
  return weight && product.getGroupDimension() == 0 &&
         !SymbolTable::lookupNearestSymbolFrom<ParameterOp>(
              weight, weight.getParameterAttr())
              .getTrainable();
}

unsigned ShardableColumnGroups::numberOf(Value value) {
  auto [known, isNew] = numbers.try_emplace(value, values.size());
  if (isNew) {
    values.push_back(value);
    sets.grow(values.size());
  }
  return known->second;
}

void ShardableColumnGroups::join(Value one, Value other) {
  sets.join(numberOf(one), numberOf(other));
}

void ShardableColumnGroups::keepWhole(Value value, const std::string &why) {
  whole.try_emplace(numberOf(value), why);
}

/// Joins row operands of full width to the result's set if columns are
/// independent. Keeps narrower operands, such as cos of a head, whole.
void ShardableColumnGroups::lookAtRows(RowOp op) {
  Value first = op->getResult(0);
  const int64_t columns = op.getRowColumns();
  const bool isOfAll = columns == columnsOf(first);
  if ((isOfAll && !isByColumn(op)) ||
      llvm::any_of(op->getResults(), [&](OpResult result) {
        return op.isScalarResult(result.getResultNumber());
      })) {
    for (Value value : op->getOperands())
      keepWhole(value, needsWhole(op));
    for (Value value : op->getResults())
      keepWhole(value, needsWhole(op));
    return;
  }
  for (auto [operand, map] :
       llvm::zip_equal(op->getOperands(), op.getRowMaps()))
    if (map.getKind() == MapKind::Full ||
        (isOfAll && map.getKind() == MapKind::Column))
      join(operand, first);
    else
      keepWhole(operand, needsWhole(op));
  for (Value result : op->getResults())
    join(result, first);
  if (!isOfAll)
    runs[op] = columns;
  ops.push_back(op);
}

void ShardableColumnGroups::look(Operation *op) {
  if (isa<WeightOp>(op))
    return;
  if (auto product = dyn_cast<WeightedMatmul>(op);
      product && product.getProduct() && canDivideGroups(product)) {
    numberOf(product.getX());
    numberOf(product.getProduct());
    if (product.getInit())
      join(product.getInit(), product.getProduct());
    ops.push_back(op);
    products.push_back(product);
    return;
  }
  if (auto columnwise = dyn_cast<ColumnwiseOp>(op)) {
    const SmallVector<OpOperand *> divided = columnwise.getColumnOperands();
    for (OpOperand &operand : op->getOpOperands())
      if (llvm::is_contained(divided, &operand))
        join(operand.get(), op->getResult(0));
      else
        keepWhole(operand.get(), needsWhole(op));
    ops.push_back(op);
    return;
  }
  if (auto rows = dyn_cast<RowOp>(op))
    return lookAtRows(rows);
  auto concat = dyn_cast<ConcatOp>(op);
  if (isa<SplitOp>(op) || (concat && !concat.getRows())) {
    Value one = isa<SplitOp>(op) ? op->getOperand(0) : op->getResult(0);
    for (Value value : op->getOperands())
      join(value, one);
    for (Value value : op->getResults())
      join(value, one);
    ops.push_back(op);
    return;
  }
  for (Value value : op->getOperands())
    if (isa<RankedTensorType>(value.getType()))
      keepWhole(value, needsWhole(op));
  for (Value value : op->getResults())
    keepWhole(value, needsWhole(op));
}

/// Makes all uses of a weight shard it in the same way. Keeps it whole if some
/// user is not a matmul and does not read it by column.
void ShardableColumnGroups::joinUsesOfWeights() {
  DenseMap<Attribute, std::string> fixed;
  DenseMap<Attribute, WeightedMatmul> firstProduct;
  DenseMap<Attribute, WeightOp> firstVector;
  for (Value value : values)
    if (auto weight = value.getDefiningOp<WeightOp>()) {
      vectors.push_back(weight);
      auto [known, isNew] =
          firstVector.try_emplace(weight.getParameterAttr(), weight);
      if (!isNew)
        join(known->second, weight);
    }
  for (WeightedMatmul product : products) {
    auto weight = product.getWeight().getDefiningOp<WeightOp>();
    if (!weight) {
      keepWhole(product.getX(), needsWhole(product));
      keepWhole(product.getProduct(), needsWhole(product));
      continue;
    }
    Attribute name = weight.getParameterAttr();
    auto [known, isNew] = firstProduct.try_emplace(name, product);
    WeightedMatmul first = known->second;
    if (!isNew) {
      join(first.getX(), product.getX());
      join(first.getProduct(), product.getProduct());
    }
    for (OpOperand &use : weight->getUses())
      if (auto user = dyn_cast<WeightedMatmul>(use.getOwner());
          !user || &use != &user.getWeightMutable() || !user.getProduct())
        fixed.try_emplace(name, needsWhole(use.getOwner()));
    if (first.getLayout() != product.getLayout() || firstVector.count(name))
      fixed.try_emplace(name, fmt::format("{} is used in two ways",
                                          weight.getParameter().str()));
  }
  for (WeightedMatmul product : products)
    if (auto weight = product.getWeight().getDefiningOp<WeightOp>())
      if (auto why = fixed.find(weight.getParameterAttr());
          why != fixed.end()) {
        keepWhole(product.getX(), why->second);
        keepWhole(product.getProduct(), why->second);
      }
}

//===----------------------------------------------------------------------===//
// Sets
//===----------------------------------------------------------------------===//

std::vector<ShardableColumnGroups::Set> ShardableColumnGroups::gather() {
  llvm::MapVector<unsigned, Set> found;
  auto setOf = [&](Value value) -> Set & {
    return found[sets.findLeader(numbers.lookup(value))];
  };
  for (unsigned number = 0; number < values.size(); ++number) {
    const unsigned leader = sets.findLeader(number);
    Set &set = found[leader];
    set.leader = leader;
    if (auto why = whole.find(number);
        why != whole.end() && (set.why.empty() || why->second == kWholeAnyway))
      set.why = why->second;
  }
  for (auto [number, op] : llvm::enumerate(ops))
    setOf(op->getResult(0)).ops.push_back(number);
  for (auto [number, weight] : llvm::enumerate(vectors))
    setOf(weight).vectors.push_back(number);
  for (auto [number, product] : llvm::enumerate(products)) {
    const int64_t elements = product.getWeightType().getNumElements();
    for (Value value : {product.getX(), product.getProduct()}) {
      Set &set = setOf(value);
      set.elements += elements;
      set.products.push_back(number);
    }
  }
  std::vector<Set> list;
  for (auto &[leader, set] : found)
    if (!set.products.empty())
      list.push_back(std::move(set));
  std::ranges::stable_sort(list, std::greater(), &Set::elements);
  return list;
}

Segments ShardableColumnGroups::segmentsOf(Value value) const {
  auto known = segments.find(value);
  return known == segments.end() ? Segments{columnsOf(value)} : known->second;
}

/// Propagates segments between the values of an op that continues a set.
/// Returns false if two values have different segments.
bool ShardableColumnGroups::agree(Operation *op, bool &changes) {
  auto give = [&](Value value, const Segments &wanted) {
    const Segments known = segmentsOf(value);
    if (known == wanted || wanted.size() == 1)
      return true;
    if (known.size() != 1)
      return false;
    segments[value] = wanted;
    return changes = true;
  };
  auto together = [&](ValueRange parts, Value all) {
    Segments joined;
    for (Value part : parts)
      llvm::append_range(joined, segmentsOf(part));
    return give(all, joined);
  };
  if (auto split = dyn_cast<SplitOp>(op))
    return together(split.getParts(), split.getWhole());
  if (auto concat = dyn_cast<ConcatOp>(op))
    return together(concat.getParts(), concat.getWhole());
  SmallVector<Value> alike = {op->getResult(0)};
  if (auto product = dyn_cast<WeightedMatmul>(op)) {
    if (product.getInit())
      alike.push_back(product.getInit());
  } else if (auto rows = dyn_cast<RowOp>(op); rows && !isa<ColumnwiseOp>(op)) {
    for (auto [operand, map] :
         llvm::zip_equal(op->getOperands(), rows.getRowMaps()))
      if (map.getKind() == MapKind::Full ||
          (map.getKind() == MapKind::Column && !runs.count(op)))
        alike.push_back(operand);
    llvm::append_range(alike, op->getResults().drop_front());
  } else {
    // Column runs of a ColumnwiseOp must be one segment.
    return llvm::all_of(op->getOperands(), [&](Value operand) {
      return !isa<RankedTensorType>(operand.getType()) ||
             segmentsOf(operand).size() == 1;
    });
  }
  for (Value one : alike)
    for (Value other : alike)
      if (!give(one, segmentsOf(other)))
        return false;
  return true;
}

/// Finds the segments of a set's values. Returns false if ops disagree, or if
/// `ranks` does not divide a segment.
bool ShardableColumnGroups::findSegments(Set &set) {
  for (bool changes = true; changes;) {
    changes = false;
    for (unsigned number : set.ops)
      if (!agree(ops[number], changes)) {
        set.why = fmt::format("{} has operands with different segments",
                              labelOf(ops[number]));
        return false;
      }
  }
  for (unsigned number : set.ops) {
    Operation *op = ops[number];
    int64_t unit = runs.count(op) ? runs.lookup(op) : 1;
    if (auto columnwise = dyn_cast<ColumnwiseOp>(op))
      unit = columnsOf(op->getResult(0)) / columnwise.getColumnRuns();
    for (int64_t segment : segmentsOf(op->getResult(0)))
      if (segment % (unit * ranks)) {
        set.why = fmt::format("{} has {} of {} columns, not divisible by "
                              "--parallel tp={}",
                              labelOf(op), formatCounted(segment / unit, "run"),
                              unit, ranks);
        if (unequalSet.empty())
          unequalSet = set.why;
        return false;
      }
  }
  return true;
}

bool ShardableColumnGroups::findWeights(Set &set, ShardedWeights &found) {
  auto add = [&](WeightOp weight, const ShardedWeight &how) {
    auto parameter = symbols.lookup<ParameterOp>(weight.getParameter());
    auto [known, isNew] = found.insert({parameter.getSymNameAttr(), how});
    if (!isNew && known->second != how)
      set.why = fmt::format("{} is used in two ways",
                            parameter.getSymName().str());
    else if (!parameter.getTrainable() &&
             !canSliceParameter(parameter, how, ranks))
      set.why = fmt::format("blocks of {} do not fit into slices for {} ranks",
                            parameter.getSymName().str(), ranks);
    return set.why.empty();
  };
  for (unsigned number : set.products) {
    WeightedMatmul product = products[number];
    auto has = [&](Value value) {
      return sets.findLeader(numbers.lookup(value)) == set.leader;
    };
    Value x = product.getX(), y = product.getProduct();
    const bool isOut = has(y);
    if ((isOut && (has(x) || isSharded(x))) || (!isOut && isSharded(y)) ||
        (!isOut && product.getInt8Threshold())) {
      set.why = fmt::format("{} needs all columns", labelOf(product));
      return false;
    }
    ShardedWeight how = {
        isOut ? product.getOutDimension() : product.getInDimension(), {}};
    const bool isShared = how.dimension == product.getGroupDimension();
    for (int64_t group = isShared ? product.getGroups() : 1; group > 0; --group)
      llvm::append_range(how.segments, segmentsOf(isOut ? y : x));
    if (!add(cast<WeightOp>(product.getWeight().getDefiningOp()), how))
      return false;
  }
  for (unsigned number : set.vectors)
    if (!add(vectors[number], {0, segmentsOf(vectors[number])}))
      return false;
  return true;
}

void ShardableColumnGroups::tryToDivide(Set &set) {
  ShardedWeights found;
  // A set without a module is between A and B: too narrow to be worth sharding.
  const bool hasModule = llvm::any_of(set.products, [&](unsigned number) {
    WeightedMatmul product = products[number];
    return product.getModule() &&
           sets.findLeader(numbers.lookup(product.getProduct())) == set.leader;
  });
  if (!hasModule || set.why == kWholeAnyway)
    return;
  const bool isFixed = !set.why.empty();
  if (set.why.empty() && findSegments(set) && findWeights(set, found)) {
    divided.insert(set.leader);
    for (auto &[name, how] : found)
      dividedWeights.insert({name, how});
    return;
  }
  SmallVector<std::string> &reasons = isFixed ? fixed : kept;
  if (!llvm::is_contained(reasons, set.why))
    reasons.push_back(set.why);
}

bool ShardableColumnGroups::isSharded(Value value) const {
  auto known = numbers.find(value);
  return known != numbers.end() &&
         divided.contains(sets.findLeader(known->second));
}

ShardableColumnGroups::ShardableColumnGroups(ModuleOp module, int64_t ranks)
    : module(module), ranks(ranks), symbols(module) {
  for (auto function : module.getOps<func::FuncOp>()) {
    for (BlockArgument argument : function.getArguments())
      keepWhole(argument, "it is an input");
    for (Operation &op : function.front())
      look(&op);
  }
  joinUsesOfWeights();
  for (Set &set : gather())
    tryToDivide(set);
  kept.append(fixed);
}
