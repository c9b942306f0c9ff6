// SPDX-License-Identifier: MIT

// Puts the decisions of the passes beside the plan.

#include "compiler/Report.h"

#include "llvm/Support/JSON.h"

using namespace mlir;

/// Each pass writes its decisions, as JSON, into an attribute of the module.
static constexpr std::pair<llvm::StringLiteral, llvm::StringLiteral>
    kDecisions[] = {{"rematerialize", "train.remat"},
                    {"plan-dequant", "train.dequant"},
                    {"bucket-gradients", "train.buckets"},
                    {"select-kernels", "program.selection"}};

static llvm::json::Value parsed(StringAttr attribute) {
  return llvm::cantFail(llvm::json::parse(attribute.getValue()),
                        "a pass writes JSON");
}

void qlora::writeReport(ModuleOp program, llvm::raw_ostream &stream) {
  llvm::json::Value report =
      parsed(program->getAttrOfType<StringAttr>("program.plan"));
  for (auto [pass, name] : kDecisions)
    if (auto decision = program->getAttrOfType<StringAttr>(name))
      report.getAsObject()->try_emplace(pass, parsed(decision));
  stream << llvm::formatv("{0:2}", report) << "\n";
}
