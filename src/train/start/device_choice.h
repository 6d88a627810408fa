#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace lockstep::train {

/// The user's wish. automatic: GPUs if there are any, otherwise CPUs.
enum class DeviceWish { automatic, cpu, cuda };

struct DeviceRequest {
  DeviceWish wish = DeviceWish::automatic;
  bool allow_shared_gpu = false;
  std::function<void(const std::string& text)>
      say;  ///< told what was chosen and why, on rank 0; may be empty
};

/// Reads "auto", "cpu" or "cuda", the values of --device. Throws ConfigError for anything else.
DeviceWish device_wish_from_name(const std::string& name);

struct DeviceChoice {
  device::DeviceKind kind = device::DeviceKind::cpu;  ///< cpu or cuda
  int ordinal = 0;                                    ///< of the GPU, as this process counts them
  std::string reason;  ///< one line for the user; empty if the choice is what the user asked for
};

/// Chooses a rank's device: the only GPU that its process sees, or else the GPU whose number is the rank's
/// place among the ranks of its host (`local_rank` of `local_size`). If the user asks for CPUs, `probe` is
/// ignored. Throws DeviceError, which says what to do, if the user asks for GPUs and there are none, or too
/// few for the ranks of this host.
DeviceChoice choose_device(const DeviceRequest& request, const device::GpuProbe& probe, int local_rank,
                           int local_size);

/// What other ranks need to know of a rank's choice.
struct RankDevice {
  std::string host;     ///< as messages call it
  int host_number = 0;  ///< ranks of one machine have the same
  device::DeviceKind kind = device::DeviceKind::cpu;
  std::string name, uuid;  ///< of the GPU
  std::string libraries;   ///< that compute on it, with versions
  std::string reason;
};

/// Throws DeviceError if ranks of one job cannot work together: some on CPUs and some on GPUs; several on one
/// GPU, unless that is allowed; or, if bits matter (`reproducible`), on different GPUs or libraries.
void check_devices(const std::vector<RankDevice>& ranks, bool reproducible, bool allow_shared_gpu);

/// COLLECTIVE: all ranks choose, and learn whether their choices agree. `hosts`: numbers of the ranks' hosts;
/// `host`: this host's name. The first `choosers` ranks choose devices. The others, servers on their hosts'
/// processors, get the kind of rank 0's device. `probe` is called if GPUs may be used. Throws CollectiveError
/// on all ranks.
DeviceChoice agree_on_device(comm::Communicator& world, const DeviceRequest& request,
                             const std::function<device::GpuProbe()>& probe, const std::vector<int>& hosts,
                             const std::string& host, int choosers, bool reproducible);

}  // namespace lockstep::train
