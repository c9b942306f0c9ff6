// SPDX-License-Identifier: MIT

// The order of the passes, with their default options: a changed order is a
// changed test. Pipeline.cpp has the reasons.

// RUN: qlora-opt %s --phase-adapt --phase-step --phase-optimize --phase-program --dump-pass-pipeline --split-input-file -o /dev/null 2>&1 | tr ',' '\n' | FileCheck %s
