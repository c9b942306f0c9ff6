// SPDX-License-Identifier: MIT

// Cached frozen weights of ranks with fsdp or tp shards. Each rank writes its
// own file. Later runs map the files if no rank's file is missing.

#include "runtime/Weights/QuantizedBase.h"

#include "runtime/Ranks/RankGroup.h"
#include "runtime/Weights/LoadWeights.h"
#include "runtime/Weights/Parameters.h"
#include "tests/runtime/Ranks/ThreadedRanks.h"
#include "tests/runtime/TemporaryFolder.h"
#include "tests/runtime/Weights/SliceTables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#define EXPECT_HAS(text, part)                                                 \
  EXPECT_NE((text).find(part), std::string::npos) << "in: " << (text)

namespace qlora {
namespace {

namespace fs = std::filesystem;

// The model's files are old enough that their modification times are trusted.
const std::string kModel =
    std::string(QLORA_TEST_INPUTS) + "/goldens/llama-nf4/model";
const std::vector<PieceParameter> kKeptRows = {
    {"model.layers.0.mlp.down_proj.weight",
     {64, 176},
     QLORA_QUANTIZATION_ON_LOAD,
     QLORA_DTYPE_BF16,
     QLORA_DTYPE_NF4,
     QLORA_DTYPE_NF4,
     64,
     true},
    {"model.layers.0.mlp.up_proj.weight",
     {176, 64},
     QLORA_QUANTIZATION_ON_LOAD,
     QLORA_DTYPE_BF16,
     QLORA_DTYPE_NF4,
     QLORA_DTYPE_NF4,
     64,
     true},
    {"model.norm.weight",
     {64},
     QLORA_QUANTIZATION_NONE,
     QLORA_DTYPE_BF16,
     QLORA_DTYPE_F32,
     0,
     0,
     false,
     0,
     /*isCut=*/false}};

/// Result of loading on one rank.
struct PieceRun {
  bool wasMapped = false;
  std::string file; ///< mapped file
  std::vector<uint8_t> arena;
  std::vector<std::string> remarks;
};

class KeptPieces : public testing::Test {
protected:
  /// Loads the weights as loadWeights() does. If there are more ranks than
  /// shards, fills each shard with its index instead of weights.
  Status load(const LoadedModule &module, RankGroup &group, PieceRun &run) {
    QLORA_ASSIGN_OR_RETURN(const ModelFiles model,
                           ModelFiles::open(folderOfModel));
    QLORA_ASSIGN_OR_RETURN(QuantizedBase base,
                           QuantizedBase::open(module, model, group, request));
    run.wasMapped = base.isFilled();
    run.file = base.mappedFile();
    EXPECT_EQ(base.share().size, 1u);
    const auto shards =
        static_cast<int>(module.table().mesh.fsdp * module.table().mesh.tp);
    ParameterSources sources;
    sources.model = &model;
    sources.shards = sources.slices = &group.collectives();
    HostArena arena(base.memory().bytes());
    if (!run.wasMapped && group.size() == shards)
      QLORA_RETURN_IF_ERROR(
          fillFrozen(module, sources, {}, QLORA_ARENA_FROZEN, arena));
    else if (!run.wasMapped)
      std::ranges::fill(base.memory().bytes(), group.rank() % shards);
    QLORA_RETURN_IF_ERROR(group.collectives().barrier());
    QLORA_RETURN_IF_ERROR(base.seal(model));
    const auto bytes = base.memory().bytes();
    run.arena.assign(bytes.begin(), bytes.end());
    base.finish();
    run.remarks = base.takeRemarks();
    return group.collectives().barrier();
  }

  /// Loads on `ranks` ranks; returns the results of all ranks.
  std::vector<PieceRun> start(int ranks, int shards) {
    return start(ranks, PieceTables(kKeptRows, static_cast<uint32_t>(shards)));
  }
  std::vector<PieceRun> start(int ranks, PieceTables tables) {
    auto module = tables.load();
    EXPECT_TRUE(module.isOk()) << module.status().message();
    std::vector<PieceRun> runs(static_cast<size_t>(ranks));
    runJob(ranks, /*shards=*/1, [&](RankGroup &group) {
      EXPECT_EQ(load(*module, group, runs[static_cast<size_t>(group.rank())])
                    .message(),
                "");
    });
    return runs;
  }
  std::vector<PieceRun> start() { return start(3, 3); }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto &entry : fs::directory_iterator(folder.path()))
      names.insert(entry.path());
    return names;
  }

  const TemporaryFolder folder;
  QuantizedBaseCacheRequest request{folder.path(), uint64_t{1} << 30};
  std::string folderOfModel = kModel;
};

void expectSame(const std::vector<PieceRun> &runs,
                const std::vector<PieceRun> &first, bool areMapped) {
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].wasMapped, areMapped) << i;
    EXPECT_EQ(runs[i].file.empty(), !areMapped) << i;
    EXPECT_EQ(runs[i].arena, first[i].arena) << i;
  }
}

