#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

/// Two independent checksums of the bytes of a file.
struct FileChecksums {
  uint32_t crc32c = 0;
  uint64_t xxh3 = 0;  ///< XXH3, 64 bits, seed 0; `xxhsum -H3` prints it
  bool operator==(const FileChecksums&) const = default;
};

/// Computes FileChecksums piece by piece.
class FileDigest {
 public:
  FileDigest();
  ~FileDigest();
  FileDigest(const FileDigest&) = delete;
  FileDigest& operator=(const FileDigest&) = delete;
  void update(const void* data, size_t size_bytes);
  FileChecksums checksums() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
