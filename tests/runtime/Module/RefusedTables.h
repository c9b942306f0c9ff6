// SPDX-License-Identifier: MIT

// Returns the loader's error for the demo module after one change of its
// tables.

#ifndef QLORA_TESTS_RUNTIME_MODULE_REFUSEDTABLES_H
#define QLORA_TESTS_RUNTIME_MODULE_REFUSEDTABLES_H

#include <functional>
#include <string>

#include "tests/runtime/DemoTables.h"

namespace qlora {

/// Returns the message; empty if the module still loads.
inline std::string
errorAfter(const std::function<void(DemoTables &)> &change) {
  DemoTables tables;
  change(tables);
  auto module = tables.load();
  return module.isOk() ? "" : module.status().message();
}

#define EXPECT_REFUSED(change, part)                                           \
  EXPECT_NE(errorAfter([](DemoTables &t) { change; }).find(part),              \
            std::string::npos)                                                 \
      << "in: " << errorAfter([](DemoTables &t) { change; })

} // namespace qlora

#endif // QLORA_TESTS_RUNTIME_MODULE_REFUSEDTABLES_H
