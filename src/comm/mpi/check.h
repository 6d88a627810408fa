#pragma once

#include <mpi.h>

#include <source_location>
#include <string>

namespace lockstep::comm {

/// MPI's own text for an error code.
std::string mpi_error_text(int status);

/// Throws CommError naming MPI's text and the place if `status` is not MPI_SUCCESS.
void check_mpi(int status, std::source_location where = std::source_location::current());

}  // namespace lockstep::comm
