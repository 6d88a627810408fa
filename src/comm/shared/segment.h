#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Memory that the ranks of a group on one host share: a file in /dev/shm. Its name is removed as soon as all
/// ranks have opened it, so that the memory is freed with the last process, however that ends. (A kill within
/// the milliseconds before leaves /dev/shm/lockstep-<process id of rank 0>-<random>.) Ranks that are threads
/// of one process share one mapping. Thread-safety: none is needed; users must synchronise access to the
/// bytes.
class SharedSegment {
 public:
  /// COLLECTIVE over `group`. All bytes are zero. The first `reserved_bytes` are allocated; the others only
  /// after reserve(), and writing them before could end the process (SIGBUS). Throws CommError on all ranks
  /// if a rank fails.
  static std::shared_ptr<SharedSegment> create(Communicator& group, int64_t total_bytes,
                                               int64_t reserved_bytes);

  SharedSegment(int file, int64_t total_bytes);  ///< maps `file`, which it owns from then on
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  void reserve(int64_t offset, int64_t size_bytes) const;  ///< throws CommError if there is no room

 private:
  int file_;
  int64_t total_bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep::comm
