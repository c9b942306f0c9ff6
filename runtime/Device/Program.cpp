// SPDX-License-Identifier: MIT

// Writes inputs, runs entries, reads results.

#include "runtime/Device/Program.h"

#include <algorithm>
#include <cmath>

namespace qlora {

/// Returns "accumulate, command 17 (launch 'layers.0.mlp/glu')".
static std::string describe(const LoadedModule &module,
                            const qlora_entry &entry, size_t number,
                            const qlora_command &command) {
  std::string kind(commandName(command));
  if (command.kind == QLORA_COMMAND_LAUNCH)
    kind += fmt::format(" '{}'", module.launches()[command.target].label);
  return fmt::format("{}, command {} ({})", entryKindName(entry.kind), number,
                     kind);
}

Status runEntry(Device &device, const LoadedModule &module,
                const qlora_entry &entry, const qlora_step_block &step,
                bool onAllRanks, bool hasOneSegment) {
  QLORA_RETURN_IF_ERROR(device.begin(entry, step, onAllRanks, hasOneSegment));
  const auto commands = module.commands(entry);
  for (size_t i = 0; i < commands.size(); ++i) {
    Status status = device.enqueue(commands[i]);
    if (status.isOk())
      continue;
    // All queues must end before the error in `status` is returned.
    (void)device.synchronize();
    // A WAIT returns the error of the command that it waits for.
    if (commands[i].kind == QLORA_COMMAND_WAIT)
      return status.withContext(entryKindName(entry.kind));
    return status.withContext(describe(module, entry, i, commands[i]));
  }
  return device.synchronize().withContext(entryKindName(entry.kind));
}

StatusOr<const qlora_entry *> Program::find(qlora_entry_kind kind,
                                            const MicroBatch &batch) const {
  if (const qlora_entry *entry = module.entry(kind, batch.batch, batch.length))
    return entry;
  return Status::error(StatusCode::kInternal,
                       "no variant of {} for {} x {} tokens",
                       entryKindName(kind), batch.batch, batch.length);
}

template <typename T>
static std::span<const uint8_t> bytesOf(const std::vector<T> &values) {
  return {reinterpret_cast<const uint8_t *>(values.data()),
          values.size() * sizeof(T)};
}

/// Whether each sequence has only segment 1, with positions equal to indices.
static bool isPlain(const MicroBatch &batch) {
  for (int64_t i = 0; i < batch.batch * batch.length; ++i)
    if (batch.segments[i] > 1 ||
        (batch.segments[i] == 1 && batch.positions[i] != i % batch.length))
      return false;
  return true;
}

/// Whether MicroBatch::hasOneSegment holds for this batch.
static bool isOneSegmentALine(const MicroBatch &batch) {
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const bool isFirst = i % static_cast<size_t>(batch.length) == 0;
    if (batch.segments[i] > 1 ||
        (batch.segments[i] == 1 && !isFirst && batch.segments[i - 1] == 0))
      return false;
  }
  return true;
}

/// Returns targets for the prompts of sequences with chosen answers (the first
/// half of the batch): their loss includes prompts as well as answers.
static std::vector<int32_t> promptsOf(const MicroBatch &batch) {
  std::vector<int32_t> prompts(batch.ids.size(), kNoLabel);
  for (int64_t i = 0; i + 1 < batch.batch / 2 * batch.length; ++i)
    if (batch.targets[i] == kNoLabel && (i + 1) % batch.length != 0 &&
        batch.segments[i] != 0 && batch.segments[i + 1] == batch.segments[i])
      prompts[i] = batch.ids[i + 1];
  return prompts;
}

SequenceShard Program::sequenceShard() const {
  return {device.numberIn(QLORA_GROUP_CP), module.contextRanks()};
}

