#include "comm/mpi/check.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/error.h"

namespace lockstep::comm {

std::string mpi_error_text(int status) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(status, text.data(), &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", status);
  return std::string(text.data(), static_cast<size_t>(length));
}

void check_mpi(int status, std::source_location where) {
  if (status == MPI_SUCCESS) return;
  throw CommError(fmt::format("MPI failed with '{}' ({}:{}:{})", mpi_error_text(status), where.file_name(),
                              where.line(), where.column()));
}

}  // namespace lockstep::comm
