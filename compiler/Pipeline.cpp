// SPDX-License-Identifier: MIT

// Builds the pass pipeline of each phase, in order from a model to train.so.

#include "compiler/Pipeline.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

#include "compiler/Passes.h"
#include "compiler/Support/TargetTraits.h"

using namespace mlir;
using namespace qlora;

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
  if (!options.quantizedFormat.empty()) {
    QuantizeBaseOptions quantize;
    quantize.format = options.quantizedFormat;
    quantize.block = options.block;
    quantize.doubleQuant = options.doubleQuant;
    quantize.experts = options.quantizeExperts;
    pm.addPass(createQuantizeBase(quantize));
  }
  // round-activations must run before adapters are added, whose matmuls read x
  // unrounded, and before attach-loss copies the model.
  if (options.int8Threshold)
    pm.addPass(createRoundActivations({*options.int8Threshold}));
  // attach-loss copies the model as the reference model, so it must run before
  // passes that change the model for training.
  if (options.objective != "none") {
    AttachLossOptions objective;
    objective.objective = options.objective;
    objective.beta = options.beta;
    objective.mismatched = options.linesOfRow == 2;
    objective.desirableWeight = options.desirableWeight;
    objective.undesirableWeight = options.undesirableWeight;
    pm.addPass(createAttachLoss(objective));
  }
  if (options.noiseAlpha != 0) {
    AddNoiseOptions noise;
    noise.alpha = options.noiseAlpha;
    pm.addPass(createAddNoise(noise));
  }
  if (!options.trainsAll)
    buildAdapters(pm, options);
  MarkTrainableOptions weights;
  weights.modules = options.trainsAll ? "[]" : options.lora.modulesToSave;
  weights.all = options.trainsAll && options.trains;
  weights.bias = options.bias;
  weights.loraPlusRatio = options.loraPlusRatio;
  weights.optimizer = options.optimizer;
  pm.addPass(createMarkTrainable(weights));
  // fuse-lora must run before build-train-step, to fuse the backward too.
  if (options.isEnabled("fuse-lora"))
    pm.addPass(createFuseLora());
  // specialize-shapes follows all passes that accept dynamic sequence lengths.
  SpecializeShapesOptions shapes;
  shapes.batch = options.batch / options.chunks * options.linesOfRow;
  llvm::append_range(shapes.lengths, options.lengths);
  llvm::append_range(shapes.buckets, options.buckets);
  shapes.computeType = options.computeType;
  if (options.generationRows > 0)
    shapes.generation = {options.generationRows, options.prefillTokens};
  pm.addPass(createSpecializeShapes(shapes));
  pm.addPass(
      createBuildGeneration({options.generationLength, options.cacheType}));
  // stack-adapters must see all linears of an adapter, and nothing sharded.
  pm.addPass(createStackAdapters({options.maxAdapters}));
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
  PartitionPipelineOptions cut;
  cut.stages = options.mesh.pp;
  cut.parts = options.stageParts;
  cut.stage = options.stage;
  cut.speeds.assign(options.stageSpeeds.begin(), options.stageSpeeds.end());
  cut.deviceMap = options.deviceMap;
  cut.memoryLimit = options.memoryLimit;
  cut.target = options.target;
  cut.profile = options.deviceProfile;
  pm.addPass(createPartitionPipeline(cut));
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
  UnrollMicroBatchesOptions unroll;
  unroll.chunks = budget.chunks ? budget.chunks : options.chunks;
  unroll.lines = options.linesOfRow;
  unroll.parts = options.stageParts;
  unroll.allForwardsFirst = options.allForwardsFirst;
  pm.addNestedPass<train::StepOp>(createUnrollMicroBatches(unroll));
  // bucket-gradients groups gradients in the order in which they finish.
  BucketGradientsOptions buckets;
  buckets.gradientBuckets = options.isEnabled("bucket-gradients")
                                ? options.gradientBuckets
                                : int64_t(1);
  pm.addPass(createBucketGradients(buckets));
  if (options.gradientForm != "no") {
    CompressGradientsOptions compress;
    compress.form = options.gradientForm;
    compress.ranks = std::max<int64_t>(1, options.runRanks);
    compress.rank = options.gradientRank;
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
    OffloadActivationsOptions offload;
    offload.values = budget.copiedValues;
    offload.blocks = options.checkpointing;
    offload.weights = budget.offloadBase ? options.mesh.fsdp : 0;
    offload.target = options.target;
    offload.profile = options.deviceProfile;
    pm.addNestedPass<train::StepOp>(createOffloadActivations(offload));
  }
  // rematerialize must run before fuse-rows, while every value has its own op.
  RematerializeOptions remat;
  remat.budget = budget.activationBytes;
  remat.blocks = options.checkpointing;
  remat.target = options.target;
  remat.profile = options.deviceProfile;
  if (options.isEnabled("rematerialize"))
    pm.addNestedPass<train::StepOp>(createRematerialize(remat));
  // plan-dequant follows rematerialize: recomputed uses can share a decode.
  PlanDequantOptions dequant;
  dequant.form = options.isEnabled("plan-dequant") && !budget.onlyPanels
                     ? options.dequantizeForm
                     : std::string("tiled");
  dequant.residentBytes = budget.residentBytes;
  dequant.target = options.target;
  dequant.profile = options.deviceProfile;
  pm.addPass(createPlanDequant(dequant));
  // concat-siblings needs plan-dequant's choice of weights decoded to scratch.
  if (options.isEnabled("concat-siblings") && !budget.siblingsApart &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createConcatSiblings());
  if (options.isEnabled("reorder-accumulation") &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createReorderAccumulation());
  // The next two passes must know where each weight is read, and in which form.
  ShardVocabularyOptions tables;
  tables.shards = options.mesh.fsdp;
  tables.offloadTables = budget.offloadTables;
  tables.form = options.shardEmbeddings;
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
  LowerToProgramOptions lower;
  lower.offloadStates = options.offloadStates;
  pm.addPass(createLowerToProgram(lower));
  // select-kernels adds workspaces, which plan-memory must include.
  SelectKernelsOptions select;
  select.target = options.target;
  select.workspaces = budget.workspaces;
  pm.addPass(createSelectKernels(select));
  // plan-memory must know the queues: concurrent commands cannot share memory.
  AssignQueuesOptions queues;
  queues.target = options.target;
  queues.profile = options.deviceProfile;
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
  options.quantizedFormat = "llm_int8";
  options.int8Threshold = 6;
  options.loraActivations = "int8";
  options.objective = "dpo";
  options.linesOfRow = 2;
  options.noiseAlpha = 5;
  options.mesh.fsdp = 2;
  options.sequenceParallel = true;
  options.gradientForm = "int8";
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
