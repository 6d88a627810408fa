#pragma once

#include <chrono>
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
  FileStamp stamp;
  uint64_t beginning = 0;
  ImageHeader header;
  bool operator==(const KnownHeader&) const = default;
};

/// Caches the headers of a list of images in a file. A start stats each image file, and reads only the
/// headers of files that changed. The index is of one list of paths, in its order, and has a checksum.
/// Processes of a host share it: the first one reads headers, the others wait as long as it makes progress.
/// The indexes used last stay in the folder.
///
/// A lost or damaged index is no error: headers are read again.
class HeaderIndex {
 public:
  /// Makes the folder. If nothing is kept there for this list, waits until no other process reads the
  /// list's headers, or the one that does has made no progress for `patience`. Throws IoError if the folder
  /// cannot be made, StopRequested if `stop_requested` (may be null) returns true meanwhile.
  HeaderIndex(const std::string& directory, const ImageList& list,
              std::chrono::milliseconds patience = std::chrono::seconds(60),
              bool (*stop_requested)() = nullptr);
  ~HeaderIndex();
  HeaderIndex(const HeaderIndex&) = delete;
  HeaderIndex& operator=(const HeaderIndex&) = delete;

  /// What is known of an image if its file has the stamp that it had. Thread-safe.
  const KnownHeader* find(size_t image, const std::string& path) const;
  /// Tells processes that wait that this one makes progress. Thread-safe.
  void get_on() const;
  /// Keeps what is known now of all images, unless it was known before; lets other processes go on. Files
  /// that were changed within `settling` before now are not kept: they may change again within a tick of the
  /// file system's clock.
  void keep(std::vector<KnownHeader> headers, std::chrono::nanoseconds settling);

 private:
  std::vector<KnownHeader> look() const;
  /// Takes the lock. Returns whether another process had it.
  bool wait(std::chrono::milliseconds patience, bool (*stop_requested)());
  void write(const std::vector<KnownHeader>& headers) const;

  std::string directory_, path_;
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
