#include <poll.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "doctor/arithmetic.h"
#include "doctor/check.h"
#include "doctor/check_process.h"
#include "doctor/data.h"
#include "doctor/gpu.h"
#include "doctor/host.h"
#include "doctor/launcher.h"
#include "doctor/memory.h"
#include "doctor/network.h"
#include "doctor/storage.h"

namespace lockstep::doctor {
namespace {

constexpr bool kNotInJobs = false;
// All run at once, so that the longest limit is the command's.
constexpr std::array kHostChecks{
    Check{"processor", "the instruction set that this program was built for", "lscpu", 5, look_at_processor},
    Check{"arithmetic_speed", "share of the processor's multiply-adds that trainings reach", "lscpu", 5,
          look_at_arithmetic_speed, kNotInJobs},
    Check{"cores", "cores that this process may use, and its control group's quota", "nproc", 5,
          look_at_cores, kNotInJobs},
    Check{"clock", "the date, and the kernel's source of time", "timedatectl", 5, look_at_clock},
    Check{"open_files", "how many files and sockets a process may open", "ulimit -n", 5, look_at_open_files},
    Check{"memory", "free memory of the host, the control group and the process's limit", "free -h", 5,
          look_at_memory},
    Check{"shared_memory", "/dev/shm, by which ranks of one host communicate", "df -h /dev/shm", 5,
          look_at_shared_memory},
    Check{"loopback", "whether processes of this host can connect to each other", "ip link set lo up", 5,
          look_at_loopback},
    Check{"interfaces", "network interfaces, their speed, and which one jobs use", "ip -brief address", 5,
          look_at_interfaces, kNotInJobs},
    Check{"ports", "free ports, and LOCKSTEP_CONTROL_PORT", "ss -ltn", 5, look_at_ports, kNotInJobs},
    Check{"mpi", "Open MPI's mpirun, and whether it matches the library", "mpirun --version", 8, look_at_mpi,
          kNotInJobs},
    Check{"mpirun", "starts two processes by mpirun",
          "mpirun --allow-run-as-root --oversubscribe -n 2 hostname", 12, look_at_mpirun, kNotInJobs},
    Check{"root", "whether mpirun may run as root", "id", 5, look_at_root, kNotInJobs},
    Check{"gpus", "driver, persistence, ECC, XID errors, MIG, power limit, topology (by NVML)", "nvidia-smi",
          12, look_at_gpus},
    Check{"cuda", "whether the driver suits the CUDA that this program was built with", "nvidia-smi", 12,
          look_at_cuda},
    Check{"nccl", "the NCCL that this program loads", "nvidia-smi", 12, look_at_nccl},
    Check{"storage", "--out: free space, speed, and whether rename and fsync work", "df -h", 12,
          look_at_storage},
    Check{"data", "the data files, read as a training would", "ls -l", 12, look_at_data},
};

/// Waits until one of them has something to say or a limit has passed.
void wait_for_any(const std::vector<std::unique_ptr<CheckProcess>>& running) {
  std::vector<pollfd> waiting;
  Deadline next = Deadline::max();
  for (const auto& check : running) {
    if (check->finished()) continue;
    waiting.push_back({.fd = check->descriptor(), .events = POLLIN, .revents = 0});
    next = std::min(next, check->deadline());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  for (const auto& check : running) {
    if (check->finished()) continue;
    const auto mine =
        std::ranges::find_if(waiting, [&](const pollfd& each) { return each.fd == check->descriptor(); });
    if (mine->revents != 0)
      check->receive();
    else if (Clock::now() >= check->deadline())
      check->give_up();
  }
}

}  // namespace

std::span<const Check> host_checks() { return kHostChecks; }

std::vector<Finding> run_checks(std::span<const Check> checks, const Request& request,
                                const std::function<void(const Finding&)>& tell) {
  std::vector<std::unique_ptr<CheckProcess>> running;
  for (const Check& check : checks) running.push_back(std::make_unique<CheckProcess>(check, request));
  std::vector<Finding> all;
  for (size_t told = 0; told < running.size();) {
    if (!running[told]->finished()) {
      wait_for_any(running);
      continue;
    }
    for (const auto& finding : running[told]->findings()) {
      tell(finding);
      all.push_back(finding);
    }
    ++told;
  }
  return all;
}

}  // namespace lockstep::doctor
