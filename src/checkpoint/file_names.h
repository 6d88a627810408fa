#pragma once

#include <string_view>

namespace lockstep::checkpoint {

// Names within a folder of checkpoints, shared by code that writes and code that finds them.
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kTemporarySuffix = ".tmp";  ///< never read; removed by the next writer
inline constexpr std::string_view kPreviousSuffix =
    ".previous";  ///< complete, being replaced by one of the same step

}  // namespace lockstep::checkpoint
