// SPDX-License-Identifier: MIT

// Runs a program on N ranks that are threads of one process, and writes each
// rank's arenas after every phase of a step. partition.py compares layouts with
// this reference.
//
//   VirtualRanks TRAIN.so RANKS MODEL DATA.safetensors PER_STEP OUT.safetensors
//
// Each step distributes the next PER_STEP micro-batches of the file over the
// data-parallel ranks. The last step is as in training: a rank's last
// micro-batch runs ACCUMULATE_LAST, which reduces the gradients.
//
// In the other steps, all micro-batches run ACCUMULATE. ACCUMULATE_LAST then
// runs on padding, whose gradient is zero. So the gradient arena holds the
// input of the reduction first (`before`), and then its result (`gradient`).
//
// Tensors are called rank/step/what:
//
//   before     gradient arena before the reduction; not in the last step
//   gradient   gradient arena after the reduction, not divided by the labels
//   trainable, state, residual   arenas after the update, if there are any
//   start.state, start.residual   the same arenas before the step
//   sums       loss, labels, norm of the gradient
//
// Standard output is JSON: the tables of the TRAINABLE and STATE arenas, and
// for each rank, the first rank of its FSDP group. The group's ranks hold the
// shards of a tensor in order.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "runtime/Base/JsonText.h"
#include "runtime/Data/Dataset.h"
#include "runtime/Device/Program.h"
#include "runtime/Options/Options.h"
#include "runtime/Ranks/RankGroup.h"
#include "runtime/Ranks/Socket.h"
#include "runtime/Weights/LoadWeights.h"
#include "runtime/Weights/Safetensors.h"

using namespace qlora;

