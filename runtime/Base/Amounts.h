// SPDX-License-Identifier: MIT

// Formats amounts for display in the tools' output.

#ifndef QLORA_RUNTIME_BASE_AMOUNTS_H
#define QLORA_RUNTIME_BASE_AMOUNTS_H

#include <cstdint>
#include <string>

namespace qlora {

std::string formatBytes(uint64_t bytes); ///< "18.2 GiB", "512 B"
std::string formatCount(uint64_t count); ///< "89,088"
/// Formats a count with its noun: "1 row", "2,000 rows".
std::string formatCounted(int64_t count, const char *one);
/// Formats a number of parameters: "1.7 M", "8.0 B".
std::string formatParameters(uint64_t count);
std::string formatDuration(double seconds); ///< "0:12:10"
std::string formatRate(double perSecond);   ///< "40.3k"
std::string formatShort(double value);      ///< "1.9e-4", "0.87"

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_AMOUNTS_H
