#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

/// A file of a public data set that configs/ reads, and how its content is known again, compressed or not.
struct KnownFile {
  std::string_view name;  ///< as configs name it
  std::string_view url;   ///< where it is offered
  int64_t size_bytes;     ///< of the content
  uint64_t hash;          ///< hash64 of the content
};

/// "mnist": the test images and labels; "shakespeare": one text.
std::span<const KnownFile> known_files(std::string_view set);

/// Throws DataError if `path` holds something else than `file`, saying what was expected and found.
void require_known(const KnownFile& file, const std::string& path);

}  // namespace lockstep::data
