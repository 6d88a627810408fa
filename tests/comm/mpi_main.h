#pragma once

#include "comm/communicator.h"

namespace lockstep::comm {

/// The MPI environment of a test program whose main is mpi_main.cpp.
MpiEnvironment& test_environment();

}  // namespace lockstep::comm
