// SPDX-License-Identifier: MIT

// Builds the router, the sorting of rows by expert, and the experts' matmuls.

#include "frontend/ExpertBuilder.h"

#include "frontend/WeightBuilder.h"

using namespace mlir;

namespace qlora {

namespace {

/// Builds the ops of one layer's experts; used once.
class ExpertBuilder {
public:
  ExpertBuilder(ImplicitLocOpBuilder &body, OpBuilder &parameters,
                const ModelConfig &config, int64_t layer)
      : body(body), weights{body, parameters}, config(config.experts),
        activation(config.activation), layer(layer),
        areInTurns(config.family->experts.areStacked) {}

  RoutedLayer build(const ExpertWeights &experts, Value x);

private:
  template <typename Op, typename... Args> Op emit(Args &&...args) {
    auto op = Op::create(body, std::forward<Args>(args)...);
    model::setLayer(op, layer);
    return op;
  }
  Value parameter(const StackedWeight &weight) {
    return weights.build(weight.name, weight.shape, weight.parts, layer);
  }
  Value logits(const StackedWeight &router, Value x);
  Value product(const StackedWeight &weight, Value rows);
  Value activate(Value gateUp);
  /// Returns the tensor type of `element` with the shape [B, T, shape...].
  RankedTensorType tensor(ArrayRef<int64_t> shape, Type element) {
    SmallVector<int64_t> whole = {ShapedType::kDynamic, ShapedType::kDynamic};
    llvm::append_range(whole, shape);
    return RankedTensorType::get(whole, element);
  }

  ImplicitLocOpBuilder &body;
  const WeightBuilder weights;
  const ExpertsConfig &config;
  StringRef activation;
  int64_t layer;
  bool areInTurns; ///< gate and up are interleaved
  model::SortByExpertOp sorted;
};

} // namespace

/// Builds the router's linear. It has no `module`, because routers get neither
/// adapters nor 4-bit weights.
Value ExpertBuilder::logits(const StackedWeight &router, Value x) {
  RankedTensorType type = tensor({config.count}, body.getF32Type());
  Value y = emit<model::LinearOp>(
      type, x, parameter(router),
      /*init=*/Value(), APFloat(1.0), /*module=*/StringAttr());
  if (!router.bias)
    return y;
  return emit<model::AddBiasOp>(type, y, weights.build(*router.bias, layer));
}

/// Multiplies each row by the matrix of its expert and adds the expert's bias.
Value ExpertBuilder::product(const StackedWeight &weight, Value rows) {
  Value value = parameter(weight);
  const bool isOutIn = weight.layout == LinearLayout::kOutIn;
  int64_t out = isOutIn ? weight.shape[0] / config.count : weight.shape[1];
  RankedTensorType type = tensor({config.chosen, out}, body.getF32Type());
  Value init;
  if (weight.bias)
    init = emit<model::EmbeddingOp>(type, sorted.getExperts(),
                                    weights.build(*weight.bias, layer));
  return emit<model::GroupedLinearOp>(
      type, rows, value, sorted.getOffsets(), init, APFloat(1.0),
      body.getStringAttr(weight.name),
      isOutIn ? model::WeightLayout::OutIn : model::WeightLayout::InOut,
      /*groups_last=*/false);
}

Value ExpertBuilder::activate(Value gateUp) {
  if (areInTurns)
    gateUp = emit<model::TransposeRowsOp>(gateUp.getType(), gateUp,
                                          /*inner=*/2);
  Type half = tensor({config.chosen, config.innerSize}, body.getF32Type());
  auto split = emit<model::SplitOp>(TypeRange{half, half}, gateUp);
  std::optional<model::Activation> kind =
      model::symbolizeActivation(activation);
  assert(kind && "HfConfig has the op's names");
  const ClampedGlu &glu = config.glu;
  return emit<model::GluOp>(split.getParts()[0], split.getParts()[1], *kind,
                            glu.limit, glu.slope, glu.offset);
}

RoutedLayer ExpertBuilder::build(const ExpertWeights &experts, Value x) {
  Type f32 = body.getF32Type(), i32 = body.getI32Type();
  int64_t k = config.chosen;
  body.setLoc(NameLoc::get(body.getStringAttr(experts.module)));
  Value scores = logits(experts.router, x);
  auto route = emit<model::RouteOp>(tensor({k}, f32), tensor({k}, i32), scores,
                                    /*over_all=*/!config.normalized);
  Type choices = tensor({k}, i32);
  sorted = emit<model::SortByExpertOp>(
      choices, choices, choices, RankedTensorType::get({config.count + 1}, i32),
      /*own_offsets=*/Type(), route.getChoices());
  int64_t hidden = cast<RankedTensorType>(x.getType()).getDimSize(2);
  Value rows = emit<model::GatherRowsOp>(tensor({k, hidden}, f32), x,
                                         sorted.getOrder(), sorted.getPlaces(),
                                         /*weights=*/Value());
  Value out = product(experts.down, activate(product(experts.gateUp, rows)));
  out = emit<model::CombineRowsOp>(x.getType(), out, sorted.getOrder(),
                                   sorted.getPlaces(), route.getWeights());
  return {out, scores, route.getChoices()};
}

RoutedLayer buildExperts(ImplicitLocOpBuilder &body, OpBuilder &parameters,
                         const ModelConfig &config,
                         const ExpertWeights &weights, int64_t layer, Value x) {
  return ExpertBuilder(body, parameters, config, layer).build(weights, x);
}

/// Returns the tensor type of `element` with the shape [B, T, columns].
static RankedTensorType tokens(int64_t columns, Type element) {
  return RankedTensorType::get(
      {ShapedType::kDynamic, ShapedType::kDynamic, columns}, element);
}

Value buildRouterLoss(ImplicitLocOpBuilder &body, const ExpertsConfig &config,
                      ArrayRef<RoutedLayer> layers, Value segments) {
  Type f32 = body.getF32Type();
  auto count = static_cast<int64_t>(layers.size());
  RankedTensorType all = tokens(count * config.count, f32);
  auto perExpert = RankedTensorType::get({config.count}, f32);
  auto ofAll = [&](Value RoutedLayer::*part, Type whole) -> Value {
    return model::ConcatOp::create(
        body, whole, llvm::map_to_vector(layers, [&](const RoutedLayer &layer) {
          return layer.*part;
        }));
  };
  Value logits = ofAll(&RoutedLayer::logits, all);
  Value choices = ofAll(&RoutedLayer::choices,
                        tokens(count * config.chosen, body.getI32Type()));
  Value probabilities = model::RouterProbsOp::create(body, all, logits,
                                                     segments, config.count);
  Value sums = model::ColumnSumOp::create(body, perExpert, probabilities);
  Value marks = model::MarkTokensOp::create(
      body, tokens(count * config.chosen, f32), segments);
  Value counts = model::CountChoicesOp::create(body, perExpert, choices, marks);
  return model::RouterLossOp::create(
             body, perExpert, RankedTensorType::get({1}, f32), sums, counts,
             APFloat(config.routerLoss), config.chosen)
      .getLoss();
}

} // namespace qlora
