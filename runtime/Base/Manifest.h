// SPDX-License-Identifier: MIT

// A folder whose completeness can be verified. MANIFEST.json has the size and
// SHA-256 of every file, including subfolders, and metadata (`facts`).
//
//   {"format": 1, "facts": {...},
//    "files": {"adapter_config.json": {"bytes": 512, "sha256": "9f86..."},
//    ...}, "sha256": digest of the compact JSON text without this key}
//
// The manifest is written last: a folder without it is unfinished.

#ifndef QLORA_RUNTIME_BASE_MANIFEST_H
#define QLORA_RUNTIME_BASE_MANIFEST_H

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "runtime/Base/Status.h"

namespace qlora {

inline constexpr const char *kManifestFile = "MANIFEST.json";

/// Flushes the files of `folder` to the disk, then writes a manifest.
Status writeManifest(const std::string &folder,
                     const nlohmann::ordered_json &facts);

/// Checks all files that the manifest lists, and returns the metadata. Ignores
/// files that it does not list. Returns kNotFound if there is no manifest, or
/// kDataLoss with the name of a missing or damaged file.
StatusOr<nlohmann::ordered_json> verifyManifest(const std::string &folder);
/// Returns the metadata of a folder without checking its files.
StatusOr<nlohmann::ordered_json> readMetadata(const std::string &folder);

/// Returns the SHA-256 of `bytes` as 64 hexadecimal digits.
std::string sha256(std::string_view bytes);
StatusOr<std::string> sha256OfFile(const std::string &path);

} // namespace qlora

#endif // QLORA_RUNTIME_BASE_MANIFEST_H
