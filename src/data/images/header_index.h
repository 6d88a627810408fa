#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/image_list.h"
#include "data/images/image_store.h"

namespace lockstep::data {

/// What was found in an image file: all that is known of it before it is decoded, but its label.
struct KnownHeader {
  int64_t size_bytes = -1;  ///< -1: nothing is known
  int64_t changed_ns = 0;   ///< when the file was changed last, since 1970
  uint64_t beginning = 0;
  ImageHeader header;
  bool operator==(const KnownHeader&) const = default;
};

/// The headers of a list of images, in its order, kept in a file, so that a start asks for size and time of
/// change of each file, and reads those that are others. The file is of one list of paths, and counts only if
/// it has its checksum. Processes of a host share it: the first one reads headers, the others wait for it.
///
/// Nothing that happens to the file fails: what is not known is read.
class HeaderIndex {
 public:
  /// Makes the folder. If nothing is kept there for this list, waits until no other process reads the
  /// list's headers. Throws IoError if the folder cannot be made.
  HeaderIndex(const std::string& directory, const ImageList& list);
  ~HeaderIndex();
  HeaderIndex(const HeaderIndex&) = delete;
  HeaderIndex& operator=(const HeaderIndex&) = delete;

  /// What is known of an image if its file has the size and time of change that it had. Thread-safe.
  const KnownHeader* find(size_t image, const std::string& path) const;
  /// Keeps what is known now of all images, unless it was known before; lets other processes go on. Files
  /// that were changed in the last seconds are not kept: they may change again within a tick of the clock.
  void keep(std::vector<KnownHeader> headers);

 private:
  std::string path_;
  uint64_t list_;
  size_t count_;
  std::vector<KnownHeader> known_;  // empty: nothing
  int lock_ = -1;
};

/// The bytes of such a file. `list`: a hash of the paths.
std::string header_index_bytes(uint64_t list, const std::vector<KnownHeader>& headers);
/// Nothing if they are not what header_index_bytes() makes of `count` headers of this list.
std::optional<std::vector<KnownHeader>> headers_from_bytes(std::string_view bytes, uint64_t list,
                                                           size_t count);

}  // namespace lockstep::data
