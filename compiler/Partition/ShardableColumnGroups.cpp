// SPDX-License-Identifier: MIT

// Finds sets of values with shardable columns, and selects among them.

#include "compiler/Partition/ShardableColumnGroups.h"

#include "compiler/Optimize/OpCost.h"
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
    aligned.grow(values.size());
  }
  return known->second;
}

void ShardableColumnGroups::join(Value one, Value other) {
  sets.join(numberOf(one), numberOf(other));
}

/// Joins values of equal width that have the same segments.
void ShardableColumnGroups::align(Value one, Value other) {
  join(one, other);
  aligned.join(numberOf(one), numberOf(other));
}

void ShardableColumnGroups::keepWhole(Value value, const std::string &why) {
  whole.try_emplace(numberOf(value), why);
}

void ShardableColumnGroups::keepAllWhole(Operation *op) {
  for (Value value : op->getOperands())
    if (isa<RankedTensorType>(value.getType()))
      keepWhole(value, needsWhole(op));
  for (Value value : op->getResults())
    keepWhole(value, needsWhole(op));
}

/// Joins row operands of full width to the result's set if columns are
/// independent. Keeps narrower operands, such as cos of a head, whole. Rows can
/// be shorter than the tensor's, as in a norm per head; they are not split.
void ShardableColumnGroups::lookAtRows(RowOp op) {
  Value first = op->getResult(0);
  const int64_t columns = op.getRowColumns();
  const bool isOfAll = columns == columnsOf(first);
  if ((isOfAll && !isByColumn(op)) ||
      llvm::any_of(op->getResults(), [&](OpResult result) {
        return op.isScalarResult(result.getResultNumber());
      }))
    return keepAllWhole(op);
  for (auto [operand, map] :
       llvm::zip_equal(op->getOperands(), op.getRowMaps()))
    if (map.getKind() == MapKind::Full ||
        (isOfAll && map.getKind() == MapKind::Column))
      align(operand, first);
    else
      keepWhole(operand, needsWhole(op));
  for (Value result : op->getResults())
    align(result, first);
  links.push_back({op, /*unit=*/isOfAll ? 1 : columns});
}

/// Returns the whole and the parts of a split or concat of columns.
static std::pair<Value, ValueRange> joinedColumns(Operation *op) {
  if (auto split = dyn_cast<SplitOp>(op); split && !split.getRows())
    return {split.getWhole(), split.getParts()};
  if (auto concat = dyn_cast<ConcatOp>(op); concat && !concat.getRows())
    return {concat.getWhole(), concat.getParts()};
  return {};
}

void ShardableColumnGroups::look(Operation *op) {
  if (isa<WeightOp>(op))
    return;
  if (auto product = dyn_cast<WeightedMatmul>(op);
      product && product.getProduct() && canDivideGroups(product)) {
    numberOf(product.getX());
    numberOf(product.getProduct());
    if (product.getInit())
      align(product.getInit(), product.getProduct());
    links.push_back({op});
    products.push_back(product);
    return;
  }
  if (auto columnwise = dyn_cast<ColumnwiseOp>(op)) {
    Value first = op->getResult(0);
    const SmallVector<OpOperand *> divided = columnwise.getColumnOperands();
    for (OpOperand &operand : op->getOpOperands())
      if (llvm::is_contained(divided, &operand))
        join(operand.get(), first);
      else
        keepWhole(operand.get(), needsWhole(op));
    links.push_back({op, columnsOf(first) / columnwise.getColumnRuns(),
                     /*isOneRun=*/true});
    return;
  }
  if (auto rows = dyn_cast<RowOp>(op))
    return lookAtRows(rows);
  if (auto [all, parts] = joinedColumns(op); all) {
    for (Value part : parts)
      join(part, all);
    links.push_back({op});
    return;
  }
  keepAllWhole(op);
}

