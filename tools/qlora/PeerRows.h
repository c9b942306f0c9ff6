// SPDX-License-Identifier: MIT

// The keys of other tools whose meaning a table can say: what each is here, and
// for which of its values.

#ifndef QLORA_TOOLS_QLORA_PEERROWS_H
#define QLORA_TOOLS_QLORA_PEERROWS_H

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace qlora {

struct PeerRow {
  const char *keys; ///< separated by spaces
  /// What the values are for; empty: the key is passed over.
  const char *option;
  /// Separated by spaces: "a=b" is b for us, "a" stays a, "*" is any other,
  /// which stays what it is. What is not among them is refused.
  const char *values;
  const char *words; ///< what it would do, and why not or what else to do
};

/// The row of a key, or null.
const PeerRow *findPeerRow(const std::string &key);

/// Every key of the table.
std::vector<std::string> peerRowKeys();

/// A scalar as the table's lists have it: false, not False; "none" for null.
std::string peerWordOf(const nlohmann::ordered_json &value);

/// One of the words for something that is not asked for.
bool isOffWord(const std::string &word);

} // namespace qlora

#endif // QLORA_TOOLS_QLORA_PEERROWS_H
