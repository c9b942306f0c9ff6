// SPDX-License-Identifier: MIT

// A module of frozen parameters. Ranks have unsharded parameters or fsdp
// shards.

#ifndef QLORA_TESTS_RUNTIME_WEIGHTS_PIECETABLES_H
#define QLORA_TESTS_RUNTIME_WEIGHTS_PIECETABLES_H

#include <algorithm>
#include <vector>

#include "runtime/Kernels/Math/Stored.h"
#include "runtime/Weights/ConvertWeights.h"
#include "tests/runtime/DemoTables.h"

namespace qlora {

/// Names of parameters that are stacked from several tensors, which addStack()
/// writes or tests/Inputs/stored contains.
inline constexpr char kStacked[] = "stack\0stack.0\0stack.1";
inline constexpr char kStoredStack[] = "stored\0gptq.weight\0gptq_v2.weight";

/// The relevant fields of a row of the parameter table.
struct PieceParameter {
  const char *name;
  std::vector<int64_t> shape;
  uint32_t quantization;
  qlora_dtype file, type;
  uint32_t format = 0;
  int64_t block = 0;
  bool isDouble = false;
  uint32_t parts = 0;
  bool isCut = true;      ///< sharded if there are several ranks
  uint64_t moreBytes = 0; ///< additional bytes per shard
};

class PieceTables : public DemoTables {
public:
  /// Places the parameters one after another in the arena; the demo's adapter
  /// comes last.
  PieceTables(const std::vector<PieceParameter> &rows, uint32_t shards) {
    header.mesh.fsdp = shards;
    operands.clear();
    commands.clear();
    entries.clear();
    const qlora_parameter adapter = parameters[1];
    parameters.clear();
    uint64_t offset = 0;
    for (const PieceParameter &row : rows) {
      parameters.push_back(make(row, shards));
      parameters.back().offset = offset;
      offset += (arenaBytesOf(parameters.back()) + 63) / 64 * 64;
    }
    arenas[kDemoFrozen].bytes = offset;
    parameters.push_back(adapter);
  }

  /// Returns the entry of a parameter at offset 0 of its arena.
  static qlora_parameter make(const PieceParameter &row, uint32_t shards) {
    qlora_parameter p{};
    p.name = row.name;
    p.role = QLORA_ROLE_FROZEN;
    p.init = QLORA_INIT_FILE;
    p.arena = kDemoFrozen;
    p.rank = static_cast<uint32_t>(row.shape.size());
    std::ranges::copy(row.shape, p.shape);
    p.quantization = row.quantization;
    p.dtype = row.type;
    p.file_dtype = row.file;
    p.format = row.format;
    p.block = static_cast<uint32_t>(row.block);
    p.double_quant = row.isDouble;
    p.parts = row.parts;
    int64_t elements = 1;
    for (const int64_t extent : row.shape)
      elements *= extent;
    p.bytes = static_cast<uint64_t>(
        storedFormat(row.type)
            ? StoredLayout::of(row.type, elements, row.block, row.isDouble)
                  .bytes
            : elements * weightBytes(row.type));
    if (row.isCut && shards > 1)
      p.piece =
          ((p.bytes + shards - 1) / shards + 63) / 64 * 64 + row.moreBytes;
    return p;
  }
};

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_WEIGHTS_PIECETABLES_H
