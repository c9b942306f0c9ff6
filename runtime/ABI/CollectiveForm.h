// SPDX-License-Identifier: MIT

// The operands of each kind of collective, and the meaning of its `peer`.

#ifndef QLORA_RUNTIME_ABI_COLLECTIVEFORM_H
#define QLORA_RUNTIME_ABI_COLLECTIVEFORM_H

#include "runtime/ABI/module.h"

namespace qlora {

struct CollectiveForm {
  enum Peer { kNone, kRank, kPlaces };
  qlora_access target;    ///< access to operand 0
  bool hasSource = false; ///< whether there is an operand 1, which is read
  bool isSum = false;
  Peer peer = kNone; ///< kRank: rank in the group; kPlaces: offset, not 0
};

/// Indexed by enum qlora_collective.
inline constexpr CollectiveForm kCollectiveForms[QLORA_COLLECTIVE_COUNT] = {
    {QLORA_READ_WRITE, false, true},
    {QLORA_WRITE, true},
    {QLORA_WRITE, true, true},
    {QLORA_READ_WRITE, false, false, CollectiveForm::kRank},
    {QLORA_WRITE, true},
    {QLORA_READ, false, false, CollectiveForm::kPlaces},
    {QLORA_WRITE, false, false, CollectiveForm::kPlaces}};

} // namespace qlora

#endif // QLORA_RUNTIME_ABI_COLLECTIVEFORM_H
