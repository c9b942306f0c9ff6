// SPDX-License-Identifier: MIT

// ModelConfig and weights -> model.mlir. Nothing can fail here: what the
// files hold has been checked.

#include "frontend/DecoderBuilder.h"

#include "frontend/ModelIdentity.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

#include <cmath>

using namespace mlir;

namespace qlora {

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
  Value buildAttention(const LayerWeights &layer, Value x);
  Value buildMlp(const LayerWeights &layer, Value x);
  Value buildLayer(const LayerWeights &layer, Value x);

  /// Ops created from here on are the module's at this path.
  void enter(StringRef path);
  /// Creates an op here, as part of the current layer.
  template <typename Op, typename... Args> Op emit(Args &&...args);

  Value parameter(const Weight &weight);
  Value linear(const LinearWeight &linear, Value x);
  Value norm(const Weight &weight, Value x);
  Value rotate(const std::optional<Weight> &headNorm, Value x, StringRef path);

  /// [B, T, width] f32.
  RankedTensorType activation(int64_t width);
  Type elementType(const Weight &weight);

  MLIRContext &context;
  const ModelConfig &config;
  const DecoderWeights &weights;
  const std::string &folder;
  OwningOpRef<ModuleOp> module;
  OpBuilder parameters; ///< before the function
  ImplicitLocOpBuilder body;
  int64_t layerNumber = -1; ///< -1: outside the layers
  Value segments, cos, sin;
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
  if (layerNumber >= 0)
    op->setAttr(model::kBlockAttr, body.getI64IntegerAttr(layerNumber));
  return op;
}

RankedTensorType DecoderBuilder::activation(int64_t width) {
  return RankedTensorType::get(
      {ShapedType::kDynamic, ShapedType::kDynamic, width}, body.getF32Type());
}

Type DecoderBuilder::elementType(const Weight &weight) {
  if (weight.nf4Block)
    return model::NF4Type::get(&context, weight.nf4Block, weight.doubleQuant);
  if (weight.dtype == SafetensorsDtype::kBF16)
    return body.getBF16Type();
  return weight.dtype == SafetensorsDtype::kF16 ? Type(body.getF16Type())
                                                : Type(body.getF32Type());
}

/// Declares a weight and returns its value. Both have the tensor's name as
/// location; that of the ops to come stays the module's.
Value DecoderBuilder::parameter(const Weight &weight) {
  auto type = RankedTensorType::get(weight.shape, elementType(weight));
  Location loc = NameLoc::get(StringAttr::get(&context, weight.name));
  model::ParameterOp::create(
      parameters, loc, weight.name, type,
      StringAttr::get(&context, weight.file), /*file_type=*/TypeAttr(),
      /*init=*/StringAttr(), /*trainable=*/false,
      /*stored_quantized=*/weight.nf4Block != 0, /*quantized=*/TypeAttr(),
      /*part_names=*/ArrayAttr(), /*part_rows=*/DenseI64ArrayAttr());
  Location outer = body.getLoc();
  body.setLoc(loc);
  Value value = emit<model::WeightOp>(type, weight.name);
  body.setLoc(outer);
  return value;
}

Value DecoderBuilder::linear(const LinearWeight &linear, Value x) {
  enter(linear.module);
  Value weight = parameter(linear.weight);
  RankedTensorType type = activation(linear.weight.shape[0]);
  Value y =
      emit<model::LinearOp>(type, x, weight, /*init=*/Value(), APFloat(1.0),
                            body.getStringAttr(linear.module));
  if (!linear.bias)
    return y;
  return emit<model::AddBiasOp>(type, y, parameter(*linear.bias));
}

Value DecoderBuilder::norm(const Weight &weight, Value x) {
  StringRef path = weight.name;
  path.consume_back(".weight");
  enter(path);
  return emit<model::RmsNormOp>(x.getType(), x, parameter(weight),
                                APFloat(config.rmsNormEpsilon));
}

/// q or k: its norm by head, where the family has one, then RoPE.
Value DecoderBuilder::rotate(const std::optional<Weight> &headNorm, Value x,
                             StringRef path) {
  if (headNorm)
    x = norm(*headNorm, x);
  enter(path);
  return emit<model::RopeOp>(x.getType(), x, cos, sin);
}

