// SPDX-License-Identifier: MIT

// Turns command tables into single launches.

#include "bench/MicroLaunches.h"

#include <algorithm>

#include "runtime/Module/CommandWork.h"

namespace qlora {

/// Segments per row, for attention launches with segments.
static constexpr int64_t kSegments = 4;

static LaunchKey keyOf(const KernelRequest &request) {
  LaunchKey key = {request.op - kernelOps().data()};
  for (const auto &dtype : request.dtypes)
    key.push_back(dtype ? *dtype : -1);
  key.insert(key.end(), request.constants.begin(), request.constants.end());
  return key;
}

static LaunchKey generatedKey(const LoadedModule &module,
                              const qlora_command &command) {
  const qlora_launch &launch = module.launches()[command.target];
  LaunchKey key = {-1, launch.kernel, launch.rows};
  const auto constants = module.constants(launch);
  key.insert(key.end(), constants.begin(), constants.end());
  for (const qlora_operand &operand : module.operands(command))
    key.push_back(int64_t(operand.bytes));
  return key;
}

/// Adds a launch. If the list has an equal launch, increases its count instead.
static void add(std::vector<MicroLaunch> &launches, MicroLaunch launch) {
  const auto found = std::ranges::find(launches, launch.key, &MicroLaunch::key);
  if (found == launches.end())
    launches.push_back(std::move(launch));
  else
    found->count += launch.count;
}

static void addCommands(const LoadedModule &module, qlora_entry_kind kind,
                        std::vector<MicroLaunch> &launches) {
  const auto entries = module.entries();
  const auto entry =
      std::ranges::find(entries, uint32_t(kind), &qlora_entry::kind);
  if (entry == entries.end())
    return;
  for (const qlora_command &command : module.commands(*entry)) {
    if (command.kind != QLORA_COMMAND_LAUNCH)
      continue;
    const qlora_launch &table = module.launches()[command.target];
    MicroLaunch launch;
    launch.label = table.label;
    launch.count = 1;
    launch.isUpdate = kind == QLORA_ENTRY_UPDATE;
    launch.command = &command;
    launch.planned = findLaunchRow(module, table);
    if (launch.planned)
      launch.request = makeRequest(module, command, *launch.planned->op);
    launch.key =
        launch.planned ? keyOf(launch.request) : generatedKey(module, command);
    add(launches, std::move(launch));
  }
}

static void addRequest(std::string label, const std::string &row,
                       KernelRequest request,
                       std::vector<MicroLaunch> &launches,
                       int64_t segments = 1) {
  MicroLaunch launch;
  launch.label = std::move(label);
  launch.segments = segments;
  launch.key = keyOf(request);
  if (segments > 1)
    launch.key.push_back(segments);
  launch.planned = findKernelRow(row);
  launch.request = std::move(request);
  add(launches, std::move(launch));
}

static void addDecodes(const LoadedModule &module,
                       std::vector<MicroLaunch> &launches) {
  for (const qlora_parameter &parameter : module.parameters())
    if (storedFormat(parameter.dtype))
      addRequest(
          fmt::format("decode of {}", parameter.name), "decode.cuda",
          microRequest("decode",
                       {{"w", qlora_dtype(parameter.dtype)},
                        {"out", QLORA_DTYPE_BF16}},
                       {parameter.shape[0], parameter.shape[1], parameter.block,
                        parameter.double_quant}),
          launches);
}

static void addAttention(const KernelRequest &found, int64_t length,
                         bool hasSegments, std::vector<MicroLaunch> &launches) {
  KernelRequest request = found;
  const int64_t tokens = found.constant("batch") * found.constant("length");
  request.constants[found.op->constantIndex("length")] = length;
  request.constants[found.op->constantIndex("batch")] =
      std::max<int64_t>(1, tokens / length);
  request.dtypes[found.op->operandIndex("segments")] =
      hasSegments ? std::optional(QLORA_DTYPE_I32) : std::nullopt;
  addRequest(fmt::format("{} T={}{}", found.op->name, length,
                         hasSegments ? ", segments" : ""),
             found.op->name + ".cudnn", std::move(request), launches,
             hasSegments ? kSegments : 1);
}

std::vector<MicroLaunch> microLaunches(const LoadedModule &module,
                                       std::span<const int64_t> lengths) {
  std::vector<MicroLaunch> launches;
  addCommands(module, QLORA_ENTRY_ACCUMULATE, launches);
  addCommands(module, QLORA_ENTRY_UPDATE, launches);
  addDecodes(module, launches);
  for (const char *op : {"attention", "attention_grad"}) {
    const auto found = std::ranges::find_if(launches, [&](const auto &launch) {
      return launch.planned && launch.planned->op->name == op;
    });
    if (found == launches.end())
      continue;
    const KernelRequest request = found->request; // `launches` grows
    for (const int64_t length : lengths)
      for (const bool hasSegments : {false, true})
        addAttention(request, length, hasSegments, launches);
  }
  return launches;
}

KernelRequest microRequest(
    const char *op,
    std::initializer_list<std::pair<std::string_view, qlora_dtype>> types,
    std::vector<int64_t> constants) {
  KernelRequest request{findKernelOp(op), {}, std::move(constants)};
  request.dtypes.resize(request.op->operands.size());
  for (const auto &[operand, type] : types)
    request.dtypes[request.op->operandIndex(operand)] = type;
  return request;
}

std::vector<MicroOperand> microOperands(std::span<const qlora_operand> given) {
  std::vector<MicroOperand> operands;
  for (const qlora_operand &operand : given) {
    operands.push_back({operand.bytes});
    // The only integers in generated kernels are positions.
    if (operand.dtype == QLORA_DTYPE_I32)
      operands.back().integer = [](uint64_t i) { return int32_t(i % 2048); };
  }
  return operands;
}

std::vector<MicroOperand> microOperands(const KernelRow &row,
                                        const KernelRequest &request,
                                        int64_t segments) {
  std::vector<MicroOperand> operands;
  const std::vector<uint64_t> bytes = row.op->operandBytes(request);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::string &name = row.op->operands[i].name;
    MicroOperand &operand = operands.emplace_back();
    operand.bytes =
        name == "workspace" ? row.workspaceBytes(request) : bytes[i];
    if (name == "segments")
      operand.integer = [=, length = request.constant("length")](uint64_t at) {
        return int32_t(1 + int64_t(at) % length * segments / length);
      };
    if (name == "ids" || name == "targets")
      operand.integer = [vocab = request.constant("vocab")](uint64_t at) {
        return int32_t(int64_t(at) * 7919 % vocab);
      };
  }
  return operands;
}

