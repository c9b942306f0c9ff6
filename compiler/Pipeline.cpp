// SPDX-License-Identifier: MIT

// Builds the pass pipeline of each phase, in order from a model to train.so.

#include "compiler/Pipeline.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

#include "compiler/Passes.h"
#include "compiler/Support/TargetTraits.h"

using namespace mlir;
using namespace qlora;

/// Turns off the passes that run only if they are asked for.
CompileOptions::CompileOptions() {
  quantize.format = "";
  loss.objective = "none";
  compress.form = "no";
}

/// Sets the device that a pass estimates times for.
template <typename PassOptions>
static PassOptions onDevice(PassOptions pass, const CompileOptions &options) {
  pass.target = options.target;
  pass.profile = options.deviceProfile;
  return pass;
}

//===----------------------------------------------------------------------===//
// adapt: from any model to the model to train
//===----------------------------------------------------------------------===//

static void buildAdapters(OpPassManager &pm, const CompileOptions &options) {
  const AttachAdaptersOptions &lora = options.lora;
  // A program that only generates may have no adapter.
  if (!options.trains && lora.targets == "[]")
    return;
  pm.addPass(createAttachAdapters(lora));
  AttachExpertAdaptersOptions experts;
  experts.rank = lora.rank;
  experts.alpha = lora.alpha;
  experts.dropout = lora.dropout;
  experts.rslora = lora.rslora;
  experts.targets = options.targetParameters;
  experts.moduleTargets = lora.targets;
  experts.rankPattern = lora.rankPattern;
  experts.alphaPattern = lora.alphaPattern;
  experts.initA = lora.initA;
  experts.initB = lora.initB;
  pm.addPass(createAttachExpertAdapters(experts));
  // attach-tokens must run last, to detect an adapter on the embedding.
  AttachTokensOptions tokens;
  llvm::append_range(tokens.tokens, options.trainedTokens);
  tokens.modulesToSave = lora.modulesToSave;
  pm.addPass(createAttachTokens(tokens));
}

static void buildAdapt(OpPassManager &pm, const CompileOptions &options,
                       const MemoryBudget &) {
  // quantize-base must run before adapters are added, which stay unquantized.
  if (!options.quantize.format.empty())
    pm.addPass(createQuantizeBase(options.quantize));
  // round-activations must run before adapters are added, whose matmuls read x
  // unrounded, and before attach-loss copies the model.
  if (options.int8Threshold)
    pm.addPass(createRoundActivations({*options.int8Threshold}));
  // attach-loss copies the model as the reference model, so it must run before
  // passes that change the model for training.
  if (options.loss.objective != "none" || options.loss.labelSmoothing != 0 ||
      llvm::is_contained(options.loss.kinds, "dft")) {
    AttachLossOptions loss = options.loss;
    loss.mismatched = options.linesOfRow == 2;
    pm.addPass(createAttachLoss(loss));
  }
  if (options.noise.alpha != 0)
    pm.addPass(createAddNoise(options.noise));
  if (!options.trained.all)
    buildAdapters(pm, options);
  MarkTrainableOptions trained = options.trained;
  trained.modules = trained.all ? "[]" : options.lora.modulesToSave;
  trained.all = trained.all && options.trains;
  pm.addPass(createMarkTrainable(trained));
  // fuse-lora must run before build-train-step, to fuse the backward too.
  if (options.isEnabled("fuse-lora"))
    pm.addPass(createFuseLora());
  // specialize-shapes follows all passes that accept dynamic sequence lengths.
  SpecializeShapesOptions shapes;
  shapes.batch = options.batch / options.unroll.chunks * options.linesOfRow;
  llvm::append_range(shapes.lengths, options.lengths);
  llvm::append_range(shapes.buckets, options.buckets);
  shapes.computeType = options.computeType;
  if (options.generationRows > 0)
    shapes.generation = {options.generationRows, options.prefillTokens};
  pm.addPass(createSpecializeShapes(shapes));
  pm.addPass(createBuildGeneration(options.generation));
  // stack-adapters must see all linears of an adapter, and nothing sharded.
  pm.addPass(createStackAdapters(options.stacked));
  // These passes must run before build-train-step, which differentiates the
  // computation of one rank.
  pm.addPass(createShardMatmuls({options.mesh.tp}));
  pm.addPass(createShardContext({options.mesh.cp}));
  pm.addPass(createShardExperts({options.mesh.ep}));
  if (options.sequenceParallel)
    pm.addPass(createShardSequence());
  // shard-trainable must know which parts of parameters a rank uses, and must
  // run before partition-pipeline, so that all stages shard in the same way.
  ShardTrainableOptions divide;
  divide.ranks = std::max(options.mesh.fsdp, options.mesh.zero2);
  divide.adapters = options.mesh.zero2 > 1;
  pm.addPass(createShardTrainable(divide));
  PartitionPipelineOptions pipeline = onDevice(options.pipeline, options);
  pipeline.stages = options.mesh.pp;
  pipeline.stage = options.stage;
  pipeline.parts = options.unroll.parts;
  pipeline.memoryLimit = options.memoryLimit;
  pm.addPass(createPartitionPipeline(pipeline));
}

