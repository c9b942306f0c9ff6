// SPDX-License-Identifier: MIT

// The program dialect: the one header to include. The essay is in
// ProgramOps.td.

#ifndef QLORA_DIALECTS_PROGRAM_PROGRAM_H
#define QLORA_DIALECTS_PROGRAM_PROGRAM_H

#include "dialects/Model/Model.h"

#include "dialects/Program/ProgramDialect.h.inc"
#include "dialects/Program/ProgramEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Program/ProgramAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/Program/ProgramTypes.h.inc"
#define GET_OP_CLASSES
#include "dialects/Program/ProgramOps.h.inc"

#endif // QLORA_DIALECTS_PROGRAM_PROGRAM_H
