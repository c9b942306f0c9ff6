// SPDX-License-Identifier: MIT

// The phase table. Reading it from top to bottom is reading what happens to a
// model on its way to train.so.

#include "compiler/Pipeline.h"

#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

#include "compiler/Passes.h"
#include "compiler/Support/TargetTraits.h"

using namespace mlir;
using namespace qlora;

//===----------------------------------------------------------------------===//
// adapt: from any model to the one that is trained
//===----------------------------------------------------------------------===//

static void buildAdapters(OpPassManager &pm, const CompileOptions &options) {
  AttachAdaptersOptions adapters;
  adapters.rank = options.rank;
  adapters.alpha = options.alpha;
  adapters.dropout = options.dropout;
  adapters.rslora = options.rslora;
  adapters.dora = options.dora;
  adapters.bias = options.loraBias;
  adapters.targets = options.targets;
  adapters.exclude = options.excludedModules;
  adapters.layers = options.layers;
  adapters.layersPattern = options.layersPattern;
  adapters.rankPattern = options.rankPattern;
  adapters.alphaPattern = options.alphaPattern;
  adapters.modulesToSave = options.modulesToSave;
  adapters.initA = options.initA;
  adapters.initB = options.initB;
  pm.addPass(createAttachAdapters(adapters));
  AttachExpertAdaptersOptions experts;
  experts.rank = options.rank;
  experts.alpha = options.alpha;
  experts.dropout = options.dropout;
  experts.rslora = options.rslora;
  experts.targets = options.targetParameters;
  experts.moduleTargets = options.targets;
  experts.rankPattern = options.rankPattern;
  experts.alphaPattern = options.alphaPattern;
  experts.initA = options.initA;
  experts.initB = options.initB;
  pm.addPass(createAttachExpertAdapters(experts));
  // Where the embedding's own adapter would be seen.
  AttachTokensOptions tokens;
  llvm::append_range(tokens.tokens, options.trainedTokens);
  tokens.modulesToSave = options.modulesToSave;
  pm.addPass(createAttachTokens(tokens));
}

static void buildAdapt(OpPassManager &pm, const CompileOptions &options,
                       const MemoryBudget &) {
  // Before the adapters, so that only the model's own weights are quantised.
  if (!options.quantizedFormat.empty()) {
    QuantizeBaseOptions quantize;
    quantize.format = options.quantizedFormat;
    quantize.block = options.block;
    quantize.doubleQuant = options.doubleQuant;
    quantize.experts = options.quantizeExperts;
    pm.addPass(createQuantizeBase(quantize));
  }
  // Before the adapters, whose own products are of x as it is, and before the
  // model is copied.
  if (options.int8Threshold)
    pm.addPass(createRoundActivations({*options.int8Threshold}));
  // While the model is what it was: its copy is the reference.
  if (options.objective != "none") {
    AttachObjectiveOptions objective;
    objective.objective = options.objective;
    objective.beta = options.beta;
    objective.mismatched = options.linesOfRow == 2;
    objective.desirableWeight = options.desirableWeight;
    objective.undesirableWeight = options.undesirableWeight;
    pm.addPass(createAttachObjective(objective));
  }
  if (options.noiseAlpha != 0) {
    AddNoiseOptions noise;
    noise.alpha = options.noiseAlpha;
    pm.addPass(createAddNoise(noise));
  }
  if (!options.trainsAll)
    buildAdapters(pm, options);
  TrainWeightsOptions weights;
  weights.modules = options.trainsAll ? "[]" : options.modulesToSave;
  weights.all = options.trainsAll;
  weights.bias = options.bias;
  weights.loraPlusRatio = options.loraPlusRatio;
  weights.optimizer = options.optimizer;
  pm.addPass(createTrainWeights(weights));
  // Before the gradient: the backward of the fused form is fused too.
  if (options.isEnabled("fuse-lora"))
    pm.addPass(createFuseLora());
  // Once all that has no length is done: every later pass counts bytes.
  SpecializeShapesOptions shapes;
  shapes.batch = options.batch / options.chunks * options.linesOfRow;
  llvm::append_range(shapes.lengths, options.lengths);
  llvm::append_range(shapes.buckets, options.buckets);
  shapes.computeType = options.computeType;
  pm.addPass(createSpecializeShapes(shapes));
  // Before the gradient, which follows from what each rank computes.
  pm.addPass(createShardProducts({options.tensorRanks}));
  pm.addPass(createShardContext({options.contextRanks}));
  pm.addPass(createShardExperts({options.expertRanks}));
  if (options.sequenceParallel)
    pm.addPass(createShardSequence());
  // Once it is known of what a rank uses parts, on all stages. From here on the
  // flat arenas are of pieces.
  DivideTrainedOptions divide;
  divide.ranks = std::max(options.shards, options.trainedPieces);
  divide.adapters = options.trainedPieces > 1;
  pm.addPass(createDivideTrained(divide));
  CutStagesOptions cut;
  cut.stages = options.stages;
  cut.parts = options.stageParts;
  cut.stage = options.stage;
  cut.speeds.assign(options.stageSpeeds.begin(), options.stageSpeeds.end());
  cut.deviceMap = options.deviceMap;
  cut.memoryLimit = options.memoryLimit;
  cut.target = options.target;
  cut.profile = options.deviceProfile;
  pm.addPass(createCutStages(cut));
}