//===----------------------------------------------------------------------===//
// step: forward and backward
//===----------------------------------------------------------------------===//

static void buildStep(OpPassManager &pm, const CompileOptions &options,
                      const MemoryBudget &) {
  pm.addPass(createBuildTrainStep({options.mesh.zero1, options.runRanks}));
  // Replaces the explicit adds that accumulate gradients.
  if (options.isEnabled("fuse-accumulate"))
    pm.addNestedPass<train::StepOp>(createFuseAccumulate());
}

//===----------------------------------------------------------------------===//
// optimize: memory and time, on tensors
//===----------------------------------------------------------------------===//

/// Adds the passes over a whole batch. Earlier passes see only one chunk of it.
static void buildExchange(OpPassManager &pm, const CompileOptions &options,
                          const MemoryBudget &budget) {
  UnrollMicroBatchesOptions unroll = options.unroll;
  unroll.lines = options.linesOfRow;
  if (budget.chunks)
    unroll.chunks = budget.chunks;
  pm.addNestedPass<train::StepOp>(createUnrollMicroBatches(unroll));
  // bucket-gradients groups gradients in the order in which they finish.
  BucketGradientsOptions buckets = options.gradients;
  if (!options.isEnabled("bucket-gradients"))
    buckets.gradientBuckets = 1;
  pm.addPass(createBucketGradients(buckets));
  if (options.compress.form != "no") {
    CompressGradientsOptions compress = options.compress;
    compress.ranks = std::max<int64_t>(1, options.runRanks);
    compress.feedback = options.isEnabled("error-feedback");
    pm.addPass(createCompressGradients(compress));
    pm.addNestedPass<train::StepOp>(
        createFuseRows({options.isEnabled("fuse-rows")}));
  }
}

