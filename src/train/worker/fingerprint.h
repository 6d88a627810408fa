#pragma once

#include <string>

#include "device/device.h"

namespace lockstep::train {

/// What the bits of a CPU run depend on besides the config: the instruction set that oneDNN dispatches to,
/// its version, the compiler's target and the number of threads within an op. Two runs with equal
/// fingerprints and equal math_hash have equal bits.
std::string arithmetic_fingerprint(int intra_op_threads);

/// The same for a run on `device`. For a GPU: its model, the libraries that compute there, and whatever the
/// host uses to draw initial parameters.
std::string arithmetic_fingerprint(const device::Device& device, int intra_op_threads);

/// The version of the C library, by which each rank, also one that only serves, computes the scalars of
/// updates.
std::string libc_version();

/// Version and content hash of the running program.
std::string binary_identity();

}  // namespace lockstep::train
