// SPDX-License-Identifier: MIT

// The engines of a graph, modelled on those of real cuDNN
// (tests/runtime/CudnnPlan). A backward engine stores the gradient of the
// scores in its workspace if the graph expresses dQ as one matmul. If the graph
// has a sum of dQ in memory, the offered engine adds in any order. An engine
// with a fixed order is not offered: callers must request it by its number.
// Segments require sm_90.

#include "tests/cuda/Cudnn/Objects.h"

#include "tests/cuda/Driver/Settings.h"

#include <fmt/format.h>

namespace qlora::platform {

namespace attribute = cudnn_attribute;
namespace descriptor = cudnn_descriptor;

static constexpr int64_t kUsual = 0, kWasteful = 1, kOrderedBlackwell = 5,
                         kOrderedHopper = 6;
static constexpr size_t kHasOrderedHopper = 92500;

namespace {
/// Properties of a graph that decide which engines it has.
struct GraphMetadata {
  explicit GraphMetadata(const Descriptor &graph);

  int products = 0;
  bool hasSegments = false;
  /// The matmul whose result is dQ, in a backward graph. It reads the gradient
  /// of the scores. The matmul for dK reads the same values transposed.
  const Descriptor *queryGradient = nullptr;
  /// Bytes in bf16 of the values that are summed over groups of heads.
  uint64_t groupBytes = 0;

  bool isGradient() const { return products == 5 && queryGradient; }
  bool sumsInMemory() const {
    return TensorView(*queryGradient->named(attribute::kMatmulC)).type ==
           cudnn_data::kFloat;
  }
};
} // namespace

static bool reads(const Descriptor &operation, int kind,
                  const Descriptor *tensor) {
  return operation.kind == kind &&
         OperationView(operation).inputs.front() == tensor;
}

GraphMetadata::GraphMetadata(const Descriptor &graph) {
  const auto &operations =
      graph.attributes.at(attribute::kGraphOperations).descriptors;
  const auto isReadBy = [&](int kind, const Descriptor *tensor) {
    for (const auto &operation : operations)
      if (reads(*operation, kind, tensor))
        return true;
    return false;
  };
  for (const auto &operation : operations) {
    if (operation->kind == descriptor::kPointwiseOperation)
      hasSegments |=
          operation->named(attribute::kPointwiseDescriptor)
              ->get<int>(attribute::kPointwiseMode) == cudnn_pointwise::kEqual;
    if (operation->kind != descriptor::kMatmulOperation)
      continue;
    ++products;
    const Descriptor *result = operation->named(attribute::kMatmulC);
    if (isReadBy(descriptor::kReshapeOperation,
                 operation->named(attribute::kMatmulA)))
      queryGradient = operation.get();
    if (isReadBy(descriptor::kReductionOperation, result) &&
        TensorView(*result).type == cudnn_data::kBFloat16)
      groupBytes += uint64_t(TensorView(*result).elements()) * 2;
  }
}

static DescriptorPointer configOf(const DescriptorPointer &graph,
                                  int64_t index) {
  auto engine = std::make_shared<Descriptor>();
  engine->kind = descriptor::kEngine;
  engine->attributes[attribute::kEngineGraph] = {
      cudnn_type::kDescriptor, {}, {graph}};
  Values number = {cudnn_type::kInt64, std::vector<uint8_t>(8), {}};
  std::memcpy(number.bytes.data(), &index, sizeof index);
  engine->attributes[attribute::kEngineIndex] = number;
  engine->isFinal = true;
  auto config = std::make_shared<Descriptor>();
  config->kind = descriptor::kEngineConfig;
  config->attributes[attribute::kConfigEngine] = {
      cudnn_type::kDescriptor, {}, {engine}};
  config->isFinal = true;
  return config;
}

std::vector<DescriptorPointer> offeredConfigs(const DescriptorPointer &graph,
                                              int arch) {
  const GraphMetadata facts(*graph);
  if (facts.products == 2)
    return {configOf(graph, kWasteful), configOf(graph, kUsual)};
  const bool isStored = facts.isGradient() && !facts.sumsInMemory();
  if (!facts.isGradient() || (facts.hasSegments && arch != 90) ||
      (isStored && !settings().dnnStoresScores))
    return {};
  return {configOf(graph, kUsual)};
}

Refusal checkEngine(const Descriptor &engine, int arch) {
  const GraphMetadata facts(*engine.named(attribute::kEngineGraph));
  const int64_t index = engine.get<int64_t>(attribute::kEngineIndex);
  const bool isHopper = index == kOrderedHopper && arch == 90 &&
                        cudnnGetVersion() >= kHasOrderedHopper;
  const bool isBlackwell =
      index == kOrderedBlackwell && arch / 10 == 10 && !facts.hasSegments;
  if (facts.isGradient() && (facts.sumsInMemory() ? isHopper : isBlackwell))
    return {};
  return {kDnnNotSupported,
          fmt::format("no engine {} for this graph on sm_{}", index, arch)};
}

static int64_t indexOf(const Descriptor &config) {
  return config.named(attribute::kConfigEngine)
      ->get<int64_t>(attribute::kEngineIndex);
}

static GraphMetadata factsOf(const Descriptor &config) {
  return GraphMetadata(
      *config.named(attribute::kConfigEngine)->named(attribute::kEngineGraph));
}

uint64_t workspaceOf(const Descriptor &config) {
  const GraphMetadata facts = factsOf(config);
  const int64_t index = indexOf(config);
  if (!facts.isGradient())
    return index == kWasteful ? uint64_t(1) << 30 : 0;
  const TensorView scores(*facts.queryGradient->named(attribute::kMatmulA));
  const TensorView dq(*facts.queryGradient->named(attribute::kMatmulC));
  if (facts.sumsInMemory())
    return facts.groupBytes + (index == kOrderedHopper ? 16384 : 256);
  return facts.groupBytes + (index == kOrderedBlackwell
                                 ? uint64_t(dq.elements()) * 4
                                 : uint64_t(scores.elements()) * 2 + 256);
}

bool addsInAnyOrder(const Descriptor &config) {
  const GraphMetadata facts = factsOf(config);
  return facts.isGradient() && facts.sumsInMemory() &&
         indexOf(config) == kUsual;
}

} // namespace qlora::platform