static void buildOptimize(OpPassManager &pm, const CompileOptions &options,
                          const MemoryBudget &budget) {
  // round-adapters stores a copy, so the tightest memory budgets omit it.
  if (options.isEnabled("round-adapters") && !budget.onlyPanels &&
      targetTraits(options.target)->roundsBeforeGemms)
    pm.addPass(createRoundAdapters());
  // encode-activations must run before rematerialize counts the encoded sizes.
  if (options.loraActivations == "int8")
    pm.addNestedPass<train::StepOp>(createEncodeActivations());
  // offload-activations must run before rematerialize, so that recomputed ops
  // can read offloaded values.
  if (budget.copiedValues != "none") {
    auto offload = onDevice(OffloadActivationsOptions(), options);
    offload.values = budget.copiedValues;
    offload.blocks = options.checkpointing;
    offload.weights = budget.offloadBase ? options.mesh.fsdp : 0;
    pm.addNestedPass<train::StepOp>(createOffloadActivations(offload));
  }
  // rematerialize must run before fuse-rows, while every value has its own op.
  auto remat = onDevice(RematerializeOptions(), options);
  remat.budget = budget.activationBytes;
  remat.blocks = options.checkpointing;
  if (options.isEnabled("rematerialize"))
    pm.addNestedPass<train::StepOp>(createRematerialize(remat));
  // plan-dequant follows rematerialize: recomputed uses can share a decode.
  PlanDequantOptions dequant = onDevice(options.dequant, options);
  if (!options.isEnabled("plan-dequant") || budget.onlyPanels)
    dequant.form = "tiled";
  dequant.residentBytes = budget.residentBytes;
  pm.addPass(createPlanDequant(dequant));
  // concat-siblings needs plan-dequant's choice of weights decoded to scratch.
  if (options.isEnabled("concat-siblings") && !budget.siblingsApart &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createConcatSiblings());
  if (options.isEnabled("reorder-accumulation") &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createReorderAccumulation());
  // The next two passes must know where each weight is read, and in which form.
  ShardVocabularyOptions tables = options.vocabulary;
  tables.shards = options.mesh.fsdp;
  tables.offloadTables = budget.offloadTables;
  pm.addPass(createShardVocabulary(tables));
  PlaceFrozenWeightsOptions shards;
  shards.shards = options.mesh.fsdp;
  shards.keepTrained = options.mesh.zero2 > 1;
  shards.offloadTables = budget.offloadTables;
  shards.offloadBase = budget.offloadBase;
  shards.room = budget.stayingBytes;
  pm.addPass(createPlaceFrozenWeights(shards));
  // fuse-rows must run after all passes that match the row ops that it merges.
  FuseRowsOptions rows;
  rows.fuse = options.isEnabled("fuse-rows");
  pm.addNestedPass<train::StepOp>(createFuseRows(rows));
  // schedule-gathers needs the final order of ops.
  if (options.isEnabled("schedule-gathers") && !budget.inOrder)
    pm.addNestedPass<train::StepOp>(createScheduleGathers());
  buildExchange(pm, options, budget);
}

//===----------------------------------------------------------------------===//
// program: buffers and commands
//===----------------------------------------------------------------------===//

static void buildProgram(OpPassManager &pm, const CompileOptions &options,
                         const MemoryBudget &budget) {
  pm.addPass(createLowerToProgram(options.lower));
  // select-kernels adds workspaces, which plan-memory must include.
  SelectKernelsOptions select;
  select.target = options.target;
  select.workspaces = budget.workspaces;
  pm.addPass(createSelectKernels(select));
  // plan-memory must know the queues: concurrent commands cannot share memory.
  auto queues = onDevice(AssignQueuesOptions(), options);
  queues.inOrder = budget.inOrder || !options.isEnabled("assign-queues");
  pm.addPass(createAssignQueues(queues));
  pm.addPass(createPlanMemory());
}

static constexpr Phase kPhases[] = {
    {"adapt", buildAdapt},
    {"step", buildStep},
    {"optimize", buildOptimize},
    {"program", buildProgram},
};

ArrayRef<Phase> qlora::phases() { return kPhases; }

void qlora::registerPhases() {
  CompileOptions options;
  options.target = "cuda";
  options.lengths = {32};
  options.quantize.format = "llm_int8";
  options.int8Threshold = 6;
  options.loraActivations = "int8";
  options.loss.objective = "dpo";
  options.linesOfRow = 2;
  options.noise.alpha = 5;
  options.mesh.fsdp = 2;
  options.sequenceParallel = true;
  options.compress.form = "int8";
  options.runRanks = 2;
  MemoryBudget budget;
  budget.copiedValues = "hidden";
  for (const Phase &phase : kPhases)
    PassPipelineRegistration<>("phase-" + std::string(phase.name),
                               "a phase of qloracc",
                               [&phase, options, budget](OpPassManager &pm) {
                                 phase.build(pm, options, budget);
                               });
}

ArrayRef<StringLiteral> qlora::optionalPasses() {
  static constexpr StringLiteral kOptional[] = {
      "fuse-lora",        "fuse-accumulate", "round-adapters",
      "rematerialize",    "plan-dequant",    "fuse-rows",
      "bucket-gradients", "concat-siblings", "reorder-accumulation",
      "schedule-gathers", "assign-queues",   "error-feedback"};
  return kOptional;
}
