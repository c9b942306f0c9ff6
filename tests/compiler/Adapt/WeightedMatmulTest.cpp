// SPDX-License-Identifier: MIT

// A second op that multiplies with a weight. Passes handle it only through its
// interfaces: LoRA, quantization, decode planning, the joining of siblings and
// the gradient apply to it. Its weight comes before its x, so that no pass can
// assume the order of operands.

#include "compiler/Passes.h"
#include "dialects/Train/Train.h"
#include "runtime/Kernels/KernelTable.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"

#include <gtest/gtest.h>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

namespace {

class ProductOp
    : public Op<ProductOp, OpTrait::ZeroRegions, OpTrait::OneResult,
                OpTrait::OneTypedResult<RankedTensorType>::Impl,
                OpTrait::ZeroSuccessors, OpTrait::NOperands<2>::Impl,
                ConditionallySpeculatable::Trait,
                MemoryEffectOpInterface::Trait, WeightedMatmul::Trait,
                LibraryOp::Trait, train::Differentiable::Trait> {
public:
  using Op::Op;
  static StringRef getOperationName() { return "test.product"; }
  static ArrayRef<StringRef> getAttributeNames() { return {}; }

  OpOperand &getWeightMutable() { return getOperation()->getOpOperand(0); }
  OpOperand &getXMutable() { return getOperation()->getOpOperand(1); }
  Value getProduct() { return getResult(); }
  WeightLayout getLayout() {
    return getOperation()->hasAttr("turned") ? WeightLayout::InOut
                                             : WeightLayout::OutIn;
  }
  void setLayout(WeightLayout layout) {
    if (layout == WeightLayout::OutIn)
      getOperation()->removeAttr("turned");
    else
      getOperation()->setAttr("turned", UnitAttr::get(getContext()));
  }
  std::optional<StringRef> getModule() {
    auto module = getOperation()->getAttrOfType<StringAttr>("module");
    return module ? std::optional(module.getValue()) : std::nullopt;
  }
  KernelCall getKernelCall() { return matmulCall(*this); }
  LogicalResult buildGradient(train::Tape &tape) {
    train::buildProductGradient(*this, tape);
    return success();
  }
  Speculation::Speculatability getSpeculatability() {
    return Speculation::Speculatable;
  }
  void getEffects(SmallVectorImpl<MemoryEffects::EffectInstance> &) {}
};

class TestDialect : public Dialect {
public:
  explicit TestDialect(MLIRContext *context)
      : Dialect(getDialectNamespace(), context, TypeID::get<TestDialect>()) {
    addOperations<ProductOp>();
  }
  static StringRef getDialectNamespace() { return "test"; }
};

/// Runs `passes` on `text`; the module is null if one fails.
class WeightedMatmulTest : public testing::Test {
protected:
  WeightedMatmulTest() {
    DialectRegistry registry;
    registry.insert<arith::ArithDialect, math::MathDialect, func::FuncDialect,
                    ModelDialect, train::TrainDialect, TestDialect>();
    train::registerModelGradients(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  template <typename... Passes> ModuleOp run(StringRef text, Passes... passes) {
    module = parseSourceString<ModuleOp>(text, &context);
    PassManager manager(&context, ModuleOp::getOperationName(),
                        PassManager::Nesting::Implicit);
    (manager.addPass(std::move(passes)), ...);
    return module && succeeded(manager.run(*module)) ? *module : ModuleOp();
  }

  template <typename Op> SmallVector<Op> all() {
    SmallVector<Op> ops;
    module->walk([&](Op op) { ops.push_back(op); });
    return ops;
  }

  model::ParameterOp parameter(StringRef name) {
    return module->lookupSymbol<model::ParameterOp>(name);
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

constexpr const char *kModel = R"(
model.parameter @q : tensor<32x64xbf16> {file = "a"}
model.parameter @k : tensor<64x32xbf16> {file = "a"}
model.parameter @e : tensor<32x64xbf16> {file = "a"}
func.func @forward(%ids: tensor<1x8xi32> {model.input = "ids"})
    -> (tensor<1xf32>, tensor<1xf32>, tensor<1x8xi32>)
    attributes {model.batch = 1 : i64, model.length = 8 : i64} {
  %e = model.weight @e : tensor<32x64xbf16>
  %x = model.embedding %ids, %e
      : (tensor<1x8xi32>, tensor<32x64xbf16>) -> tensor<1x8x64xf32>
  %wq = model.weight @q : tensor<32x64xbf16>
  %q = "test.product"(%wq, %x) {module = "l.q"}
      : (tensor<32x64xbf16>, tensor<1x8x64xf32>) -> tensor<1x8x32xf32>
  %wk = model.weight @k : tensor<64x32xbf16>
  %k = "test.product"(%wk, %x) {module = "l.k", turned}
      : (tensor<64x32xbf16>, tensor<1x8x64xf32>) -> tensor<1x8x32xf32>
  %s = model.add %q, %k : tensor<1x8x32xf32>
  %h = model.concat %s, %s
      : (tensor<1x8x32xf32>, tensor<1x8x32xf32>) -> tensor<1x8x64xf32>
  %loss, %count, %correct = model.head_loss %h, %e, %ids
      : (tensor<1x8x64xf32>, tensor<32x64xbf16>, tensor<1x8xi32>)
        -> (tensor<1xf32>, tensor<1xf32>, tensor<1x8xi32>)
  return %loss, %count, %correct
      : tensor<1xf32>, tensor<1xf32>, tensor<1x8xi32>
})";

TEST_F(WeightedMatmulTest, IsQuantized) {
  ASSERT_TRUE(run(kModel, createQuantizeBase()));
  auto nf4 = QuantizedType::get(&context, QLORA_DTYPE_NF4, 64, true);
  EXPECT_EQ(parameter("q").getType(), RankedTensorType::get({32, 64}, nf4));
  // A weight stored as [in, out] is transposed when it is read, and the op's
  // layout changes too.
  EXPECT_EQ(parameter("k").getType(), RankedTensorType::get({32, 64}, nf4));
  EXPECT_TRUE(parameter("k").getTransposed());
  for (ProductOp product : all<ProductOp>())
    EXPECT_EQ(product.getLayout(), WeightLayout::OutIn);
  // The head and the embedding are not quantized.
  EXPECT_FALSE(parameter("e").getQuantized());
}

TEST_F(WeightedMatmulTest, GetsAdaptersWhichAreJoined) {
  AttachAdaptersOptions options;
  options.rank = 4;
  options.targets = R"(["k", "q"])";
  ASSERT_TRUE(
      run(kModel, createAttachAdapters(options), createFuseLora()));
  auto f32 = Float32Type::get(&context);
  for (StringRef name : {"q", "k"}) {
    auto b = parameter(("base_model.model.l." + name + ".lora_B.weight").str());
    ASSERT_TRUE(b);
    EXPECT_EQ(b.getType(), RankedTensorType::get({32, 4}, f32));
  }
  // One matmul applies both A's. A matmul with each B adds to a base result.
  SmallVector<LinearOp> linears = all<LinearOp>();
  ASSERT_EQ(linears.size(), 3u);
  EXPECT_EQ(linears[0].getWeight().getType(),
            RankedTensorType::get({8, 64}, f32));
  EXPECT_TRUE(linears[1].getInit().getDefiningOp<ProductOp>());
  EXPECT_TRUE(linears[2].getInit().getDefiningOp<ProductOp>());
}

TEST_F(WeightedMatmulTest, HasAGradient) {
  AttachAdaptersOptions options;
  options.rank = 4;
  options.targets = R"(["q"])";
  ASSERT_TRUE(run(kModel, createAttachAdapters(options), createFuseLora(),
                  createBuildTrainStep()));
  // Gradients of A and B; nothing else is trainable, and none flows through @k.
  EXPECT_EQ(all<train::AccumulateOp>().size(), 2u);
  EXPECT_EQ(all<ProductOp>().size(), 4u);
}

/// Two matmuls of the same x with 4-bit weights, and the sum of their gradients
/// with respect to x.
constexpr const char *kStep = R"(
model.parameter @q : tensor<16x64x!model.quantized<nf4, 64, false>> {file = "a", stored_quantized}
model.parameter @k : tensor<32x64x!model.quantized<nf4, 64, false>> {file = "a", stored_quantized}
model.parameter @e : tensor<64x64xf32> {file = "a"}
train.step evaluate batch 1 length 8 ["ids"] {
^bb0(%ids: tensor<1x8xi32>):
  %e = model.weight @e : tensor<64x64xf32>
  %x = model.embedding %ids, %e
      : (tensor<1x8xi32>, tensor<64x64xf32>) -> tensor<1x8x64xf32>
  %wq = model.weight @q : tensor<16x64x!model.quantized<nf4, 64, false>>
  %q = "test.product"(%wq, %x) : (tensor<16x64x!model.quantized<nf4, 64, false>>,
      tensor<1x8x64xf32>) -> tensor<1x8x16xf32>
  %wk = model.weight @k : tensor<32x64x!model.quantized<nf4, 64, false>>
  %k = "test.product"(%wk, %x) : (tensor<32x64x!model.quantized<nf4, 64, false>>,
      tensor<1x8x64xf32>) -> tensor<1x8x32xf32>
  %c = model.concat %q, %k
      : (tensor<1x8x16xf32>, tensor<1x8x32xf32>) -> tensor<1x8x48xf32>
})";

TEST_F(WeightedMatmulTest, IsDecodedWhereItIsPlanned) {
  PlanDequantOptions options;
  options.form = "per-use";
  ASSERT_TRUE(run(kStep, createPlanDequant(options)));
  EXPECT_EQ(all<train::DecodeOp>().size(), 2u);
  for (ProductOp product : all<ProductOp>()) {
    EXPECT_TRUE(product->getOperand(0).getDefiningOp<train::DecodeOp>());
    EXPECT_EQ(product.getKernelCall().op->name, "matmul");
  }
  options.form = "tiled";
  ASSERT_TRUE(run(kStep, createPlanDequant(options)));
  EXPECT_TRUE(all<train::DecodeOp>().empty());
  for (ProductOp product : all<ProductOp>())
    EXPECT_EQ(product.getKernelCall().op->name, "panel_matmul");
}

TEST_F(WeightedMatmulTest, IsJoinedWithItsSibling) {
  PlanDequantOptions options;
  options.form = "per-use";
  ASSERT_TRUE(run(kStep, createPlanDequant(options), createConcatSiblings()));
  SmallVector<ProductOp> products = all<ProductOp>();
  ASSERT_EQ(products.size(), 1u);
  EXPECT_EQ(cast<RankedTensorType>(products[0].getResult().getType())
                .getDimSize(2),
            48);
}

} // namespace
