// SPDX-License-Identifier: MIT

// Builds model.mlir from a ModelConfig and weights. Reports no errors, because
// the callers have checked the model files.

#include "frontend/DecoderBuilder.h"

#include "frontend/ExpertBuilder.h"
#include "frontend/ModelIdentity.h"
#include "frontend/WeightBuilder.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

using namespace mlir;

namespace qlora {

/// Smallest id of dropouts in the base model. Adapters' dropouts have ids from
/// 1. The id selects the random numbers.
static constexpr int64_t kFirstDropoutId = 1 << 24;

namespace {

/// Builds one module; used once.
class DecoderBuilder {
public:
  DecoderBuilder(MLIRContext &context, const ModelConfig &config,
                 const DecoderWeights &weights, const std::string &folder);

  OwningOpRef<ModuleOp> build();

private:
  DictionaryAttr describe();
  void buildForward();
  void buildRopeTables(Value positions, Value lengths);
  Value buildAttention(const LayerWeights &layer, Value x);
  Value buildMlp(const LayerWeights &layer, Value x);
  Value buildLayer(const LayerWeights &layer, Value x);

  /// Sets the location of later ops to the module path `path`.
  void enter(StringRef path);
  /// Creates an op of the current layer at `body`.
  template <typename Op, typename... Args> Op emit(Args &&...args);

  Value parameter(const Weight &weight) {
    return WeightBuilder{body, parameters}.build(weight, layerNumber);
  }
  Value linear(const LinearWeight &linear, Value x);
  /// Returns one output for x per entry of `widths`. If one linear computes all
  /// outputs, splits its result.
  SmallVector<Value> parts(ArrayRef<LinearWeight> linears,
                           ArrayRef<int64_t> widths, Value x);
  Value norm(const NormWeight &weight, Value x);
  Value norm(const std::optional<NormWeight> &weight, Value x) {
    return weight ? norm(*weight, x) : x;
  }
  Value scale(double factor, Value x, bool isRounded = false);
  Value rotate(const std::optional<NormWeight> &headNorm, Value x,
               StringRef path);
  Value activate(ValueRange inputs);
  Value dropout(double probability, Value x);
  Value addToResidual(Value x, Value added,
                      const std::optional<NormWeight> &outputNorm,
                      StringRef path);
  Value embed(Value ids, Value positions);

  /// Returns the type [B, T, width] of f32.
  RankedTensorType activation(int64_t width);

