#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// A regular file, read at any place. Throws IoError if it cannot be opened or read. Not thread-safe.
class ImageFile {
 public:
  explicit ImageFile(const std::string& path);
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  int64_t changed_ns() const { return changed_ns_; }  ///< when it was changed last, since 1970
  /// Whether size and time of change are still those with which it was opened.
  bool is_unchanged() const;
  /// Bytes from `offset` on; fewer only at the end of the file.
  int64_t read(int64_t offset, std::span<uint8_t> destination) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0, changed_ns_ = 0;
};

}  // namespace lockstep::data
