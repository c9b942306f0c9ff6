// SPDX-License-Identifier: MIT

// Router, sorted rows, and the products of experts.

#include "frontend/ExpertBuilder.h"

using namespace mlir;

namespace qlora {

namespace {

/// Builds the ops of one layer's experts; used once.
class ExpertBuilder {
public:
  ExpertBuilder(ImplicitLocOpBuilder &body, OpBuilder &parameters,
                const ModelConfig &config, int64_t layer)
      : body(body), parameters(parameters), config(config.experts),
        activation(config.activation), layer(layer) {}

  Value build(const ExpertWeights &weights, Value x);

private:
  template <typename Op, typename... Args> Op emit(Args &&...args) {
    auto op = Op::create(body, std::forward<Args>(args)...);
    model::setLayer(op, layer);
    return op;
  }
  Value stackedParameter(const StackedWeight &weight);
  Value product(const StackedWeight &weight, Value rows, Value offsets);
  /// [B, T, ...] of `element`; the shape behind the tokens.
  RankedTensorType tensor(ArrayRef<int64_t> shape, Type element) {
    SmallVector<int64_t> whole = {ShapedType::kDynamic, ShapedType::kDynamic};
    llvm::append_range(whole, shape);
    return RankedTensorType::get(whole, element);
  }

  ImplicitLocOpBuilder &body;
  OpBuilder &parameters;
  const ExpertsConfig &config;
  StringRef activation;
  int64_t layer;
};

} // namespace

Type elementType(MLIRContext &context, const Weight &weight) {
  if (const std::optional<StoredLayout> &l = weight.stored)
    return model::QuantizedType::get(&context, l->dtype, l->block,
                                     l->doubleQuant);
  if (weight.dtype == SafetensorsDtype::kBF16)
    return BFloat16Type::get(&context);
  return weight.dtype == SafetensorsDtype::kF16
             ? Type(Float16Type::get(&context))
             : Type(Float32Type::get(&context));
}

Value ExpertBuilder::stackedParameter(const StackedWeight &weight) {
  const Weight &first = weight.parts.front();
  auto type =
      RankedTensorType::get(
      weight.shape, elementType(*body.getContext(), first));
  SmallVector<StringRef> names;
  for (const Weight &part : weight.parts)
    names.push_back(part.name);
  SmallVector<int64_t> rows(names.size(), first.shape[0]);
  const bool isOwn = names.size() == 1 && names.front() == weight.name;
  Location loc = NameLoc::get(body.getStringAttr(weight.name));
  model::ParameterOp::create(
      parameters, loc, weight.name, type, body.getStringAttr(first.file),
      /*file_type=*/TypeAttr(), /*init=*/StringAttr(), /*trainable=*/false,
      /*stored_quantized=*/first.stored.has_value(), /*quantized=*/TypeAttr(),
      isOwn ? ArrayAttr() : body.getStrArrayAttr(names),
      isOwn ? DenseI64ArrayAttr() : body.getDenseI64ArrayAttr(rows));
  Location outer = body.getLoc();
  body.setLoc(loc);
  Value value = emit<model::WeightOp>(type, weight.name);
  body.setLoc(outer);
  return value;
}

Value ExpertBuilder::product(const StackedWeight &weight, Value rows,
                             Value offsets) {
  Value value = stackedParameter(weight);
  int64_t out = weight.shape[0] / config.count;
  return emit<model::GroupedLinearOp>(
      tensor({config.chosen, out}, body.getF32Type()), rows, value, offsets,
      /*init=*/Value(), APFloat(1.0), body.getStringAttr(weight.name),
      model::WeightLayout::OutIn, /*groups_last=*/false);
}

Value ExpertBuilder::build(const ExpertWeights &weights, Value x) {
  Type f32 = body.getF32Type(), i32 = body.getI32Type();
  int64_t k = config.chosen, hidden = weights.gateUp.shape[1];
  body.setLoc(NameLoc::get(body.getStringAttr(weights.module)));
  // Without a module: adapters and 4 bits are not for routers.
  Value logits = emit<model::LinearOp>(tensor({config.count}, f32), x,
                                       stackedParameter(weights.router),
                                       /*init=*/Value(), APFloat(1.0),
                                       /*module=*/StringAttr());
  auto route = emit<model::RouteOp>(tensor({k}, f32), tensor({k}, i32), logits,
                                    /*over_all=*/!config.normalized);
  auto sorted = emit<model::SortByExpertOp>(
      tensor({k}, i32), tensor({k}, i32),
      RankedTensorType::get({config.count + 1}, i32), route.getChoices());
  Value rows = emit<model::GatherRowsOp>(tensor({k, hidden}, f32), x,
                                         sorted.getOrder(), sorted.getPlaces(),
                                         /*weights=*/Value());
  Value gateUp = product(weights.gateUp, rows, sorted.getOffsets());
  Type half = tensor({k, config.innerSize}, f32);
  auto split = emit<model::SplitOp>(TypeRange{half, half}, gateUp);
  std::optional<model::Activation> kind =
      model::symbolizeActivation(activation);
  assert(kind && "HfConfig has the op's names");
  Value inner = emit<model::GluOp>(half, split.getParts()[0],
                                   split.getParts()[1], *kind);
  Value out = product(weights.down, inner, sorted.getOffsets());
  return emit<model::CombineRowsOp>(x.getType(), out, sorted.getOrder(),
                                    sorted.getPlaces(), route.getWeights());
}

Value buildExperts(ImplicitLocOpBuilder &body, OpBuilder &parameters,
                   const ModelConfig &config, const ExpertWeights &weights,
                   int64_t layer, Value x) {
  return ExpertBuilder(body, parameters, config, layer).build(weights, x);
}

} // namespace qlora