Status Program::writeInputs(const qlora_entry &entry, const MicroBatch &batch) {
  if (const auto *binding = module.binding(entry, QLORA_INPUT_DESIRABLE))
    QLORA_RETURN_IF_ERROR(device.write(binding->arena, binding->offset,
                                       bytesOf(batch.desirable)));
  const bool hasPrompts = module.binding(entry, QLORA_INPUT_PROMPTS);
  const std::vector<int32_t> prompts =
      hasPrompts ? promptsOf(batch) : std::vector<int32_t>();
  const std::vector<int32_t> lengths =
      module.binding(entry, QLORA_INPUT_LENGTHS) ? batch.segmentLengths()
                                                 : std::vector<int32_t>();
  const std::pair<qlora_binding_kind, const std::vector<int32_t> *> inputs[] = {
      {QLORA_INPUT_IDS, &batch.ids},
      {QLORA_INPUT_TARGETS, &batch.targets},
      {QLORA_INPUT_POSITIONS, &batch.positions},
      {QLORA_INPUT_SEGMENTS, &batch.segments},
      {QLORA_INPUT_PROMPTS, &prompts},
      {QLORA_INPUT_LENGTHS, &lengths}};
  for (const auto &[kind, values] : inputs) {
    const qlora_binding *binding = module.binding(entry, kind);
    if (binding) {
      QLORA_RETURN_IF_ERROR(
          device.write(binding->arena, binding->offset,
                       bytesOf(sequenceShard().cut(*values, batch.length))));
      continue;
    }
    bool isPacking =
        kind == QLORA_INPUT_POSITIONS || kind == QLORA_INPUT_SEGMENTS;
    if (isPacking && !isPlain(batch))
      return Status::invalid(
          "the data has several segments in a sequence, but '{}' was compiled "
          "without packing; compile it with --packing",
          module.path());
  }
  return Status::ok();
}

StatusOr<const qlora_binding *> Program::result(const qlora_entry &entry,
                                                qlora_binding_kind kind) const {
  if (const qlora_binding *binding = module.binding(entry, kind))
    return binding;
  return Status::dataLoss("'{}': the entry {} lacks result {}", module.path(),
                          entryKindName(entry.kind), static_cast<int>(kind));
}

Status Program::startFloat(const qlora_entry &entry, qlora_binding_kind kind) {
  QLORA_ASSIGN_OR_RETURN(const qlora_binding *binding, result(entry, kind));
  return device.startRead(binding->arena, binding->offset, sizeof(float));
}

StatusOr<double> Program::finishFloat() {
  float value = 0;
  QLORA_RETURN_IF_ERROR(device.finishRead(
      {reinterpret_cast<uint8_t *>(&value), sizeof value}));
  return static_cast<double>(value);
}

LossSums &LossSums::operator+=(const LossSums &other) {
  present |= other.present;
  for (size_t i = 0; i < values.size(); ++i)
    values[i] += other.values[i];
  return *this;
}

LossSums &LossSums::operator/=(double count) {
  for (double &value : values)
    value /= count;
  return *this;
}

/// Lists the program's statistics. Every entry that has some has all of these.
Program::Program(const LoadedModule &module, Device &device)
    : module(module), device(device),
      sums({QLORA_RESULT_LOSS_SUM, QLORA_RESULT_LABEL_COUNT}) {
  for (const qlora_binding_kind kind : kStatistics)
    if (!std::ranges::count(sums, kind) &&
        std::ranges::any_of(module.entries(), [&](const qlora_entry &entry) {
          return module.binding(entry, kind);
        }))
      sums.push_back(kind);
}

bool Program::hasRouterLoss() const {
  return std::ranges::count(sums, QLORA_RESULT_ROUTER_LOSS) > 0;
}

Status Program::startSums(const qlora_entry &entry) {
  for (qlora_binding_kind kind : sums)
    QLORA_RETURN_IF_ERROR(startFloat(entry, kind));
  return Status::ok();
}

StatusOr<LossSums> Program::finishFloats() {
  LossSums read;
  for (qlora_binding_kind kind : sums) {
    read.setPresent(kind);
    QLORA_ASSIGN_OR_RETURN(read[kind], finishFloat());
  }
  read[QLORA_RESULT_LOSS_SUM] += read.routers();
  return read;
}

/// Divides the sums by the number of ranks that have added equal sums:
/// tensor-parallel ranks and, for sums of whole sequences, context-parallel
/// ranks. In a pipeline, only the last stage has added sums.
StatusOr<LossSums> Program::finishSums() {
  QLORA_ASSIGN_OR_RETURN(LossSums read, finishFloats());
  return read /= module.tensorRanks() *
                 (read.isOfSequences() ? module.contextRanks() : 1);
}

