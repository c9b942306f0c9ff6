/* SPDX-License-Identifier: MIT */

/* Kinds of collectives, groups of ranks and meshes: a part of the format of
 * train.so (module.h). Enums.def describes what each kind does and which ranks
 * a group has. */

#ifndef QLORA_RUNTIME_ABI_COLLECTIVE_H
#define QLORA_RUNTIME_ABI_COLLECTIVE_H

#include <stdint.h>

enum qlora_collective {
#define QLORA_COLLECTIVE(NAME, NUMBER, CASE, WORD) \
  QLORA_COLLECTIVE_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_COLLECTIVE_COUNT
};

enum qlora_group {
#define QLORA_GROUP(NAME, NUMBER, CASE, WORD, PLACE, ROWS, TITLE)              \
  QLORA_GROUP_##NAME = NUMBER,
#include "runtime/ABI/Enums.def"
  QLORA_GROUP_COUNT
};

/* Ranks along each axis of --parallel: 1 to 65535. A run with more ranks than
 * the mesh repeats it for data parallelism. */
typedef struct qlora_mesh {
#ifdef __cplusplus
#define QLORA_AXIS(NAME, GROUP, TRAITS, WORDS) uint32_t NAME = 1;
#else
#define QLORA_AXIS(NAME, GROUP, TRAITS, WORDS) uint32_t NAME;
#endif
#include "runtime/ABI/Enums.def"
} qlora_mesh;

#endif /* QLORA_RUNTIME_ABI_COLLECTIVE_H */