namespace {

constexpr int kSteps = 3;
constexpr auto kTimeout = std::chrono::seconds(60);
/// Largest noise that is added to each trainable value. Without noise, LoRA's B
/// would start at zero, and the gradients of A would be zero.
constexpr double kPerturbation = 0.05;

struct Job {
  std::string program, model, data, out;
  int ranks = 1;
  int64_t perStep = 1;
};

/// Ends the process on any failure, because other ranks would wait forever.
void check(const Status &status) {
  if (status.isOk())
    return;
  fmt::print(stderr, "VirtualRanks: {}\n", status.message());
  std::_Exit(1);
}
template <typename T> T take(StatusOr<T> value) {
  check(value.status());
  return std::move(*value);
}

/// Collects the tensors of all ranks. Thread-safe.
class Record {
public:
  void add(std::string name, std::vector<float> values) {
    const std::lock_guard lock(mutex);
    storage.push_back(std::move(values));
    const std::vector<float> &kept = storage.back();
    items.push_back({std::move(name),
                     SafetensorsDtype::kF32,
                     {static_cast<int64_t>(kept.size())},
                     {reinterpret_cast<const uint8_t *>(kept.data()),
                      kept.size() * sizeof(float)}});
  }
  Status write(const std::string &path) {
    return writeSafetensors(path, std::move(items), {});
  }

private:
  std::mutex mutex;
  std::deque<std::vector<float>> storage;
  std::vector<SafetensorsItem> items;
};

/// Returns a value in [-1, 1) that depends on the arguments only (splitmix64).
double noise(uint64_t seed, uint64_t index) {
  uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1;
}
uint64_t hashOf(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

class Rank {
public:
  Rank(const Job &job, RankGroup &group, LoadedModule loaded, Record &record)
      : job(job), group(group), module(std::move(loaded)), record(record),
        variants(take(CompiledVariants::of(module))) {
    check(options.applyRecorded(module.table().config_json));
    variants.vocabSize = options.recordedMetadata("vocab_size").get<int64_t>();
    data = take(openDataset(job.data, variants, {}));
    DeviceOptions wanted;
    wanted.collectives = group.groups();
    wanted.threads = 1;
    device = take(createDevice("cpu", wanted));
    load();
    perturb();
  }

  void run() {
    Program program(module, *device);
    for (int step = 0; step < kSteps; ++step)
      runStep(program, step);
  }

private:
  void load();
  void perturb();
  void runStep(Program &program, int step);
  MicroBatch read(int64_t number);
  int64_t mostLabels();
  qlora_step_block blockOf(int step) const;
  std::vector<uint8_t> bytesOf(uint32_t arena);
  void keep(int step, const char *what, qlora_arena_kind kind);

  const Job &job;
  RankGroup &group;
  LoadedModule module;
  Record &record;
  CompiledVariants variants;
  std::unique_ptr<Dataset> data;
  Options options;
  QuantizedBaseCacheRequest cache = {QuantizedBaseCacheRequest::kNone};
  LoadedWeights weights;
  std::unique_ptr<Device> device;
};

/// Loads the base as Session::loadBase does.
void Rank::load() {
  WeightRequest wanted{module, group, cache, job.model, "", 1, {}, nullptr};
  wanted.tokens = options.lengths("trainable_token_indices");
  Collectives &shards = group.collectives(QLORA_GROUP_FSDP);
  if (module.table().mesh.zero2 > 1)
    wanted.piece = static_cast<uint32_t>(shards.rank());
  if (module.table().mesh.fsdp > 1)
    wanted.shards = &shards;
  if (module.sliceRanks() > 1)
    wanted.slices = &group.collectives(sliceGroup(module));
  weights = take(loadWeights(wanted, *device));
  if (const qlora_entry *first = module.entry(QLORA_ENTRY_INITIALIZE))
    check(runEntry(*device, module, *first, {}));
}

/// Adds noise to the trainable parameters, the same on every rank.
void Rank::perturb() {
  const uint32_t arena = *module.arena(QLORA_ARENA_TRAINABLE);
  std::vector<uint8_t> bytes = bytesOf(arena);
  for (const qlora_parameter &parameter : module.parameters()) {
    if (parameter.arena != arena)
      continue;
    const uint64_t seed = hashOf(parameter.name);
    const uint64_t shard = group.number(QLORA_GROUP_FSDP) * parameter.piece;
    for (uint64_t at = 0; at < arenaBytesOf(parameter); at += sizeof(float)) {
      // Byte offset in the tensor; huge (wrapped) for bytes before the tensor.
      const uint64_t byte =
          parameter.piece ? shard + at - parameter.first : at;
      if (byte >= parameter.bytes)
        continue;
      float value;
      uint8_t *place = bytes.data() + parameter.offset + at;
      std::memcpy(&value, place, sizeof value);
      value += static_cast<float>(kPerturbation *
                                  noise(seed, byte / sizeof(float)));
      std::memcpy(place, &value, sizeof value);
    }
  }
  check(device->write(arena, 0, bytes));
}

std::vector<uint8_t> Rank::bytesOf(uint32_t arena) {
  std::vector<uint8_t> bytes(module.arenas()[arena].bytes);
  check(device->read(arena, 0, bytes));
  return bytes;
}

/// Records an arena as float32. 8-bit codes are recorded, too, but not used.
void Rank::keep(int step, const char *what, qlora_arena_kind kind) {
  const auto arena = module.arena(kind);
  if (!arena)
    return;
  const std::vector<uint8_t> bytes = bytesOf(*arena);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  record.add(fmt::format("{}/{}/{}", group.rank(), step, what),
             std::move(values));
}

MicroBatch Rank::read(int64_t number) {
  MicroBatch batch;
  check(data->readInOrder(number, batch));
  return batch;
}

/// Returns the largest number of labels of any micro-batch. The LM head
/// computes this many rows on all ranks.
int64_t Rank::mostLabels() {
  int64_t most = 0;
  for (int64_t i = 0; i < kSteps * job.perStep; ++i)
    most = std::max(most, read(i).labelCount());
  return most;
}

/// Returns the step block. An epsilon of 1 makes AdamW's steps nearly linear in
/// the gradient, so a wrong factor is visible. Clips the norm.
qlora_step_block Rank::blockOf(int step) const {
  qlora_step_block block = {};
  block.learning_rate = 1;
  block.beta1 = 0.9F;
  block.beta2 = 0.999F;
  block.one_minus_beta1 = 0.1F;
  block.one_minus_beta2 = 0.001F;
  block.epsilon = 1;
  block.max_grad_norm = 0.3F;
  block.bias_correction1 = static_cast<float>(1 - std::pow(0.9, step + 1));
  block.bias_correction2_sqrt =
      static_cast<float>(std::sqrt(1 - std::pow(0.999, step + 1)));
  block.update = static_cast<float>(step + 1);
  block.seed = 1;
  block.step = static_cast<uint64_t>(step);
  return block;
}

void Rank::runStep(Program &program, int step) {
  qlora_step_block block = blockOf(step);
  const int64_t most = mostLabels();
  const int64_t first = step * job.perStep, sharing = group.dataRanks();
  const bool endsWithPadding = step + 1 < kSteps;
  keep(step, "start.state", QLORA_ARENA_STATE);
  keep(step, "start.residual", QLORA_ARENA_RESIDUAL);
  for (int64_t i = group.dataRank(); i < job.perStep; i += sharing) {
    block.micro_batch = static_cast<uint64_t>(first + i);
    const MicroBatch batch = read(first + i);
    check(endsWithPadding || i + sharing < job.perStep
              ? program.accumulate(batch, most, block)
              : program.accumulateLast(batch, most, block));
  }
  if (endsWithPadding) {
    keep(step, "before", QLORA_ARENA_GRADIENT);
    MicroBatch padding;
    padding.clear({variants.batch, variants.lengths.back()});
    check(program.accumulateLast(padding, most, block));
  }
  keep(step, "gradient", QLORA_ARENA_GRADIENT);
  const LossSums sums = take(program.finishSums());
  check(program.update(block));
  const double norm = take(program.finishNorm());
  record.add(fmt::format("{}/{}/sums", group.rank(), step),
             {static_cast<float>(sums.loss()),
              static_cast<float>(sums.labels()), static_cast<float>(norm)});
  keep(step, "trainable", QLORA_ARENA_TRAINABLE);
  keep(step, "state", QLORA_ARENA_STATE);
  keep(step, "residual", QLORA_ARENA_RESIDUAL);
}

nlohmann::json tableOf(const LoadedModule &module, qlora_arena_kind kind) {
  nlohmann::json table = nlohmann::json::array();
  for (const qlora_parameter &parameter : module.parameters())
    if (module.arenas()[parameter.arena].kind == kind)
      table.push_back({{"name", parameter.name},
                       {"shape", wholeShapeOf(parameter)},
                       {"offset", parameter.offset},
                       {"bytes", parameter.bytes},
                       {"piece", parameter.piece},
                       {"first", parameter.first}});
  return table;
}

/// Prints rank 0's tables and the ranks' groups as JSON.
void describe(const Job &job, const LoadedModule &module) {
  nlohmann::json firsts = nlohmann::json::array();
  for (int rank = 0; rank < job.ranks; ++rank)
    firsts.push_back(module.groups().first(QLORA_GROUP_FSDP, rank));
  fmt::print("{}\n", dumpJson(nlohmann::json{
                         {"trainable", tableOf(module, QLORA_ARENA_TRAINABLE)},
                         {"state", tableOf(module, QLORA_ARENA_STATE)},
                         {"firsts", firsts}}));
}

/// Connects the ranks over a local socket, as in a real job.
void runRanks(const Job &job, Record &record) {
  FileDescriptor socket = take(listenOn("127.0.0.1", 0));
  RankEnvironment env;
  env.worldSize = env.localWorldSize = job.ranks;
  env.masterPort = take(portOf(socket));
  env.secret = "virtual";
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank)
    threads.emplace_back([&, rank] {
      LoadedModule module = take(LoadedModule::open(job.program));
      check(checkMesh(module, job.ranks));
      module.chooseRank(rank, job.ranks);
      RankEnvironment own = env;
      own.rank = own.localRank = rank;
      RankGroup group = take(RankGroup::join(
          own, rank == 0 ? std::move(socket) : FileDescriptor(), kTimeout,
          module.groups()));
      if (rank == 0)
        describe(job, module);
      Rank(job, group, std::move(module), record).run();
      // Wait, because other ranks treat a rank that ends as lost.
      check(group.collectives().barrier());
    });
  for (std::thread &thread : threads)
    thread.join();
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 7) {
    fmt::print(stderr, "usage: VirtualRanks TRAIN.so RANKS MODEL "
                       "DATA.safetensors PER_STEP OUT.safetensors\n");
    return 2;
  }
  const Job job{argv[1], argv[3],          argv[4],
                argv[6], std::atoi(argv[2]), std::atoll(argv[5])};
  Record record;
  runRanks(job, record);
  check(record.write(job.out));
  return 0;
}
