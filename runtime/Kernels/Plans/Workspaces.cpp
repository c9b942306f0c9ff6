// SPDX-License-Identifier: MIT

// Workspace sizes of the CPU kernels.

#include "runtime/Kernels/Plans/Workspaces.h"

#include <algorithm>

namespace qlora::plans {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

// Matmuls ---------------------------------------------------------------------

bool GemmProblem::isDenseA() const {
  return transposeA ? k == 1 || lda == m : m == 1 || lda == k;
}

bool GemmProblem::isDenseB() const {
  return transposeB ? n == 1 || ldb == k : k == 1 || ldb == n;
}

bool GemmProblem::isBF16() const {
  const bool hasBF16 = a == kBF16 || b == kBF16;
  const bool isA = a == kBF16 || (mayRound && a == kF32);
  const bool isB = b == kBF16 || (mayRound && b == kF32);
  return hasBF16 && isA && isB && (c == kBF16 || c == kF32);
}

static int64_t ceilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Returns half of `extent`, rounded up to a multiple of `unit`.
static int64_t halve(int64_t extent, int64_t unit) {
  return ceilDivide(extent, 2 * unit) * unit;
}

/// Returns a tile over the complete depth: large, so that packing is cheap, but
/// small enough that there are 16 tasks.
static GemmTile wholeDepthTile(const GemmProblem &p) {
  static constexpr int64_t kTasks = 16, kRowUnit = 48, kColumnUnit = 48;
  GemmTile tile = {std::min<int64_t>(p.m, 6 * kRowUnit),
                   std::min<int64_t>(p.n, 8 * kColumnUnit), p.k};
  while (ceilDivide(p.m, tile.rows) * ceilDivide(p.n, tile.columns) < kTasks) {
    if (tile.rows <= kRowUnit && tile.columns <= kColumnUnit)
      break;
    if (tile.rows > tile.columns)
      tile.rows = halve(tile.rows, kRowUnit);
    else
      tile.columns = halve(tile.columns, kColumnUnit);
  }
  return tile;
}

GemmTile GemmTile::of(const GemmProblem &p) {
  if (p.a == kF32 && p.b == kF32 && p.c == kF32)
    return wholeDepthTile(p);
  GemmTile tile = {std::min<int64_t>(p.m, 128), std::min<int64_t>(p.n, 144),
                   std::min<int64_t>(p.k, 256)};
  WorkspaceLayout layout;
  if (p.a != kF32)
    tile.a = layout.add(packed(kF32, tile.rows, tile.depth));
  if (p.b != kF32)
    tile.b = layout.add(packed(kF32, tile.depth, tile.columns));
  if (p.c != kF32)
    tile.c = layout.add(packed(kF32, tile.rows, tile.columns));
  tile.bytes = layout.end().bytes();
  return tile;
}

GemmCopies GemmCopies::of(const GemmProblem &p, bool fillsTiles) {
  GemmCopies copies;
  copies.depth = p.k;
  if (!p.isBF16())
    return copies;
  if (fillsTiles)
    copies.depth = std::max(p.k, kLeastTileDepth);
  const bool isFilled = copies.depth > p.k;
  WorkspaceLayout layout;
  if (isFilled || !p.isDenseA() || p.a != kBF16)
    copies.a = layout.add(packed(kBF16, p.m, copies.depth));
  if (isFilled || !p.isDenseB() || p.b != kBF16)
    copies.b = layout.add(packed(kBF16, copies.depth, p.n));
  if (!p.isDenseC())
    copies.c = layout.add(packed(kF32, p.m, p.n));
  copies.bytes = layout.end().bytes();
  return copies;
}

/// Returns an estimate of oneDNN's scratch per thread, at most `most` bytes.
/// For 9 of 10 shapes, oneDNN 2.6 needs no more. For other shapes, a GEMM runs
/// on fewer threads, or with the implementation `tiles` (Gemm.h).
static Size libraryScratch(const GemmProblem &p, uint64_t most) {
  const auto padded = [](int64_t extent) { return Size(extent) + Size(63); };
  const Size shape = (padded(p.m) * padded(p.k) + padded(p.k) * padded(p.n) +
                      padded(p.m) * padded(p.n)) *
                     Size(4);
  return Size(static_cast<int64_t>(std::min<uint64_t>(shape.bytes(), most)));
}

/// Returns the larger workspace of the two Gemm implementations: scratch of
/// tiles for `slots` tasks, or `library` bytes with copies of operands.
static Size workspaceOf(const GemmProblem &p, int64_t slots, Size library) {
  const Size tiles = Size(int64_t(GemmTile::of(p).bytes)) * Size(slots);
  const bool isF32 = p.a == kF32 && p.b == kF32 && p.c == kF32;
  if (!isF32 && !p.isBF16())
    return tiles;
  const GemmCopies copies = GemmCopies::of(p, /*fillsTiles=*/true);
  return largest(tiles, Size(int64_t(copies.bytes)) + library);
}

Size gemmWorkspace(const GemmProblem &p) {
  return workspaceOf(p, kGemmSlots, libraryScratch(p, 512 * 1024) * Size(8));
}

Size sequentialGemmWorkspace(const GemmProblem &p, uint64_t most) {
  return workspaceOf(p, 1, libraryScratch(p, most)).aligned();
}

uint64_t matmulWorkspace(const KernelRequest &r) {
  return gemmWorkspace(matmulProblem(r)).bytes();
}

GemmProblem matmulProblem(const KernelRequest &r) {
  return {r.constant("m"),
          r.constant("n"),
          r.constant("k"),
          r.constant("lda"),
          r.constant("ldb"),
          r.constant("ldc"),
          r.constant("transpose_a") != 0,
          r.constant("transpose_b") != 0,
          r.type("a"),
          r.type("b"),
          r.type("c"),
          static_cast<float>(r.constantAsDouble("alpha")),
          static_cast<float>(r.constantAsDouble("beta")),
          /*mayRound=*/true};
}

/// Returns why the row `streamed` refuses a request of `m` rows, with W^T or W.
static Reason streamedLimits(const KernelRequest &r, bool isTransposed,
                             std::string_view transpose) {
  if (r.constant("m") > StreamedPlan::kMostRows)
    return refusalOf(r, "m",
                     "be at most " + std::to_string(StreamedPlan::kMostRows));
  if (!isTransposed)
    return refusalOf(r, transpose, "be 1");
  return std::nullopt;
}

Reason matmul::streamed::limits(const KernelRequest &r) {
  if (r.constant("transpose_a"))
    return refusalOf(r, "transpose_a", "be 0");
  return streamedLimits(r, r.constant("transpose_b"), "transpose_b");
}

Reason panel_matmul::streamed::limits(const KernelRequest &r) {
  return streamedLimits(r, r.constant("transpose_w"), "transpose_w");
}

bool isStreamed(const KernelRequest &r) {
  return r.op->name == "matmul"         ? !matmul::streamed::limits(r)
         : r.op->name == "panel_matmul" ? !panel_matmul::streamed::limits(r)
                                        : false;
}

StreamedPlan StreamedPlan::of(const KernelRequest &r) {
  // Elements of W in a task: enough to outweigh starting it, and few enough for
  // some tasks.
  static constexpr int64_t kLeastElements = 16 * 1024, kTasks = 16,
                           kMostElements = 128 * 1024;
  const bool isPanel = r.op->name == "panel_matmul";
  const GemmProblem p = isPanel ? GemmProblem() : matmulProblem(r);
  StreamedPlan plan = {};
  plan.m = r.constant("m");
  plan.n = isPanel ? r.constant("rows") : p.n;
  plan.k = isPanel ? r.constant("columns") : p.k;
  plan.depth = ceilDivide(plan.k, kLanes) * kLanes;
  const int64_t elements = std::clamp(plan.n * plan.depth / kTasks,
                                      kLeastElements, kMostElements);
  plan.outputs = std::clamp(elements / plan.depth / kTile, int64_t(1),
                            kMostOutputs / kTile) *
                 kTile;
  // bf16 and f16 are not rounded to each other, only f32 to bf16.
  plan.rowType = isPanel || !p.isBF16() ? r.type("a") : kBF16;
  plan.weightType = isPanel ? r.type("a") : p.isBF16() ? kBF16 : p.b;
  WorkspaceLayout layout;
  plan.rows = layout.add(packed(kF32, plan.m, plan.depth));
  plan.total = layout.end();
  return plan;
}

uint64_t streamedWorkspace(const KernelRequest &r) {
  return StreamedPlan::of(r).total.bytes();
}

Int8Plan Int8Plan::of(const KernelRequest &r) {
  // Maximum codes in a panel, so that it stays in a core's cache.
  static constexpr int64_t kPanelNumbers = 128 * 1024;
  Int8Plan plan = {};
  plan.m = r.constant("m");
  plan.n = r.constant("rows");
  plan.k = r.constant("columns");
  plan.depth = ceilDivide(plan.k, kDepthUnit) * kDepthUnit;
  plan.columns = std::min(
      std::clamp<int64_t>(kPanelNumbers / plan.depth / kTile, 1, 16),
      ceilDivide(plan.n, kTile)) * kTile;
  const Size rows = ceilDivide(plan.m, kTile) * kTile;
  WorkspaceLayout slot;
  plan.row = slot.add(Size(plan.k) * Size(4));
  plan.panel = slot.add(Size(plan.columns) * Size(plan.depth) * Size(2));
  plan.sums = slot.add(Size(plan.columns) * Size(kRows) * Size(4));
  plan.lines = slot.add(Size(plan.columns) * Size(2 + kRows) * Size(4));
  plan.slotBytes = slot.end().bytes();
  WorkspaceLayout layout;
  plan.codes = layout.add(rows * Size(plan.depth) * Size(2));
  plan.scales = layout.add(Size(plan.m) * Size(4));
  plan.marks = layout.add(plan.k);
  plan.outliers = layout.add(Size(plan.k) * Size(4));
  plan.slots = layout.add(slot.end() * Size(kGemmSlots));
  plan.total = layout.end();
  return plan;
}

uint64_t int8Workspace(const KernelRequest &r) {
  return Int8Plan::of(r).total.bytes();
}

PanelPlan PanelPlan::of(const KernelRequest &r) {
  /// Maximum rows, so that a panel of sums stays in a core's cache.
  static constexpr int64_t kRows = 512;
  PanelPlan plan;
  plan.isForward = r.constant("transpose_w") != 0;
  plan.m = r.constant("m");
  int64_t shape[2] = {r.constant("rows"), r.constant("columns")};
  if (r.op->name == "grouped_matmul") {
    plan.groups = r.constant("groups");
    shape[r.constant("groups_last")] /= plan.groups;
  }
  plan.n = shape[!plan.isForward];
  plan.k = shape[plan.isForward];
  plan.columns = std::min(r.constant("panel_columns"), plan.n);
  plan.rows = std::min(plan.m, kRows);
  plan.type = r.type("a");
  plan.alpha = static_cast<float>(r.constantAsDouble("alpha"));
  WorkspaceLayout slot;
  plan.decoded = slot.add(packed(plan.type, plan.columns, plan.k));
  plan.sum = slot.add(packed(kF32, plan.rows, plan.columns));
  plan.scratch =
      slot.add(sequentialGemmWorkspace(plan.product(plan.rows, plan.columns)));
  plan.slotBytes = slot.end().bytes();
  WorkspaceLayout layout;
  layout.add(slot.end() * Size(plan.slots()));
  if (r.constant("lda") != plan.k)
    plan.dense = layout.add(packed(plan.type, plan.m, plan.k));
  plan.total = layout.end();
  return plan;
}

uint64_t panelWorkspace(const KernelRequest &r) {
  return PanelPlan::of(r).total.bytes();
}

uint64_t groupedWorkspace(const KernelRequest &r) { return panelWorkspace(r); }

GemmProblem PanelPlan::product(int64_t productRows,
                               int64_t productColumns) const {
  GemmProblem p = {};
  p.m = productRows;
  p.n = productColumns;
  p.k = k;
  p.lda = k;
  p.ldb = isForward ? k : productColumns;
  p.ldc = productColumns;
  p.transposeB = isForward;
  p.a = p.b = type;
  p.c = kF32;
  p.alpha = alpha;
  return p;
}

// Attention -------------------------------------------------------------------

AttentionScratch AttentionScratch::of(const KernelRequest &r) {
  const int64_t length = r.constant("length"), dim = r.constant("dim");
  const bool isNarrow = r.type("q") != kF32, isBF16 = r.type("q") == kBF16;
  const bool hasGradient = r.op->name == "attention_grad";
  AttentionScratch s;
  s.block = std::min(length, kAttentionBlock);
  WorkspaceLayout slot;
  const auto take = [&](bool isThere, int64_t rows, int64_t columns) {
    return isThere ? slot.add(packed(kF32, rows, columns)) : Part();
  };
  s.scores = take(true, s.block, s.block);
  s.rowStates = take(true, 5, s.block);
  s.sum = take(true, s.block, dim);
  s.queries = take(isNarrow, s.block, dim);
  s.keys = take(isNarrow, s.block, dim);
  s.values = take(isNarrow, s.block, dim);
  s.narrowScores = take(isBF16, ceilDivide(s.block * s.block, 2), 1);
  // oneDNN 2.6 needs at most padded copies of both operands.
  s.library = take(isBF16, s.block + 63, std::max(s.block, dim) + 63);
  const int64_t tasks = r.constant("batch") * r.constant("kv_heads");
  const Size partials = Size(r.constant("batch")) * Size(r.constant("heads")) *
                        Size(8) * Size(length) * Size(dim);
  const bool isSplit =
      hasGradient && r.constant("heads") > r.constant("kv_heads") &&
      tasks < r.constant("slots") && partials.bytes() <= kMostAttentionPartials;
  s.scoreGradients = take(hasGradient, s.block, s.block);
  s.slopes = take(hasGradient && r.constantAsDouble("cap") != 0, s.block,
                  s.block);
  s.outGradients = take(hasGradient && isNarrow, s.block, dim);
  s.outputs = take(hasGradient && isNarrow, s.block, dim);
  s.keyGradients = take(hasGradient && isNarrow && !isSplit, length, dim);
  s.valueGradients = take(hasGradient && isNarrow && !isSplit, length, dim);
  s.slotBytes = slot.end().bytes();
  WorkspaceLayout layout;
  s.slots = layout.add(slot.end() * Size(r.constant("slots")));
  if (isSplit)
    s.partials = layout.add(partials);
  s.total = layout.end();
  return s;
}

uint64_t attentionWorkspace(const KernelRequest &r) {
  return AttentionScratch::of(r).total.bytes();
}

CachedAttentionScratch CachedAttentionScratch::of(const KernelRequest &r) {
  const int64_t dim = r.constant("dim");
  const int64_t group = r.constant("heads") / r.constant("kv_heads");
  WorkspaceLayout slot;
  const auto take = [&](int64_t rows, int64_t columns) {
    return slot.add(packed(kF32, rows, columns));
  };
  CachedAttentionScratch s;
  s.queries = take(kCachedQueries * group, dim);
  s.outputs = take(kCachedQueries * group, dim);
  s.maxima = take(kCachedQueries, group);
  s.sums = take(kCachedQueries, group);
  s.keys = take(kCachedKeys, dim);
  s.values = take(kCachedKeys, dim);
  s.scores = take(group, kCachedKeys);
  s.rowValues = take(3, group);
  s.slotBytes = slot.end().bytes();
  return s;
}

uint64_t cachedAttentionWorkspace(const KernelRequest &r) {
  return (Size(int64_t(CachedAttentionScratch::of(r).slotBytes)) *
          Size(kCachedTasks))
      .bytes();
}

// Walks over rows -------------------------------------------------------------

uint64_t columnSumWorkspace(const KernelRequest &r) {
  return packed(kF32, kColumnSumPartials, r.constant("columns")).bytes();
}

uint64_t clipNormWorkspace(const KernelRequest &) {
  return kClipNormPartials * 8;
}

} // namespace qlora::plans