TEST_F(KeptPieces, AreMappedByTheNextRun) {
  const std::vector<PieceRun> first = start();
  expectSame(first, first, false);
  EXPECT_NE(first[0].arena, first[1].arena);
  EXPECT_EQ(files().size(), 3u);
  const std::vector<PieceRun> second = start();
  expectSame(second, first, true);
  std::set<std::string> mapped;
  for (const PieceRun &run : second) {
    EXPECT_TRUE(run.remarks.empty());
    mapped.insert(run.file);
  }
  EXPECT_EQ(mapped, files());
  // Another number of shards uses other files, and so does the unsharded base.
  start(2, 2);
  EXPECT_EQ(files().size(), 5u);
  start(1, 1);
  EXPECT_EQ(files().size(), 6u);
}

TEST_F(KeptPieces, OneThatIsMissingIsMadeWithTheOthers) {
  const std::vector<PieceRun> first = start();
  const std::string lost = start()[1].file;
  const std::set<std::string> all = files();
  const std::string kept = *all.begin() == lost ? *all.rbegin() : *all.begin();
  const FileIdentity before = FileIdentity::at(kept).value();
  fs::remove(lost);
  const std::vector<PieceRun> second = start();
  expectSame(second, first, false);
  EXPECT_EQ(files(), all);
  // Valid files are not written again.
  EXPECT_EQ(FileIdentity::at(kept)->inode, before.inode);
  for (const PieceRun &run : second) {
    ASSERT_EQ(run.remarks.size(), 1u);
    EXPECT_EQ(run.remarks[0], "only 2 of 3 pieces of the quantized base are "
                              "cached; all are quantized again");
  }
  expectSame(start(), first, true);
}

TEST_F(KeptPieces, OneThatIsDamagedIsSaidByTheFirstRank) {
  const std::vector<PieceRun> first = start();
  const std::string damaged = start()[2].file;
  fs::resize_file(damaged, fs::file_size(damaged) - 1);
  const std::vector<PieceRun> second = start();
  expectSame(second, first, false);
  ASSERT_EQ(second[0].remarks.size(), 1u);
  EXPECT_HAS(second[0].remarks[0], damaged);
  EXPECT_HAS(second[0].remarks[0], "; the base is quantized again");
  expectSame(start(), first, true);
}

TEST_F(KeptPieces, ALimitIsForAllOfAMachine) {
  start();
  uint64_t bytes = 0;
  for (const std::string &file : files()) {
    bytes += fs::file_size(file);
    fs::remove(file);
  }
  request.limit = bytes - 1;
  const std::vector<PieceRun> over = start();
  EXPECT_TRUE(files().empty());
  ASSERT_EQ(over[0].remarks.size(), 1u);
  EXPECT_HAS(over[0].remarks[0], "is not cached for the next run: it has " +
                                     std::to_string(bytes) +
                                     " bytes, more than --base-cache-limit ");
  request.limit = bytes;
  start();
  EXPECT_EQ(files().size(), 3u);
}

/// With two groups on one machine, only the first group writes files. It needs
/// space for two files.
TEST_F(KeptPieces, GroupsShareFiles) {
  request.limit =
      2 * baseFileBytes(PieceTables(kKeptRows, 2).arenas[kDemoFrozen].bytes);
  const std::vector<PieceRun> first = start(4, 2);
  expectSame(first, first, false);
  EXPECT_EQ(files().size(), 2u);
  const std::vector<PieceRun> second = start(4, 2);
  expectSame(second, first, true);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(second[i].file, second[i % 2].file);
  EXPECT_NE(second[0].file, second[1].file);
}

/// Returns tables of a base that has a matrix in tp shards.
SliceTables slicedBase(uint32_t slices, std::vector<int64_t> segments) {
  return SliceTables({{kKeptRows[1], 0, std::move(segments)}, {kKeptRows[2]}},
                     slices);
}

TEST_F(KeptPieces, SlicesAreMappedByTheNextRun) {
  const auto first = start(4, slicedBase(4, {176}));
  expectSame(first, first, false);
  EXPECT_NE(first[0].arena, first[1].arena);
  EXPECT_EQ(files().size(), 4u);
  expectSame(start(4, slicedBase(4, {176})), first, true);
  // Shards of the same size but with other contents have other files.
  const auto others = start(4, slicedBase(4, {88, 88}));
  expectSame(others, others, false);
  EXPECT_NE(others[1].arena, first[1].arena);
  EXPECT_EQ(files().size(), 8u);
  // With two groups on one machine, only one group writes.
  start(4, slicedBase(2, {176}));
  EXPECT_EQ(files().size(), 10u);
}

/// All ranks have the same remark.
TEST_F(KeptPieces, OneRemarkIsOfAllRanks) {
  const TemporaryFolder fresh;
  fs::copy(kModel, fresh.path(), fs::copy_options::recursive);
  folderOfModel = fresh.path();
  const std::vector<PieceRun> first = start();
  ASSERT_EQ(first[0].remarks.size(), 1u);
  EXPECT_HAS(first[0].remarks[0], "was changed less than two seconds ago");
  EXPECT_TRUE(files().empty());
}

TEST_F(KeptPieces, NoneAreKeptWithoutAPlace) {
  request.place = QuantizedBaseCacheRequest::kNone;
  const std::vector<PieceRun> first = start();
  expectSame(start(), first, false);
  EXPECT_TRUE(first[0].remarks.empty());
}

} // namespace
} // namespace qlora
