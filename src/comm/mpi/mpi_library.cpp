#include "comm/mpi_library.h"

#include <mpi.h>

#include <array>

#include "comm/mpi/check.h"

namespace lockstep::comm {

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int size = 0;
  check_mpi(MPI_Get_library_version(text.data(), &size));
  return {text.data(), static_cast<size_t>(size)};
}

}  // namespace lockstep::comm
