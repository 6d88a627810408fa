#pragma once

#include <mpi.h>

#include <cstdint>

namespace lockstep::comm {

/// A message of any number of bytes as (count, datatype), since MPI 3 counts with an int: bytes up to
/// `largest_count` as they are, more as one element of a derived type. The type may go as soon as the
/// operation has started.
class ByteType {
 public:
  ByteType(int64_t size_bytes, int64_t largest_count);
  ~ByteType();
  ByteType(const ByteType&) = delete;
  ByteType& operator=(const ByteType&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace lockstep::comm
