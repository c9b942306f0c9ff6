// SPDX-License-Identifier: MIT

// Sizes of workspaces and their parts.

#include "runtime/Kernels/Requests/Workspaces.h"

#include <algorithm>

namespace qlora::requests {

static constexpr qlora_dtype kF32 = QLORA_DTYPE_F32;
static constexpr qlora_dtype kBF16 = QLORA_DTYPE_BF16;

// Matrix products ---------------------------------------------------------

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

/// Half of `extent`, at a multiple of `unit`.
static int64_t halve(int64_t extent, int64_t unit) {
  return ceilDivide(extent, 2 * unit) * unit;
}

/// Large enough that packing is cheap, small enough for 16 tasks.
static GemmTile wholeDepthTile(const GemmProblem &p) {
  static constexpr int64_t kTasks = 16, kRowUnit = 48, kColumnUnit = 48;
  GemmTile tile = {std::min<int64_t>(p.m, 6 * kRowUnit),
                   std::min<int64_t>(p.n, 8 * kColumnUnit),
                   p.k,
                   0,
                   0,
                   0};
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
  GemmTile tile = {std::min<int64_t>(p.m, 128),
                   std::min<int64_t>(p.n, 144),
                   std::min<int64_t>(p.k, 256),
                   0,
                   0,
                   0};
  if (p.a != kF32)
    tile.aBytes = packed(kF32, tile.rows, tile.depth).bytes();
  if (p.b != kF32)
    tile.bBytes = packed(kF32, tile.depth, tile.columns).bytes();
  if (p.c != kF32)
    tile.cBytes = packed(kF32, tile.rows, tile.columns).bytes();
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
  if (isFilled || !p.isDenseA() || p.a != kBF16)
    copies.a = packed(kBF16, p.m, copies.depth);
  if (isFilled || !p.isDenseB() || p.b != kBF16)
    copies.b = packed(kBF16, copies.depth, p.n);
  if (!p.isDenseC())
    copies.c = packed(kF32, p.m, p.n);
  return copies;
}

/// oneDNN 2.6 wants at most `most` for a thread in 9 of 10 shapes; with more,
/// fewer threads take part, or the product is tiled.
static Size libraryScratch(const GemmProblem &p, uint64_t most) {
  const auto padded = [](int64_t extent) { return Size(extent) + Size(63); };
  const Size shape = (padded(p.m) * padded(p.k) + padded(p.k) * padded(p.n) +
                      padded(p.m) * padded(p.n)) *
                     Size(4);
  return Size(static_cast<int64_t>(std::min<uint64_t>(shape.bytes(), most)));
}

/// `tile` for `slots` tasks, or `library` with the copies that it needs.
static Size workspaceOf(const GemmProblem &p, int64_t slots, Size library) {
  const Size tiles = Size(int64_t(GemmTile::of(p).bytes())) * Size(slots);
  const bool isF32 = p.a == kF32 && p.b == kF32 && p.c == kF32;
  if (!isF32 && !p.isBF16())
    return tiles;
  const GemmCopies copies = GemmCopies::of(p, /*fillsTiles=*/true);
  return largest(tiles, copies.a + copies.b + copies.c + library);
}

Size gemmWorkspace(const GemmProblem &p) {
  return workspaceOf(p, kGemmSlots,
                     libraryScratch(p, 512 * 1024) * Size(8));
}

Size sequentialGemmWorkspace(const GemmProblem &p, uint64_t most) {
  return workspaceOf(p, 1, libraryScratch(p, most)).aligned();
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
          typeOf(r, "a"),
          typeOf(r, "b"),
          typeOf(r, "c"),
          static_cast<float>(r.constantAsDouble("alpha")),
          static_cast<float>(r.constantAsDouble("beta")),
          /*mayRound=*/true};
}

PanelPlan PanelPlan::of(const KernelRequest &r) {
  /// So many rows keep a panel of sums in the cache next to a core.
  static constexpr int64_t kRows = 512;
  PanelPlan plan;
  plan.isForward = r.constant("transpose_w") != 0;
  plan.m = r.constant("m");
  plan.n = r.constant(plan.isForward ? "rows" : "columns");
  plan.k = r.constant(plan.isForward ? "columns" : "rows");
  plan.columns = std::min(r.constant("panel_columns"), plan.n);
  plan.rows = std::min(plan.m, kRows);
  plan.type = typeOf(r, "a");
  plan.alpha = static_cast<float>(r.constantAsDouble("alpha"));
  plan.decoded = packed(plan.type, plan.columns, plan.k);
  plan.sum = packed(kF32, plan.rows, plan.columns);
  plan.scratch =
      sequentialGemmWorkspace(plan.product(plan.rows, plan.columns));
  if (r.constant("lda") != plan.k)
    plan.dense = packed(plan.type, plan.m, plan.k);
  return plan;
}

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

// Attention ------------------------------------------------------------------

AttentionScratch AttentionScratch::of(const KernelRequest &r) {
  const int64_t length = r.constant("length"), dim = r.constant("dim");
  const bool isNarrow = typeOf(r, "q") != kF32;
  const bool isBF16 = typeOf(r, "q") == kBF16;
  AttentionScratch s;
  s.block = std::min(length, kAttentionBlock);
  const auto take = [&](int64_t elements) {
    const int64_t offset = s.elements;
    s.elements += ceilDivide(elements, 16) * 16;
    return offset;
  };
  s.scores = take(s.block * s.block);
  s.rowStates = take(5 * s.block);
  s.sum = take(s.block * dim);
  s.queries = take(isNarrow ? s.block * dim : 0);
  s.keys = take(isNarrow ? s.block * dim : 0);
  s.values = take(isNarrow ? s.block * dim : 0);
  s.narrowScores = take(isBF16 ? ceilDivide(s.block * s.block, 2) : 0);
  // What oneDNN 2.6 asks for at most: both operands, padded.
  s.library =
      take(isBF16 ? (s.block + 63) * (std::max(s.block, dim) + 63) : 0);
  s.libraryElements = s.elements - s.library;
  if (r.op->name != "attention_grad")
    return s;
  const Size partials = Size(r.constant("batch")) * Size(r.constant("heads")) *
                        Size(2) * Size(length) * Size(dim);
  const int64_t tasks = r.constant("batch") * r.constant("kv_heads");
  if (r.constant("heads") > r.constant("kv_heads") &&
      tasks < r.constant("slots") &&
      (partials * Size(4)).bytes() <= kMostAttentionPartials)
    s.partialElements = static_cast<int64_t>(partials.bytes());
  s.scoreGradients = take(s.block * s.block);
  s.outGradients = take(isNarrow ? s.block * dim : 0);
  s.outputs = take(isNarrow ? s.block * dim : 0);
  const bool hasOwnSums = isNarrow && s.partialElements == 0;
  s.keyGradients = take(hasOwnSums ? length * dim : 0);
  s.valueGradients = take(hasOwnSums ? length * dim : 0);
  return s;
}

} // namespace qlora::requests
