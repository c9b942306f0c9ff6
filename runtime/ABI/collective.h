/* SPDX-License-Identifier: MIT */

/* Kinds of collectives and groups of ranks: a part of the format of train.so
 * (module.h). Enums.def describes what each kind does and which ranks a group
 * has. */

#ifndef QLORA_RUNTIME_ABI_COLLECTIVE_H
#define QLORA_RUNTIME_ABI_COLLECTIVE_H

enum qlora_collective {
#define QLORA_COLLECTIVE(NAME, NUMBER, CASE, WORD) \
  QLORA_COLLECTIVE_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_COLLECTIVE_COUNT
};

enum qlora_group {
#define QLORA_GROUP(NAME, NUMBER, CASE, WORD) QLORA_GROUP_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_GROUP_COUNT
};

#endif /* QLORA_RUNTIME_ABI_COLLECTIVE_H */