Value DecoderBuilder::buildAttention(const LayerWeights &layer, Value x) {
  StringRef path = StringRef(layer.q.module).rsplit('.').first;
  Value q = linear(layer.q, x);
  Value k = linear(layer.k, x);
  Value v = linear(layer.v, x);
  q = rotate(layer.qNorm, q, path);
  k = rotate(layer.kNorm, k, path);
  double scale = std::pow(static_cast<double>(config.headDim), -0.5);
  auto attention = emit<model::AttentionOp>(
      q, k, v, segments, config.heads, config.kvHeads, config.headDim,
      config.windows[layerNumber], scale);
  return linear(layer.o, attention.getResult());
}

Value DecoderBuilder::buildMlp(const LayerWeights &layer, Value x) {
  Value gate = linear(layer.gate, x);
  Value up = linear(layer.up, x);
  enter(StringRef(layer.gate.module).rsplit('.').first);
  return linear(layer.down, emit<model::SwigluOp>(gate.getType(), gate, up));
}

Value DecoderBuilder::buildLayer(const LayerWeights &layer, Value x) {
  std::string path = "model.layers." + std::to_string(layerNumber);
  Value attended = buildAttention(layer, norm(layer.inputNorm, x));
  enter(path);
  x = emit<model::AddOp>(x.getType(), x, attended);
  Value mapped = buildMlp(layer, norm(layer.postAttentionNorm, x));
  enter(path);
  return emit<model::AddOp>(x.getType(), x, mapped);
}

void DecoderBuilder::buildForward() {
  Type ids = RankedTensorType::get({ShapedType::kDynamic, ShapedType::kDynamic},
                                   body.getI32Type());
  Type number = RankedTensorType::get({1}, body.getF32Type());
  constexpr StringLiteral kInputs[] = {"ids", "targets", "positions",
                                       "segments"};
  enter("forward");
  auto function = func::FuncOp::create(
      body, "forward",
      body.getFunctionType({ids, ids, ids, ids}, {number, number, ids}));
  Block *block = function.addEntryBlock();
  for (auto [i, name] : llvm::enumerate(kInputs)) {
    function.setArgAttr(i, "model.input", body.getStringAttr(name));
    block->getArgument(i).setLoc(NameLoc::get(body.getStringAttr(name)));
  }
  segments = block->getArgument(3);
  parameters.setInsertionPoint(function);
  body.setInsertionPointToStart(block);

  // rotate-half wants the frequencies of one half for the other one, too.
  SmallVector<float> frequencies(ArrayRef<float>(config.frequencies));
  llvm::append_range(frequencies, config.frequencies);
  enter("model.rotary_emb");
  auto table = emit<model::RopeTableOp>(
      activation(config.headDim), activation(config.headDim),
      block->getArgument(2), frequencies, APFloat(1.0));
  cos = table.getCos();
  sin = table.getSin();

  enter("model.embed_tokens");
  Value embedding = parameter(weights.embedding);
  Value x = emit<model::EmbeddingOp>(activation(config.hiddenSize),
                                     block->getArgument(0), embedding);
  for (layerNumber = 0; layerNumber < config.layers; ++layerNumber)
    x = buildLayer(weights.layers[layerNumber], x);
  layerNumber = -1;
  x = norm(weights.norm, x);
  enter("lm_head");
  Value head = weights.head ? parameter(*weights.head) : embedding;
  auto loss = emit<model::HeadLossOp>(number, number, ids, x, head,
                                      block->getArgument(1));
  enter("forward");
  emit<func::ReturnOp>(loss->getResults());
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

/// What qloracc records for the runtime.
DictionaryAttr DecoderBuilder::describe() {
  NamedAttrList list;
  const nlohmann::ordered_json model = describeArithmetic(config);
  for (const auto &[key, value] : model.items())
    if (!value.is_null())
      list.append(key, asAttribute(body, value));
  if (config.maxPositions)
    list.append("max_position_embeddings",
                body.getI64IntegerAttr(config.maxPositions));
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
