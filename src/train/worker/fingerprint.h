#pragma once

#include <cstdint>
#include <string>

#include "device/device.h"

namespace lockstep::train {

/// What the bits of a run on CPUs depend on besides the config: the order of sums in our kernels, by a number
/// that changes with it, and the C library. Neither the processor's kind nor the number of threads is among
/// it. Two runs with equal fingerprints and equal math_hash have equal bits.
std::string arithmetic_fingerprint();

/// The same for a run on `device`. For a GPU: its model, the order of sums in our kernels for GPUs, the
/// libraries that compute there, the samples that kernels sum at once (BatchDivision), and the C library, by
/// which the host draws initial parameters.
std::string arithmetic_fingerprint(const device::Device& device, int64_t summed_samples);

/// The version of the C library, by which each rank, also one that only serves, computes the scalars of
/// updates.
std::string libc_version();

/// Version and content hash of the running program.
std::string binary_identity();

}  // namespace lockstep::train
