#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "data/data_options.h"

namespace lockstep::data {

/// Reads the bytes of a file from front to end. Inflates gzip, which it recognises by the first two bytes,
/// never by the name. Not thread-safe.
class ByteSource {
 public:
  /// `most_inflated`: the most bytes that gzip data may become; 0: default_most_inflated(). Throws IoError if
  /// the file cannot be opened.
  explicit ByteSource(const std::string& path, int64_t most_inflated = 0);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Reads up to `size_bytes`; fewer only at the end. Throws DataError for damaged gzip data and for gzip
  /// data that becomes too large, IoError otherwise.
  int64_t read(void* destination, int64_t size_bytes);
  /// The most bytes that can come out, so that a header's claim is checked before memory is allocated for it.
  int64_t most_bytes() const { return most_bytes_; }
  bool is_gzip() const { return inflater_ != nullptr; }
  /// Throws DataError if gzip data may not become as many bytes as a header claims: before memory is
  /// allocated.
  void require_may_hold(int64_t size_bytes) const;

 private:
  struct Inflater;
  int64_t read_raw(void* destination, int64_t size_bytes);
  int64_t read_inflated(void* destination, int64_t size_bytes);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int64_t most_bytes_ = 0, most_inflated_;
  std::unique_ptr<Inflater> inflater_;
};

/// A quarter of the memory that this process can have: growing a buffer to it takes twice as much for a
/// moment. What readers make of the bytes is not counted: rows of a table take several times as much, short
/// lines up to 50 times.
int64_t default_most_inflated();

/// All bytes of a file, inflated if it is gzip; then no more than `most_inflated` (see ByteSource).
std::vector<uint8_t> read_all_bytes(const std::string& path, int64_t most_inflated = 0);

/// `name` below `directory`, or `name` itself if it is absolute or `directory` is empty.
std::string path_in(const std::string& directory, const std::string& name);

/// Likewise below the folders of `options`. Throws IoError with all that was tried if no folder has it.
std::string data_file(const DataOptions& options, const std::string& name);

}  // namespace lockstep::data
