// SPDX-License-Identifier: MIT

// What one rank gets of the bytes of a whole tensor: a contiguous piece, or the
// parts of a slice, gathered. Any range of it can be copied out, so that it
// goes to its rank in windows and is nowhere a second copy.
//
// It is some sections, and zeros between them. A section is rows, each of the
// same runs of a row of the whole:
//
//   whole  row 0  ..AAA...BB.      section  AAABB
//          row 1  ..CCC...DD.               CCCDD

#ifndef QLORA_RUNTIME_WEIGHTS_BYTECUT_H
#define QLORA_RUNTIME_WEIGHTS_BYTECUT_H

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace qlora {

/// Of a row of the whole.
struct CutRun {
  uint64_t from, bytes;
};

/// Movable: it may have bytes of its own, which sections point to.
class ByteCut {
public:
  ByteCut() = default;
  ByteCut(ByteCut &&) = default;
  ByteCut &operator=(ByteCut &&) = default;

  /// `count` rows, `step` bytes apart from `whole` on, which outlives the cut;
  /// they begin at byte `at`. Nothing where the runs are empty.
  void addRows(uint64_t at, const uint8_t *whole, uint64_t step, uint64_t count,
               std::vector<CutRun> runs);
  /// Bytes of the cut's own, at `at`.
  void addOwn(uint64_t at, std::vector<uint8_t> bytes) {
    own = std::move(bytes);
    addRows(at, own.data(), 0, 1, {{0, own.size()}});
  }

  /// Bytes [at, at + out.size()) of the cut to `out`, which is zero.
  void copy(uint64_t at, std::span<uint8_t> out) const;

private:
  struct Section {
    uint64_t begin, bytes, row; ///< of the cut; `row`: of one
    const uint8_t *whole;
    uint64_t step;
    std::vector<CutRun> runs;

    void copy(uint64_t at, std::span<uint8_t> out) const;
  };
  std::vector<Section> sections;
  std::vector<uint8_t> own;
};

} // namespace qlora

#endif // QLORA_RUNTIME_WEIGHTS_BYTECUT_H
