#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

/// A file of a public data set that configs/ reads, and by what its content is recognised, compressed or not.
struct KnownFile {
  std::string_view name;  ///< as configs name it
  std::string_view url;   ///< from where it is downloaded
  int64_t size_bytes;     ///< of the content
  uint64_t hash;          ///< hash64 of the content
};

/// "mnist": the test images and labels; "shakespeare": one text.
std::span<const KnownFile> known_files(std::string_view set);

/// Throws DataError, which says what was expected and found, if `path` does not hold `file`.
void require_known(const KnownFile& file, const std::string& path);

}  // namespace lockstep::data
