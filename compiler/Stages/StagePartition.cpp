// SPDX-License-Identifier: MIT

// Assigns layers to pipeline stages.

#include "compiler/Stages/StagePartition.h"

#include "compiler/Optimize/OpCost.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <nlohmann/json.hpp>

using namespace mlir;
using namespace qlora;
using namespace qlora::model;

/// Fraction of a device's memory for weights, as in Accelerate.
static constexpr double kForWeights = 0.9;

/// Returns the seconds of each layer. Ops before all layers count for the first
/// layer, and ops after all layers for the last.
static SmallVector<double> secondsOfLayers(func::FuncOp function,
                                           const DeviceProfile &device) {
  SmallVector<double> seconds;
  double waiting = 0;
  for (Operation &op : function.front().without_terminator()) {
    const int64_t layer = layerOf(&op);
    if (layer >= int64_t(seconds.size()))
      seconds.resize(layer + 1);
    (layer < 0 ? waiting : seconds[layer]) += secondsOf(&op, device);
    if (layer >= 0)
      seconds[layer] += std::exchange(waiting, 0);
  }
  if (!seconds.empty())
    seconds.back() += waiting;
  return seconds;
}

static SmallVector<int64_t> stagesOf(ArrayRef<int64_t> ends) {
  SmallVector<int64_t> stageOfLayer(ends.back());
  for (int64_t layer = 0, stage = 0; layer < ends.back(); ++layer) {
    while (layer >= ends[stage])
      ++stage;
    stageOfLayer[layer] = stage;
  }
  return stageOfLayer;
}

/// Minimizes the time of the slowest stage. Among equally fast partitions,
/// chooses the one with the most layers in the first stages.
static SmallVector<int64_t> balance(ArrayRef<double> seconds,
                                    const StagePartitionOptions &options) {
  const int64_t layers = seconds.size(), stages = options.stages;
  // slowest[s][l]: time of the slowest of the last s stages, if they have all
  // layers from l on. ends[s][l]: end of the first of these s stages.
  std::vector<std::vector<double>> slowest(
      stages + 1, std::vector<double>(layers + 1, HUGE_VAL));
  std::vector<std::vector<int64_t>> ends(
      stages + 1, std::vector<int64_t>(layers + 1, layers));
  slowest[0][layers] = 0;
  for (int64_t s = 1; s <= stages; ++s)
    for (int64_t first = 0; first < layers; ++first) {
      const double speed =
          options.speeds.empty() ? 1.0 : double(options.speeds[stages - s]);
      double own = 0;
      for (int64_t end = first + 1; end <= layers; ++end) {
        own += seconds[end - 1] / speed;
        const double all = std::max(own, slowest[s - 1][end]);
        if (all <= slowest[s][first] && all < HUGE_VAL) {
          slowest[s][first] = all;
          ends[s][first] = end;
        }
      }
    }
  SmallVector<int64_t> chosen;
  for (int64_t stage = 0, first = 0; stage < stages; ++stage)
    chosen.push_back(first = ends[stages - stage][first]);
  return stagesOf(chosen);
}

/// Returns the bytes of frozen weights that each layer's ops use. Ops before
/// all layers count for the first layer, and ops after all layers for the last.
static SmallVector<int64_t>
bytesOfLayers(ModuleOp module, func::FuncOp function, int64_t layers) {
  const SymbolTable symbols(module);
  SmallVector<int64_t> bytes(layers);
  Operation *firstOfLayers = nullptr;
  for (Operation &op : function.front())
    if (layerOf(&op) >= 0 && !firstOfLayers)
      firstOfLayers = &op;
  for (auto weight : function.getOps<WeightOp>()) {
    auto parameter = symbols.lookup<ParameterOp>(weight.getParameter());
    int64_t layer = layers - 1;
    for (Operation *user : weight->getUsers())
      layer = std::min(layer, layerOf(user) >= 0 ? layerOf(user)
                              : user->isBeforeInBlock(firstOfLayers)
                                  ? 0
                                  : layers - 1);
    if (!parameter.getTrainable())
      bytes[layer] += tensorBytes(tensorOf(weight));
  }
  return bytes;
}

/// Assigns as many layers as fit, from the first stage on.
static SmallVector<int64_t> fillInOrder(ArrayRef<int64_t> bytes,
                                        const StagePartitionOptions &options) {
  const int64_t layers = bytes.size();
  SmallVector<int64_t> ends;
  for (int64_t stage = 0, end = 0; stage < options.stages; ++stage) {
    const int64_t others = options.stages - stage - 1;
    double room =
        kForWeights * double(options.memoryLimit) - double(bytes[end]);
    ++end;
    while (end < layers - others && (others == 0 || room >= double(bytes[end])))
      room -= double(bytes[end++]);
    ends.push_back(end);
  }
  return stagesOf(ends);
}