/// Makes all uses of a weight shard it in the same way. Keeps it whole if some
/// user is not a matmul and does not read it by column.
void ShardableColumnGroups::joinUsesOfWeights() {
  DenseMap<Attribute, WeightedMatmul> firstProduct;
  DenseMap<Attribute, WeightOp> firstVector;
  for (Value value : values)
    if (auto weight = value.getDefiningOp<WeightOp>())
      join(firstVector.try_emplace(weight.getParameterAttr(), weight)
               .first->second,
           weight);
  for (WeightedMatmul product : products) {
    const auto keep = [&](const std::string &why) {
      keepWhole(product.getX(), why);
      keepWhole(product.getProduct(), why);
    };
    auto weight = product.getWeight().getDefiningOp<WeightOp>();
    if (!weight) {
      keep(needsWhole(product));
      continue;
    }
    Attribute name = weight.getParameterAttr();
    WeightedMatmul first =
        firstProduct.try_emplace(name, product).first->second;
    join(first.getX(), product.getX());
    join(first.getProduct(), product.getProduct());
    for (OpOperand &use : weight->getUses())
      if (auto user = dyn_cast<WeightedMatmul>(use.getOwner());
          !user || &use != &user.getWeightMutable() || !user.getProduct())
        keep(needsWhole(use.getOwner()));
    if (first.getLayout() != product.getLayout() || firstVector.count(name))
      keep(fmt::format("{} is used in two ways", weight.getParameter().str()));
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
    if (auto weight = values[number].getDefiningOp<WeightOp>())
      set.vectors.push_back(weight);
  }
  for (const Link &link : links)
    setOf(link.op->getResult(0)).links.push_back(link);
  for (WeightedMatmul product : products)
    for (Value value : {product.getX(), product.getProduct()}) {
      Set &set = setOf(value);
      set.elements += product.getWeightType().getNumElements();
      set.products.push_back(product);
    }
  std::vector<Set> list;
  for (auto &[leader, set] : found)
    if (!set.products.empty())
      list.push_back(std::move(set));
  std::ranges::stable_sort(list, std::greater(), &Set::elements);
  return list;
}

bool ShardableColumnGroups::has(const Set &set, Value value) const {
  return sets.findLeader(numbers.lookup(value)) == set.leader;
}

unsigned ShardableColumnGroups::classOf(Value value) const {
  return aligned.findLeader(numbers.lookup(value));
}

Segments ShardableColumnGroups::segmentsOf(Value value) const {
  auto known = segments.find(classOf(value));
  return known == segments.end() ? Segments{columnsOf(value)} : known->second;
}

/// Finds the segments of a set's values: a whole of a split or concat has those
/// of its parts, and can be a part of another. Returns false if ops disagree,
/// or if `ranks` does not divide a segment.
bool ShardableColumnGroups::findSegments(Set &set) {
  const auto isSplit = [&](Value value) {
    return has(set, value) && segmentsOf(value).size() > 1;
  };
  for (bool changes = true; changes;) {
    changes = false;
    for (const auto &[op, unit, isOneRun] : set.links) {
      auto [all, parts] = joinedColumns(op);
      Segments joined;
      for (Value part : parts)
        llvm::append_range(joined, segmentsOf(part));
      const bool isKnown = joined.size() < 2 || joined == segmentsOf(all);
      if ((!isKnown && !segments.try_emplace(classOf(all), joined).second) ||
          (isOneRun && (isSplit(op->getResult(0)) ||
                        llvm::any_of(op->getOperands(), isSplit)))) {
        set.why = fmt::format("{} has operands with different segments",
                              labelOf(op));
        return false;
      }
      changes |= !isKnown;
    }
  }
  for (const auto &[op, unit, isOneRun] : set.links)
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
  for (WeightedMatmul product : set.products) {
    Value x = product.getX(), y = product.getProduct();
    const bool isOut = has(set, y);
    if ((isOut && (has(set, x) || isSharded(x))) ||
        (!isOut && (isSharded(y) || product.getInt8Threshold()))) {
      set.why = fmt::format("{} needs all columns", labelOf(product));
      return false;
    }
    ShardedWeight how = {
        isOut ? product.getOutDimension() : product.getInDimension(), {}};
    const bool isShared = how.dimension == product.getGroupDimension();
    for (int64_t group = isShared ? product.getGroups() : 1; group > 0; --group)
      llvm::append_range(how.segments, segmentsOf(isOut ? y : x));
    if (!add(product.getWeight().getDefiningOp<WeightOp>(), how))
      return false;
  }
  return llvm::all_of(set.vectors, [&](WeightOp weight) {
    return add(weight, {0, segmentsOf(weight)});
  });
}

void ShardableColumnGroups::tryToDivide(Set &set) {
  ShardedWeights found;
  // A set without a module is between A and B: too narrow to be worth sharding.
  const bool hasModule =
      llvm::any_of(set.products, [&](WeightedMatmul product) {
        return product.getModule() && has(set, product.getProduct());
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
