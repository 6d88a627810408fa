#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// Whether a file is the one that it was: any change gives it another `status_ns`, which no program can set.
struct FileStamp {
  int64_t size_bytes = -1;  ///< -1: nothing is known
  int64_t changed_ns = 0;   ///< when its bytes were changed last, since 1970; programs can set it
  int64_t status_ns = 0;    ///< when anything of it was changed last, since 1970
  uint64_t inode = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Nothing if there is no regular file of this name, or it cannot be asked.
std::optional<FileStamp> file_stamp(const std::string& path);

/// A regular file, read at any place. Throws IoError if it cannot be opened or read. Not thread-safe.
class ImageFile {
 public:
  explicit ImageFile(const std::string& path);
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  const FileStamp& stamp() const { return stamp_; }  ///< as it was opened
  int64_t size_bytes() const { return stamp_.size_bytes; }
  int64_t changed_ns() const { return stamp_.changed_ns; }  ///< when it was changed last, since 1970
  /// Whether size and time of change are still those with which it was opened.
  bool is_unchanged() const;
  /// Bytes from `offset` on; fewer only at the end of the file.
  int64_t read(int64_t offset, std::span<uint8_t> destination) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  FileStamp stamp_;
};

}  // namespace lockstep::data
