// SPDX-License-Identifier: MIT

// Builds micro-batches from a schedule and token stores.

#include "runtime/Data/Dataset.h"

#include <algorithm>

#include "runtime/Data/KtoKlPairs.h"
#include "runtime/Data/RowSelection.h"
#include "runtime/Data/StoreIndexes.h"

namespace qlora {

static StatusOr<std::unique_ptr<Dataset>>
makeDataset(DatasetRows rows, const CompiledVariants &variants,
            const ScheduleOptions &options) {
  rows.sides = rows.isWhole() ? 1 : variants.sidesInFile();
  rows.hasMismatched = variants.isUnpaired && variants.sides == 2;
  const bool joinsRows =
      options.packing ||
      (!variants.buckets.empty() && options.stepPacking.value_or(true));
  rows.hasOneSegment =
      (rows.isWhole() || !joinsRows) &&
      std::ranges::none_of(*rows.stores, &TokenStore::hasSegments);
  const auto shared = std::make_shared<const DatasetRows>(std::move(rows));
  QLORA_ASSIGN_OR_RETURN(auto schedule,
                         Schedule::make(shared, variants, options));
  return std::make_unique<Dataset>(shared, std::move(schedule));
}

/// Refuses weights and a validation split for token files.
static Status checkMix(const DatasetRows::Stores &stores, const DataMix &mix) {
  const bool isOne = mix.files.size() == 1 && mix.files[0].weight == 1 &&
                     mix.validationSize == 0;
  for (size_t i = 0; i < stores.size() && !isOne; ++i)
    if (stores[i].isWhole())
      return Status::invalid(
          "'{}' has whole micro-batches, which do not support other files, "
          "weights or --val-set-size. Fix: use the file alone",
          mix.files[i].path);
  return Status::ok();
}

/// Checks that the program was compiled for the file's kind of rows.
static Status checkObjective(const TokenStore &store, const std::string &name,
                             const CompiledVariants &variants) {
  if (variants.isUnpaired && !store.isUnpaired())
    return Status::invalid(
        "'{}' does not say which answers are desirable, but the program was "
        "compiled with --rl kto. Fix: make it with qlora-data --unpaired, or "
        "compile without --rl",
        name);
  if (store.isUnpaired() && !variants.isUnpaired)
    return Status::invalid("'{}' has desirable and undesirable answers, but "
                           "the program was compiled without --rl kto. Fix: "
                           "compile with --rl kto, or name another file",
                           name);
  const bool wantsPairs = variants.sidesInFile() > 1;
  if (store.hasPairs() && store.rows() % 2 != 0)
    return Status::dataLoss("'{}' has pairs of answers, but an odd number of "
                            "rows ({}). Fix: make it again with qlora-data",
                            name, store.rows());
  if (store.isWhole() || store.hasPairs() == wantsPairs)
    return Status::ok();
  if (wantsPairs)
    return Status::invalid("'{}' has rows without a rejected answer, but the "
                           "program was compiled with --rl dpo, cpo or orpo. "
                           "Fix: make it with qlora-data --pairs, or compile "
                           "without --rl",
                           name);
  return Status::invalid("'{}' has pairs of answers, but the program was "
                         "compiled without --rl. Fix: compile with --rl dpo",
                         name);
}

Status openStores(DataMix &mix, const CompiledVariants &variants) {
  mix.stores = std::make_shared<DatasetRows::Stores>();
  if (mix.names.empty())
    for (const WeightedPath &file : mix.files)
      mix.names.push_back(file.path);
  for (size_t i = 0; i < mix.files.size(); ++i) {
    QLORA_ASSIGN_OR_RETURN(
        TokenStore store,
        TokenStore::open(mix.files[i].path, mix.names[i], variants));
    QLORA_RETURN_IF_ERROR(checkObjective(store, mix.names[i], variants));
    mix.stores->push_back(std::move(store));
  }
  return checkMix(*mix.stores, mix);
}

StatusOr<DataParts> openMix(DataMix mix, const CompiledVariants &variants,
                            const ScheduleOptions &options) {
  QLORA_RETURN_IF_ERROR(openStores(mix, variants));
  std::vector<TokenStore *> stores;
  for (TokenStore &store : *mix.stores)
    stores.push_back(&store);
  QLORA_RETURN_IF_ERROR(makeIndexes(stores, nullptr));
  return makeDatasets(mix, variants, options);
}

StatusOr<DataParts> makeDatasets(const DataMix &mix,
                                 const CompiledVariants &variants,
                                 const ScheduleOptions &options) {
  std::vector<RowSource> sources;
  bool isPlain = mix.validationSize == 0;
  for (size_t i = 0; i < mix.files.size(); ++i) {
    const TokenStore &store = (*mix.stores)[i];
    const double weight = mix.files[i].weight;
    sources.push_back(
        {mix.names[i],
         store.rows() / (store.isWhole() ? 1 : variants.sidesInFile()),
         weight});
    isPlain = isPlain && weight == 1;
  }
  QLORA_RETURN_IF_ERROR(checkRowNumbers(sources));
  RowSelection chosen;
  if (!isPlain) {
    QLORA_ASSIGN_OR_RETURN(
        chosen, selectRows(sources, mix.validationSize, options.seed));
  }
  DataParts parts;
  QLORA_ASSIGN_OR_RETURN(
      parts.training,
      makeDataset({mix.stores, std::move(chosen.training)}, variants, options));
  if (!chosen.validation.empty()) {
    QLORA_ASSIGN_OR_RETURN(
        parts.validation,
        makeDataset({mix.stores, std::move(chosen.validation)}, variants,
                    options));
  }
  return parts;
}

void Dataset::identify(ContentHash &hash) const {
  for (const TokenStore &store : *data->stores)
    store.identify(hash);
  const std::vector<uint32_t> &chosen = data->chosen;
  if (!chosen.empty())
    hash.addEach<int64_t>(std::ssize(chosen), [&](int64_t i) {
      return chosen[static_cast<size_t>(i)];
    });
}

StatusOr<std::unique_ptr<Dataset>> openDataset(const std::string &path,
                                               const CompiledVariants &variants,
                                               const ScheduleOptions &options) {
  QLORA_ASSIGN_OR_RETURN(DataParts parts,
                         openMix({{{path}}}, variants, options));
  return std::move(parts.training);
}

Status Dataset::fill(const BatchLayout &layout, MicroBatch &out) const {
  out.clear(layout.shape);
  out.hasOneSegment = data->hasOneSegment;
  for (size_t line = 0; line < layout.lines.size(); ++line) {
    int64_t offset = 0;
    int32_t segment = 1;
    for (int64_t row : layout.lines[line]) {
      const auto [store, number] = data->find(row);
      for (int64_t side = 0; side < data->sides; ++side)
        QLORA_RETURN_IF_ERROR(
            store->place(number + side,
                         static_cast<int64_t>(line) +
                             side * layout.shape.batch / data->sides,
                         offset, segment, out));
      ++segment;
      offset += data->length(row);
    }
  }
  if (data->hasMismatched && !data->isWhole())
    placeKtoKlPairs(static_cast<int64_t>(layout.lines.size()), out);
  if (data->hasMismatched)
    out.mismatchedLines = out.batch / 2;
  return Status::ok();
}

int64_t Dataset::labelsOf(const BatchLayout &layout) const {
  int64_t labels = 0;
  for (const std::vector<int64_t> &line : layout.lines)
    for (int64_t row : line)
      labels += data->labels(row);
  return labels * timesOfRow();
}

std::optional<int64_t>
Dataset::mostLabelsOf(const std::vector<BatchLayout> &round) const {
  std::optional<BatchShape> common;
  int64_t most = 0;
  for (const BatchLayout &layout : round) {
    if (common && layout.shape != *common)
      return std::nullopt;
    common = layout.shape;
    most = std::max(most, labelsOf(layout));
  }
  return most;
}

std::optional<int64_t> Dataset::mostLabelsInOrder(int64_t number,
                                                  const StepShape &shape) {
  return shape.inLockstep ? mostLabelsOf(rule->roundInOrder(number, shape))
                          : std::nullopt;
}

double Dataset::meanLabels(int64_t step, const StepShape &shape) {
  const int64_t rounds = rule->microBatches(step, shape) / shape.ranks;
  int64_t labels = 0, filled = 0;
  for (int64_t k = 0; k < rounds; ++k)
    for (const BatchLayout &layout : rule->round(step, k, shape)) {
      labels += labelsOf(layout);
      filled += std::ranges::any_of(
          layout.lines, [](const auto &line) { return !line.empty(); });
    }
  return static_cast<double>(labels) /
         static_cast<double>(std::max<int64_t>(1, filled));
}

std::optional<double> Dataset::paddingShare(const StepShape &shape) {
  constexpr int64_t kWalked = 4096;
  if (isWhole())
    return std::nullopt;
  int64_t tokens = 0, slots = 0, walked = 0;
  const int64_t steps = rule->stepsPerEpoch(shape.count());
  for (int64_t step = 0; step < steps && walked < kWalked; ++step) {
    const int64_t count = rule->microBatches(step, shape);
    for (int64_t index = 0; index < count; ++index, ++walked) {
      const BatchLayout layout = rule->at(step, index, shape);
      slots += layout.shape.batch * layout.shape.length;
      for (const std::vector<int64_t> &line : layout.lines)
        for (int64_t row : line)
          tokens += data->tokens(row) * timesOfRow();
    }
  }
  return 1 - static_cast<double>(tokens) / static_cast<double>(slots);
}

RowMatches countRowMatches(const MicroBatch &batch,
                           std::span<const int32_t> correct) {
  RowMatches matches;
  for (int64_t b = 0; b < batch.batch - batch.mismatchedLines; ++b) {
    int64_t begin = b * batch.length, end = begin + batch.length;
    for (int64_t t = begin; t < end;) {
      int64_t labelled = 0, right = 0, next = t;
      for (; next < end && batch.segments[next] == batch.segments[t]; ++next) {
        bool hasTarget = batch.targets[next] != kNoLabel;
        labelled += hasTarget;
        right += hasTarget && correct[next] != 0;
      }
      matches.rows += labelled > 0;
      matches.matched += labelled > 0 && right == labelled;
      matches.labels += labelled;
      matches.right += right;
      t = next;
    }
  }
  return matches;
}

} // namespace qlora
