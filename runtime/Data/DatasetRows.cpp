// SPDX-License-Identifier: MIT

// Finds rows in their files.

#include "runtime/Data/DatasetRows.h"

#include <algorithm>

namespace qlora {

int64_t DatasetRows::count() const {
  if (!chosen.empty())
    return static_cast<int64_t>(chosen.size());
  int64_t rows = 0;
  for (const TokenStore &store : *stores)
    rows += store.rows() / sides;
  return rows;
}

std::pair<const TokenStore *, int64_t> DatasetRows::find(int64_t row) const {
  int64_t number = chosen.empty() ? row : chosen[static_cast<size_t>(row)];
  const TokenStore *store = stores->data();
  for (; number >= store->rows() / sides; ++store)
    number -= store->rows() / sides;
  return {store, number * sides};
}

int64_t DatasetRows::length(int64_t row) const {
  const auto [store, number] = find(row);
  int64_t longest = 0;
  for (int64_t side = 0; side < sides; ++side)
    longest = std::max(longest, store->length(number + side));
  return longest;
}

int64_t DatasetRows::sumOfSides(int64_t row, int64_t (TokenStore::*of)(int64_t)
                                                 const) const {
  const auto [store, number] = find(row);
  int64_t sum = 0;
  for (int64_t side = 0; side < sides; ++side)
    sum += ((*store).*of)(number + side);
  return sum;
}

int64_t DatasetRows::tokens(int64_t row) const {
  return sumOfSides(row, &TokenStore::length);
}

int64_t DatasetRows::labels(int64_t row) const {
  return sumOfSides(row, &TokenStore::labels);
}

int64_t DatasetRows::answer(int64_t row) const {
  return sumOfSides(row, &TokenStore::answer);
}

} // namespace qlora
