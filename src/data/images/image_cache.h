#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "data/images/inspection.h"

namespace lockstep::data {

/// Copies of image files on a disk of this host, which several processes share. A copy has its own name only
/// once it is complete, and is compared with its checksum whenever it is read. It is of one path, size, time
/// of change and beginning, so that no other state of a file is taken for it.
///
/// Thread-safe. Nothing that happens to the folder fails a read: what cannot be kept, or is lost, is read
/// from where it is.
class ImageCache {
 public:
  /// Makes the folder. `limit_bytes`: what all copies may take. If nobody else uses the folder, removes what
  /// was left unfinished and, if `images` need the room, the oldest copies of others. Throws IoError if the
  /// folder cannot be made or used.
  ImageCache(const std::string& directory, int64_t limit_bytes,
             const std::vector<std::span<const InspectedImage>>& images);
  ~ImageCache();
  ImageCache(const ImageCache&) = delete;
  ImageCache& operator=(const ImageCache&) = delete;

  /// Whether there is a whole copy; it then is in `bytes`.
  bool read(const InspectedImage& image, std::vector<uint8_t>& bytes) const;
  /// Keeps the bytes of a file, unless there is no room.
  void keep(const InspectedImage& image, std::span<const uint8_t> bytes) const;
  /// That copies take, by the account that all processes share.
  int64_t used_bytes() const;

 private:
  struct Account;  // in memory that all processes share
  void tidy(const std::vector<std::span<const InspectedImage>>& images);
  bool reserve(int64_t size_bytes) const;
  void release(int64_t size_bytes) const;
  void give_up(const std::string& path, int error) const;
  std::string path_of(const InspectedImage& image) const;

  std::string directory_;
  int64_t limit_bytes_;
  int lock_ = -1;
  Account* account_ = nullptr;
  mutable std::atomic<bool> keeps_ = true;
  mutable std::atomic<int64_t> next_part_ = 0;
};

}  // namespace lockstep::data
