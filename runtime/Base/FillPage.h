// SPDX-License-Identifier: MIT

// Inserts data into a static HTML page, so that no C++ writes HTML. The page
// has two placeholders, in this order:
//
//   <script type="application/json" id="data">{{data}}</script>
//   <script>{{script}}</script>
//
// Names in the data cannot become markup: `<` is escaped in the JSON, and the
// scripts create text nodes (Elements.js). The pages' content security policy
// forbids them to fetch anything.

#ifndef QLORA_RUNTIME_BASE_FILLPAGE_H
#define QLORA_RUNTIME_BASE_FILLPAGE_H

#include <string>
#include <string_view>

namespace qlora {

/// Returns `page` with `json` and `script` in its placeholders.
std::string fillPage(std::string page, std::string_view json,
                     std::string_view script);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_FILLPAGE_H