nlohmann::ordered_json describe(const LoadedModule &module,
                                const MicroLaunch &launch,
                                const DeviceProfile &rates,
                                const KernelRow *row) {
  std::vector<Work> works;
  std::string_view part;
  if (launch.command) {
    double longest = -1;
    for (const CommandKernel &kernel :
         kernelsOf(module, *launch.command, launch.isUpdate, rates, row)) {
      works.push_back(kernel.work);
      if (kernel.demand.seconds() > longest)
        part = stepPartName(kernel.part);
      longest = std::max(longest, kernel.demand.seconds());
    }
  } else {
    works = cudaKernelWork(launch.request, row);
    part = categoryOf(*launch.request.op) == WorkCategory::kDecode
               ? stepPartName(StepPart::kDecode)
               : stepPartName(StepPart::kAttention);
  }
  double bytes = 0, seconds = 0;
  for (const Work &work : works) {
    bytes += work.bytes;
    seconds += secondsOf(work, rates);
  }
  nlohmann::ordered_json line = {
      {"kind", "launch"}, {"label", launch.label},
      {"part", part},     {"count", launch.count},
      {"bytes", bytes},   {"predicted_microseconds", seconds * 1e6}};
  if (!launch.planned)
    return line;
  line["op"] = launch.request.op->name;
  line["flops"] = neededFlops(launch.request);
  for (size_t i = 0; i < launch.request.constants.size(); ++i)
    if (launch.request.op->kinds[i] != ConstantKind::kDouble)
      line["constants"][launch.request.op->constants[i]] =
          launch.request.constants[i];
  line["segments"] = launch.segments;
  return line;
}

} // namespace qlora
