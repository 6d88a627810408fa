#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace lockstep::train {

/// What the user asks for. automatic: GPUs where there are any, otherwise CPUs.
enum class DeviceWish { automatic, cpu, cuda };

struct DeviceRequest {
  DeviceWish wish = DeviceWish::automatic;
  bool allow_shared_gpu = false;
  std::function<void(const std::string& text)>
      say;  ///< told what was chosen and why, on rank 0; may be empty
};

/// "auto", "cpu" or "cuda", as --device takes them. Throws ConfigError for anything else.
DeviceWish device_wish_from_name(const std::string& name);

struct DeviceChoice {
  device::DeviceKind kind = device::DeviceKind::cpu;  ///< cpu or cuda
  int ordinal = 0;                                    ///< of the GPU, as this process counts them
  std::string reason;  ///< one line for the user; empty where he has asked for just that
};

/// What a rank computes on. The only GPU that its process sees, or else the one whose number is its place
/// among the ranks of its host (`local_rank` of `local_size`). `probe` is not looked at where CPUs are asked
/// for. Throws DeviceError, saying what to do, where GPUs are asked for and there are none, or there are too
/// few for the ranks of this host.
DeviceChoice choose_device(const DeviceRequest& request, const device::GpuProbe& probe, int local_rank,
                           int local_size);

/// What the others need to know of a rank's choice.
struct RankDevice {
  std::string host;     ///< as messages call it
  int host_number = 0;  ///< ranks of one machine have the same
  device::DeviceKind kind = device::DeviceKind::cpu;
  std::string name, uuid;  ///< of the GPU
  std::string libraries;   ///< that compute on it, with versions
  std::string reason;
};

/// Throws DeviceError where ranks of one job cannot work together: some on CPUs and some on GPUs; where bits
/// matter
/// (`reproducible`), on different GPUs or libraries; or several on one GPU, unless that is allowed.
void check_devices(const std::vector<RankDevice>& ranks, bool reproducible, bool allow_shared_gpu);

/// COLLECTIVE: all ranks choose, and learn whether their choices agree. `hosts`: numbers of the ranks' hosts;
/// `host`: the own one's name. The first `choosers` ranks have devices of their own; what the others are told
/// is the kind of rank 0's, beside which they serve on their hosts' processors. `probe` is asked where GPUs
/// may be used. Throws CollectiveError on all ranks.
DeviceChoice agree_on_device(comm::Communicator& world, const DeviceRequest& request,
                             const std::function<device::GpuProbe()>& probe, const std::vector<int>& hosts,
                             const std::string& host, int choosers, bool reproducible);

}  // namespace lockstep::train