  MLIRContext &context;
  const ModelConfig &config;
  const DecoderWeights &weights;
  const std::string &folder;
  OwningOpRef<ModuleOp> module;
  OpBuilder parameters; ///< before the function
  ImplicitLocOpBuilder body;
  int64_t layerNumber = -1; ///< -1: outside the layers
  int64_t dropouts = 0;
  Value embedding, segments;
  SmallVector<model::RopeTableOp> tables; ///< one per config.rotaries
  SmallVector<RoutedLayer> routed;
};

} // namespace

DecoderBuilder::DecoderBuilder(MLIRContext &context, const ModelConfig &config,
                               const DecoderWeights &weights,
                               const std::string &folder)
    : context(context), config(config), weights(weights), folder(folder),
      module(ModuleOp::create(UnknownLoc::get(&context))), parameters(&context),
      body(UnknownLoc::get(&context), &context) {}

void DecoderBuilder::enter(StringRef path) {
  body.setLoc(NameLoc::get(StringAttr::get(&context, path)));
}

template <typename Op, typename... Args>
Op DecoderBuilder::emit(Args &&...args) {
  auto op = Op::create(body, std::forward<Args>(args)...);
  model::setLayer(op, layerNumber);
  return op;
}

RankedTensorType DecoderBuilder::activation(int64_t width) {
  return RankedTensorType::get(
      {ShapedType::kDynamic, ShapedType::kDynamic, width}, body.getF32Type());
}

Value DecoderBuilder::linear(const LinearWeight &linear, Value x) {
  enter(linear.module);
  Value weight = parameter(linear.weight);
  RankedTensorType type = activation(linear.outputs());
  auto layout = linear.layout == LinearLayout::kOutIn
                    ? model::WeightLayout::OutIn
                    : model::WeightLayout::InOut;
  Value y =
      emit<model::LinearOp>(type, x, weight, /*init=*/Value(), APFloat(1.0),
                            body.getStringAttr(linear.module), layout);
  if (!linear.bias)
    return y;
  return emit<model::AddBiasOp>(type, y, parameter(*linear.bias));
}

SmallVector<Value> DecoderBuilder::parts(ArrayRef<LinearWeight> linears,
                                         ArrayRef<int64_t> widths, Value x) {
  SmallVector<Value> values;
  for (const LinearWeight &part : linears)
    values.push_back(linear(part, x));
  if (values.size() == widths.size())
    return values;
  SmallVector<Type> types = llvm::map_to_vector(
      widths, [&](int64_t width) -> Type { return activation(width); });
  auto split = emit<model::SplitOp>(types, values.front());
  return llvm::to_vector_of<Value>(split.getParts());
}

Value DecoderBuilder::norm(const NormWeight &norm, Value x) {
  enter(norm.module);
  Value weight = parameter(norm.weight);
  APFloat epsilon(config.normEpsilon);
  if (norm.bias)
    return emit<model::LayerNormOp>(x.getType(), x, weight,
                                    parameter(*norm.bias), epsilon);
  double offset = config.family->norm == NormKind::kRmsAboveOne ? 1 : 0;
  return emit<model::RmsNormOp>(x.getType(), x, weight, epsilon,
                                APFloat(offset));
}

Value DecoderBuilder::scale(double factor, Value x, bool isRounded) {
  if (factor == 1)
    return x;
  return emit<model::ScaleOp>(x.getType(), x, APFloat(factor), isRounded);
}

/// Applies the family's norm of q or k, if any. Then applies RoPE, unless the
/// layer has none.
Value DecoderBuilder::rotate(const std::optional<NormWeight> &headNorm, Value x,
                             StringRef path) {
  x = norm(headNorm, x);
  enter(path);
  int number = config.rotaryOfLayer[layerNumber];
  if (number < 0)
    return x;
  int64_t rotated = config.rotaries[number].rope.rotated;
  model::RopeTableOp table = tables[number];
  return emit<model::RopeOp>(x.getType(), x, table.getCos(), table.getSin(),
                             rotated == config.headDim ? 0 : rotated);
}

/// Applies the MLP's activation. `inputs` are gate and up, or up alone.
Value DecoderBuilder::activate(ValueRange inputs) {
  Type type = inputs.front().getType();
  std::optional<model::Activation> kind =
      model::symbolizeActivation(config.activation);
  assert(kind && "HfConfig has the op's names");
  if (inputs.size() == 2)
    return emit<model::GluOp>(inputs[0], inputs[1], *kind);
  return emit<model::ActivationOp>(type, inputs[0], *kind);
}

Value DecoderBuilder::dropout(double probability, Value x) {
  if (probability == 0)
    return x;
  return emit<model::DropoutOp>(x.getType(), x, APFloat(probability),
                                kFirstDropoutId + dropouts++);
}

Value DecoderBuilder::addToResidual(Value x, Value added,
                                    const std::optional<NormWeight> &outputNorm,
                                    StringRef path) {
  added = norm(outputNorm, added);
  enter(path);
  added = dropout(config.dropout.residual, added);
  added = scale(config.residualScale, added);
  return emit<model::AddOp>(x.getType(), x, added);
}

Value DecoderBuilder::buildAttention(const LayerWeights &layer, Value x) {
  StringRef path = StringRef(layer.attentionOutput.module).rsplit('.').first;
  int64_t width = config.heads * config.headDim;
  int64_t kvWidth = config.kvHeads * config.headDim;
  SmallVector<Value> qkv =
      parts(layer.queryKeyValue, {width, kvWidth, kvWidth}, x);
  Value q = rotate(layer.queryNorm, qkv[0], path);
  Value k = rotate(layer.keyNorm, qkv[1], path);
  Value sinks;
  if (layer.sinks)
    sinks = WeightBuilder{body, parameters}.buildF32(*layer.sinks, layerNumber);
  auto attention = emit<model::AttentionOp>(
      q, k, qkv[2], segments, config.heads, config.kvHeads, config.headDim,
      config.windows[layerNumber], config.attentionScale, config.attentionCap,
      sinks);
  return linear(layer.attentionOutput, attention.getResult());
}

Value DecoderBuilder::buildMlp(const LayerWeights &layer, Value x) {
  Value experts;
  if (layer.experts) {
    routed.push_back(buildExperts(body, parameters, config, *layer.experts,
                                  layerNumber, x));
    experts = routed.back().output;
  }
  if (layer.mlpInput.empty())
    return experts;
  SmallVector<int64_t> widths(config.family->mlp.gated ? 2 : 1,
                              config.innerSize);
  SmallVector<Value> inputs = parts(layer.mlpInput, widths, x);
  enter(StringRef(layer.mlpOutput.module).rsplit('.').first);
  Value y = linear(layer.mlpOutput, activate(inputs));
  if (!layer.sharedGate)
    return y;
  Value gate = linear(*layer.sharedGate, x);
  y = emit<model::GateRowsOp>(y.getType(), y, gate);
  return emit<model::AddOp>(y.getType(), experts, y);
}

Value DecoderBuilder::buildLayer(const LayerWeights &layer, Value x) {
  std::string path = fmt::format(
      "{}.{}", config.modulePath(config.family->modules.layers), layerNumber);
  x = addToResidual(x, buildAttention(layer, norm(layer.inputNorm, x)),
                    layer.attentionNorm, path);
  return addToResidual(x, buildMlp(layer, norm(layer.mlpNorm, x)),
                       layer.mlpOutputNorm, path);
}

Value DecoderBuilder::embed(Value ids, Value positions) {
  const ModuleNames &names = config.family->modules;
  RankedTensorType type = activation(config.hiddenSize);
  enter(config.modulePath(names.embedding));
  embedding = parameter(weights.embedding);
  Value x = emit<model::EmbeddingOp>(type, ids, embedding, config.paddingToken);
  x = scale(config.embeddingScale, x, config.family->scalesEmbedding);
  if (weights.positions) {
    enter(config.modulePath(names.positions));
    Value table = parameter(*weights.positions);
    Value added = emit<model::EmbeddingOp>(type, positions, table);
    x = emit<model::AddOp>(type, x, added);
  }
  return dropout(config.dropout.embedding, x);
}

/// Returns the frequencies twice in a row, because rotate-half rotates column i
/// and column i + size/2 by the same angle.
static SmallVector<float> twice(ArrayRef<float> frequencies) {
  SmallVector<float> both(frequencies);
  llvm::append_range(both, frequencies);
  return both;
}

/// Builds the cos and sin tables. `lengths` is null if no RoPE kind in the
/// model depends on the sequence length.
void DecoderBuilder::buildRopeTables(Value positions, Value lengths) {
  Type type = activation(config.headDim);
  enter(config.modulePath("model.rotary_emb"));
  for (const Rotary &rotary : config.rotaries) {
    const RopeConfig &rope = rotary.rope;
    const bool isDynamic = rope.kind == RopeKind::kDynamic;
    const bool hasLengths = dependsOnLength(rope.kind);
    DenseF32ArrayAttr beyond;
    if (!rotary.longFrequencies.empty())
      beyond = body.getDenseF32ArrayAttr(twice(rotary.longFrequencies));
    tables.push_back(emit<model::RopeTableOp>(
        type, type, positions, hasLengths ? lengths : Value(),
        body.getDenseF32ArrayAttr(twice(rotary.frequencies)),
        body.getF64FloatAttr(rope.attentionFactor), beyond,
        body.getF64FloatAttr(isDynamic ? rope.factor : 0),
        body.getI64IntegerAttr(hasLengths ? rope.originalMaxPositions : 0)));
  }
}

void DecoderBuilder::buildForward() {
  Type ids = RankedTensorType::get({ShapedType::kDynamic, ShapedType::kDynamic},
                                   body.getI32Type());
  Type number = RankedTensorType::get({1}, body.getF32Type());
  SmallVector<StringRef> inputs = {"ids", "targets", "positions", "segments"};
  const bool hasLengths =
      llvm::any_of(config.rotaries, [](const Rotary &rotary) {
        return dependsOnLength(rotary.rope.kind);
      });
  if (hasLengths)
    inputs.push_back("lengths");
  enter("forward");
  auto function = func::FuncOp::create(
      body, "forward",
      body.getFunctionType(SmallVector<Type>(inputs.size(), ids),
                           {number, number, ids}));
  Block *block = function.addEntryBlock();
  for (auto [i, name] : llvm::enumerate(inputs)) {
    function.setArgAttr(i, "model.input", body.getStringAttr(name));
    block->getArgument(i).setLoc(NameLoc::get(body.getStringAttr(name)));
  }
  segments = block->getArgument(3);
  parameters.setInsertionPoint(function);
  body.setInsertionPointToStart(block);

  buildRopeTables(block->getArgument(2),
                  hasLengths ? block->getArgument(4) : Value());
  Value x = embed(block->getArgument(0), block->getArgument(2));
  for (layerNumber = 0; layerNumber < config.layers; ++layerNumber)
    x = buildLayer(weights.layers[layerNumber], x);
  layerNumber = -1;
  x = norm(weights.norm, x);
  enter(config.modulePath(config.family->modules.head));
  x = scale(config.logitScale, x);
  Value head = weights.head ? parameter(*weights.head) : embedding;
  auto loss = emit<model::HeadLossOp>(number, number, ids, x, head,
                                      block->getArgument(1), ValueRange(),
                                      APFloat(config.logitCap),
                                      /*label_smoothing=*/APFloat(0.0));
  enter("forward");
  SmallVector<Value> results(loss->getResults());
  if (config.experts.routerLoss && !routed.empty()) {
    // Insert the router loss before the LM head, so that the backward runs the
    // LM head first: its gradients need the most memory.
    body.setInsertionPoint(loss);
    results.push_back(buildRouterLoss(body, config.experts, routed, segments));
    body.setInsertionPointToEnd(block);
  }
  emit<func::ReturnOp>(results);
  function.setFunctionType(body.getFunctionType(
      block->getArgumentTypes(), TypeRange(ValueRange(results))));
}

static Attribute asAttribute(OpBuilder &builder,
                             const nlohmann::ordered_json &value) {
  if (value.is_boolean())
    return builder.getBoolAttr(value.get<bool>());
  if (value.is_number_integer())
    return builder.getI64IntegerAttr(value.get<int64_t>());
  if (value.is_number())
    return builder.getF64FloatAttr(value.get<double>());
  return builder.getStringAttr(value.get<std::string>());
}

/// Returns the attribute model.config, which qloracc records in train.so.
DictionaryAttr DecoderBuilder::describe() {
  NamedAttrList list;
  const nlohmann::ordered_json model = describeArithmetic(config);
  for (const auto &[key, value] : model.items())
    if (!value.is_null())
      list.append(key, asAttribute(body, value));
  if (config.maxPositions)
    list.append("max_position_embeddings",
                body.getI64IntegerAttr(config.maxPositions));
  if (config.wrapper)
    list.append("untrained_modules",
                body.getStringAttr(llvm::join(config.wrapper->others, " ")));
  return list.getDictionary(&context);
}

OwningOpRef<ModuleOp> DecoderBuilder::build() {
  body.setInsertionPointToStart(module->getBody());
  (*module)->setAttr("model.folder", body.getStringAttr(folder));
  (*module)->setAttr("model.config", describe());
  buildForward();
  return std::move(module);
}

OwningOpRef<ModuleOp> buildDecoder(MLIRContext &context,
                                   const ModelConfig &config,
                                   const DecoderWeights &weights,
                                   const std::string &folder) {
  return DecoderBuilder(context, config, weights, folder).build();
}

} // namespace qlora
