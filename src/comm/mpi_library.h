#pragma once

#include <string>

namespace lockstep::comm {

/// What the MPI that this program is linked with says of itself: "Open MPI v4.1.4, package: ...". Needs no
/// initialisation of MPI.
std::string mpi_library();

}  // namespace lockstep::comm