namespace {
/// A device map of Accelerate.
class DeviceMap {
public:
  explicit DeviceMap(StringRef text)
      : entries(nlohmann::json::parse(text.str())) {}

  /// Returns the stage of the longest entry that is `name` or a parent module.
  std::optional<int64_t> stageOf(StringRef name) const {
    for (StringRef module = name;; module = module.rsplit('.').first) {
      if (auto found = entries.find(module.str()); found != entries.end())
        return found->get<int64_t>();
      if (!module.contains('.'))
        break;
    }
    auto all = entries.find("");
    return all == entries.end() ? std::nullopt
                                : std::optional(all->get<int64_t>());
  }

private:
  const nlohmann::json entries;
};
} // namespace

/// Returns the stage of each layer: the device to which the map assigns the
/// layer's weights that are in files.
static FailureOr<SmallVector<int64_t>>
followMap(ModuleOp module, func::FuncOp function, int64_t layers,
          const StagePartitionOptions &options) {
  const DeviceMap map(options.map);
  const SymbolTable symbols(module);
  SmallVector<int64_t> stageOfLayer(layers, -1);
  for (Operation &op : function.front().without_terminator())
    for (Value operand : op.getOperands()) {
      auto weight = operand.getDefiningOp<WeightOp>();
      if (!weight || layerOf(&op) < 0 ||
          !symbols.lookup<ParameterOp>(weight.getParameter()).getFile())
        continue;
      const StringRef name = weight.getParameter();
      const std::optional<int64_t> stage = map.stageOf(name);
      if (!stage)
        return emitError(module.getLoc())
               << "--device-map has no device for '" << name
               << "'; add its module, or \"\" for all other modules";
      int64_t &known = stageOfLayer[layerOf(&op)];
      if (known >= 0 && known != *stage)
        return emitError(module.getLoc())
               << "--device-map has '" << name << "' on device " << *stage
               << " and other weights of layer " << layerOf(&op)
               << " on device " << known << "; put each layer on one device";
      known = *stage;
    }
  for (int64_t layer = 0, before = 0; layer < layers; ++layer) {
    int64_t &stage = stageOfLayer[layer];
    stage = stage < 0 ? before : stage;
    if (stage < before || stage > before + 1 || (layer == 0 && stage != 0))
      return emitError(module.getLoc())
             << "--device-map has layer " << layer << " on device " << stage
             << "; use devices 0, 1, 2 and so on in the order of layers";
    before = stage;
  }
  if (stageOfLayer.back() + 1 != options.stages)
    return emitError(module.getLoc())
           << "--device-map has layers on " << stageOfLayer.back() + 1
           << " of its " << options.stages
           << " devices; put at least one on each";
  return stageOfLayer;
}

FailureOr<SmallVector<int64_t>>
qlora::partitionLayers(ModuleOp module, const StagePartitionOptions &options,
                       const DeviceProfile &device) {
  const auto lengthOf = [](func::FuncOp function) {
    return function->getAttrOfType<IntegerAttr>("model.length").getInt();
  };
  func::FuncOp longest;
  for (auto function : module.getOps<func::FuncOp>())
    if (!longest || lengthOf(function) > lengthOf(longest))
      longest = function;
  if (!longest)
    return SmallVector<int64_t>();
  const SmallVector<double> seconds = secondsOfLayers(longest, device);
  const int64_t layers = seconds.size();
  if (layers < options.stages)
    return longest.emitError("a pipeline of ")
           << options.stages
           << " stages needs as many layers, but the model has " << layers
           << "; use a smaller pp in --parallel, or fewer virtual stages";
  if (options.map == "balanced")
    return balance(seconds, options);
  if (options.map == "sequential")
    return fillInOrder(bytesOfLayers(module, longest, layers), options);
  return followMap(module, longest, layers, options);
}

LogicalResult
qlora::checkMapped(ModuleOp module, StringRef text,
                   const llvm::StringMap<SmallVector<int64_t>> &users) {
  if (!text.starts_with("{"))
    return success();
  const DeviceMap map(text);
  for (auto parameter : module.getOps<ParameterOp>()) {
    auto found = users.find(parameter.getSymName());
    const std::optional<int64_t> stage = map.stageOf(parameter.getSymName());
    if (!parameter.getFile() || found == users.end() || found->second.empty() ||
        !stage || llvm::is_contained(found->second, *stage))
      continue;
    return emitError(module.getLoc())
           << "--device-map has '" << parameter.getSymName() << "' on device "
           << *stage << ", but it is used on device " << found->second.front()
           << "; put modules before the layers on the first device, modules "
              "after them on the last";
  }
  return success();
}
