#include "comm/mpi/byte_type.h"

#include <array>

#include "comm/mpi/check.h"

namespace lockstep::comm {

ByteType::ByteType(int64_t size_bytes, int64_t largest_count) : count_(static_cast<int>(size_bytes)) {
  if (size_bytes <= largest_count) return;
  count_ = 1;
  const int64_t chunks = size_bytes / largest_count, rest = size_bytes % largest_count;
  MPI_Datatype chunk = MPI_DATATYPE_NULL, all_chunks = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(largest_count), MPI_BYTE, &chunk));
  check_mpi(MPI_Type_contiguous(static_cast<int>(chunks), chunk, &all_chunks));
  const std::array<int, 2> lengths{1, static_cast<int>(rest)};
  const std::array<MPI_Aint, 2> offsets{0, static_cast<MPI_Aint>(chunks * largest_count)};
  const std::array<MPI_Datatype, 2> types{all_chunks, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, lengths.data(), offsets.data(), types.data(), &type_));
  check_mpi(MPI_Type_commit(&type_));
  check_mpi(MPI_Type_free(&chunk));
  check_mpi(MPI_Type_free(&all_chunks));
}

ByteType::~ByteType() {
  if (type_ != MPI_BYTE) MPI_Type_free(&type_);
}

}  // namespace lockstep::comm