/// Returns the number of labelled rows among this rank's tokens. With
/// `mostLabels` it is an upper bound: one cp shard may have all labels of a
/// sequence.
int64_t Program::labelsOf(const qlora_entry &entry, const MicroBatch &batch,
                          std::optional<int64_t> mostLabels) const {
  // Prompt tokens need the LM head too, but `mostLabels` does not count them.
  if (module.binding(entry, QLORA_INPUT_PROMPTS))
    return module.tokensOf(entry);
  if (mostLabels)
    return std::min(*mostLabels, module.tokensOf(entry));
  const std::vector<int32_t> own =
      sequenceShard().cut(batch.targets, batch.length);
  return std::ssize(own) - std::ranges::count(own, kNoLabel);
}

/// Writes inputs and runs the entry. `mostLabels` is empty if other ranks run
/// other entries.
Status Program::runOn(const qlora_entry &entry, const MicroBatch &batch,
                      std::optional<int64_t> mostLabels,
                      const qlora_step_block &step) {
  if (batch.hasOneSegment && !isOneSegmentALine(batch))
    return Status::error(StatusCode::kInternal,
                         "{}: a sequence has more than the one segment that "
                         "the data declared; please report it",
                         entryKindName(entry.kind));
  QLORA_RETURN_IF_ERROR(writeInputs(entry, batch));
  qlora_step_block block = step;
  block.labelled_rows =
      static_cast<uint32_t>(labelsOf(entry, batch, mostLabels));
  block.length_rsqrt = 1 / std::sqrt(static_cast<float>(batch.longestRow()));
  return runEntry(device, module, entry, block, mostLabels.has_value(),
                  batch.hasOneSegment);
}

Status Program::accumulate(const MicroBatch &batch,
                           std::optional<int64_t> mostLabels,
                           const qlora_step_block &step) {
  QLORA_ASSIGN_OR_RETURN(const qlora_entry *entry,
                         find(QLORA_ENTRY_ACCUMULATE, batch));
  return runOn(*entry, batch, mostLabels, step);
}

Status Program::accumulateLast(const MicroBatch &batch,
                               std::optional<int64_t> mostLabels,
                               const qlora_step_block &step) {
  QLORA_ASSIGN_OR_RETURN(const qlora_entry *entry,
                         find(QLORA_ENTRY_ACCUMULATE_LAST, batch));
  QLORA_RETURN_IF_ERROR(runOn(*entry, batch, mostLabels, step));
  return startSums(*entry);
}

Status Program::readSums(const MicroBatch &batch) {
  QLORA_ASSIGN_OR_RETURN(const qlora_entry *entry,
                         find(QLORA_ENTRY_ACCUMULATE_LAST, batch));
  return startSums(*entry);
}

Status Program::update(const qlora_step_block &step) {
  const qlora_entry *entry = module.entry(QLORA_ENTRY_UPDATE);
  QLORA_RETURN_IF_ERROR(runEntry(device, module, *entry, step));
  return startFloat(*entry, QLORA_RESULT_GRAD_NORM);
}

Status Program::switchTo(qlora_entry_kind kind, const qlora_step_block &step) {
  const qlora_entry *entry = module.entry(kind);
  return entry ? runEntry(device, module, *entry, step) : Status::ok();
}

Status Program::readCorrect(const qlora_entry &entry, const MicroBatch &batch,
                            std::vector<int32_t> &correct) {
  const qlora_binding *binding = module.binding(entry, QLORA_RESULT_CORRECT);
  correct.assign(static_cast<size_t>(module.tokensOf(entry)), 0);
  if (binding)
    QLORA_RETURN_IF_ERROR(
        device.read(binding->arena, binding->offset,
                    {reinterpret_cast<uint8_t *>(correct.data()),
                     correct.size() * sizeof(int32_t)}));
  correct = sequenceShard().place(correct, batch.length);
  return Status::ok();
}

Status Program::evaluate(const MicroBatch &batch,
                         std::optional<int64_t> mostLabels,
                         const qlora_step_block &step, LossSums &sums,
                         std::vector<int32_t> &correct) {
  QLORA_ASSIGN_OR_RETURN(const qlora_entry *entry,
                         find(QLORA_ENTRY_EVALUATE, batch));
  qlora_step_block block = step;
  block.mean_labels = static_cast<float>(batch.labelCount());
  QLORA_RETURN_IF_ERROR(runOn(*entry, batch, mostLabels, block));
  QLORA_RETURN_IF_ERROR(readCorrect(*entry, batch, correct));
  QLORA_RETURN_IF_ERROR(startSums(*entry));
  QLORA_ASSIGN_OR_RETURN(const LossSums own, finishFloats());
  sums += own;
  return Status::ok();
}

} // namespace qlora