//===----------------------------------------------------------------------===//
// step: forward and backward
//===----------------------------------------------------------------------===//

static void buildStep(OpPassManager &pm, const CompileOptions &options,
                      const MemoryBudget &) {
  pm.addPass(createBuildTrainStep({options.updatePieces, options.runRanks}));
  // Sums of gradients are explicit adds until here.
  if (options.isEnabled("fuse-accumulate"))
    pm.addNestedPass<train::StepOp>(createFuseAccumulate());
}

//===----------------------------------------------------------------------===//
// optimize: memory and time, on tensors
//===----------------------------------------------------------------------===//

/// What is of the whole batch, after what is decided for one chunk of it.
static void buildExchange(OpPassManager &pm, const CompileOptions &options,
                          const MemoryBudget &budget) {
  UnrollMicroBatchesOptions unroll;
  unroll.chunks = budget.chunks ? budget.chunks : options.chunks;
  unroll.lines = options.linesOfRow;
  unroll.parts = options.stageParts;
  unroll.allForwardsFirst = options.allForwardsFirst;
  pm.addNestedPass<train::StepOp>(createUnrollMicroBatches(unroll));
  // In the order in which gradients finish.
  BucketGradientsOptions buckets;
  buckets.maxBuckets =
      options.isEnabled("bucket-gradients") ? options.maxBuckets : int64_t(1);
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
  // A copy of all that is trained is more than the tightest limits leave.
  if (options.isEnabled("round-adapters") && !budget.onlyPanels &&
      targetTraits(options.target)->roundsBeforeGemms)
    pm.addPass(createRoundAdapters());
  // Before rematerialize, so that it weighs what really waits.
  if (options.loraActivations == "int8")
    pm.addNestedPass<train::StepOp>(createEncodeActivations());
  // Before rematerialize too: what waits on the host takes no memory, and is there
  // for what is computed again. Of single ops, as rematerialize prices them.
  if (budget.copiedValues != "none") {
    OffloadActivationsOptions offload;
    offload.values = budget.copiedValues;
    offload.blocks = options.checkpointing;
    offload.weights = budget.offloadBase ? options.shards : 0;
    offload.target = options.target;
    offload.profile = options.deviceProfile;
    pm.addNestedPass<train::StepOp>(createOffloadActivations(offload));
  }
  // While every value still has an op of its own to compute it again.
  RematerializeOptions remat;
  remat.budget = budget.activationBytes;
  remat.blocks = options.checkpointing;
  remat.target = options.target;
  remat.profile = options.deviceProfile;
  if (options.isEnabled("rematerialize"))
    pm.addNestedPass<train::StepOp>(createRematerialize(remat));
  // After recomputation, so that a recomputed use can share a decode.
  PlanDequantOptions dequant;
  dequant.form = options.isEnabled("plan-dequant") && !budget.onlyPanels
                     ? options.dequantForm
                     : std::string("panel");
  dequant.residentBytes = budget.residentBytes;
  dequant.target = options.target;
  dequant.profile = options.deviceProfile;
  pm.addPass(createPlanDequant(dequant));
  // Where what is decoded into scratch is known.
  if (options.isEnabled("concat-siblings") && !budget.siblingsApart &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createConcatSiblings());
  if (options.isEnabled("order-sums") &&
      targetTraits(options.target)->prefersWideGemms)
    pm.addNestedPass<train::StepOp>(createOrderSums());
  // Where each weight is read is final now, be it to be decoded.
  ShardVocabularyOptions tables;
  tables.shards = options.shards;
  tables.offloadTables = budget.offloadTables;
  tables.form = options.divideTables;
  pm.addPass(createShardVocabulary(tables));
  AssignShardsOptions shards;
  shards.shards = options.shards;
  shards.keepTrained = options.trainedPieces > 1;
  shards.offloadTables = budget.offloadTables;
  shards.offloadBase = budget.offloadBase;
  shards.room = budget.stayingBytes;
  pm.addPass(createAssignShards(shards));
  // Last of those that need single row ops; makes all of them `model.rows`.
  FuseRowsOptions rows;
  rows.fuse = options.isEnabled("fuse-rows");
  pm.addNestedPass<train::StepOp>(createFuseRows(rows));
  // The order of ops is final now.
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
  // Brings the workspaces, which the plan has to include.
  SelectKernelsOptions select;
  select.target = options.target;
  select.workspaces = budget.workspaces;
  pm.addPass(createSelectKernels(select));
  // Before the plan: what runs at the same time must not share memory.
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
  options.shards = 2;
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
      "fuse-lora",     "fuse-accumulate", "round-adapters",
      "rematerialize", "plan-dequant",    "fuse-rows",
      "bucket-gradients", "concat-siblings", "order-sums", "schedule-gathers",
      "assign-queues", "error-feedback"};
  return kOptional;
}
