#include "observe/machine/figures.h"

#include <algorithm>

namespace lockstep::observe {
namespace {

using Subject = MachineSubject::Kind;
using enum FigureKind;

constexpr double kPerMebibyte = 1.0 / (1 << 20);
constexpr double kMilli = 1000;

constexpr MachineFigure kFigures[] = {
    {Subject::host, "processor_share", share, "lockstep_host_processor_ratio", 1,
     "Share of the processor time of the host, or of its container, that is used."},
    {Subject::host, "processor_waiting_for_disk_share", share, "lockstep_host_processor_iowait_ratio", 1,
     "Share of the processor time of the host that is idle while disks work."},
    {Subject::host, "processor_cores", constant, "lockstep_host_processor_cores", 1,
     "Cores whose time the host, or its container, has."},
    {Subject::host, "memory_used_bytes", level, "lockstep_host_memory_used_bytes", 1,
     "Memory of the host, or of its container, that is not available."},
    {Subject::host, "memory_available_bytes", level, "lockstep_host_memory_available_bytes", 1,
     "Memory that can be had without swapping."},
    {Subject::host, "memory_size_bytes", constant, "lockstep_host_memory_size_bytes", 1,
     "Memory that the host, or its container, has."},
    {Subject::host, "swap_used_bytes", level, "lockstep_host_swap_used_bytes", 1, "Swap space in use."},
    {Subject::host, "swapped_bytes_per_second", rate, "lockstep_host_swapped_bytes_per_second", 1,
     "Bytes that are swapped, in and out."},
    {Subject::host, "disk_read_bytes_per_second", rate, "lockstep_host_disk_read_bytes_per_second", 1,
     "Bytes read from the disks of the host."},
    {Subject::host, "disk_written_bytes_per_second", rate, "lockstep_host_disk_written_bytes_per_second", 1,
     "Bytes written to the disks of the host."},
    {Subject::host, "network_sent_bytes_per_second", rate, "lockstep_host_network_sent_bytes_per_second", 1,
     "Bytes sent by the network interfaces of the host."},
    {Subject::host, "network_received_bytes_per_second", rate,
     "lockstep_host_network_received_bytes_per_second", 1,
     "Bytes received by the network interfaces of the host."},
    {Subject::host, "pressure_processor_some_share", share, "lockstep_host_pressure_processor_some_ratio", 1,
     "Share of time in which some task waited for a processor."},
    {Subject::host, "pressure_memory_some_share", share, "lockstep_host_pressure_memory_some_ratio", 1,
     "Share of time in which some task waited for memory."},
    {Subject::host, "pressure_memory_full_share", share, "lockstep_host_pressure_memory_full_ratio", 1,
     "Share of time in which all tasks waited for memory."},
    {Subject::host, "pressure_disk_some_share", share, "lockstep_host_pressure_disk_some_ratio", 1,
     "Share of time in which some task waited for a disk."},
    {Subject::host, "pressure_disk_full_share", share, "lockstep_host_pressure_disk_full_ratio", 1,
     "Share of time in which all tasks waited for a disk."},

    {Subject::process, "processor_cores", level, "lockstep_process_processor_cores", 1,
     "Cores that the process keeps busy, all of its threads together."},
    {Subject::process, "memory_resident_bytes", level, "lockstep_process_memory_resident_bytes", 1,
     "Memory of the process that is resident."},
    {Subject::process, "memory_private_bytes", level, "lockstep_process_memory_private_bytes", 1,
     "The private part of it."},
    {Subject::process, "disk_read_bytes_per_second", rate, "lockstep_process_disk_read_bytes_per_second", 1,
     "Bytes that the process reads from disks."},
    {Subject::process, "disk_written_bytes_per_second", rate,
     "lockstep_process_disk_written_bytes_per_second", 1, "Bytes that the process has written to disks."},

    {Subject::gpu, "utilization_percent", share, "DCGM_FI_DEV_GPU_UTIL", 1, "GPU utilization (in %)."},
    {Subject::gpu, "memory_utilization_percent", share, "DCGM_FI_DEV_MEM_COPY_UTIL", 1,
     "Memory utilization (in %)."},
    {Subject::gpu, "memory_used_bytes", level, "DCGM_FI_DEV_FB_USED", kPerMebibyte,
     "Framebuffer memory used (in MiB)."},
    {Subject::gpu, "memory_free_bytes", level, "DCGM_FI_DEV_FB_FREE", kPerMebibyte,
     "Framebuffer memory free (in MiB)."},
    {Subject::gpu, "memory_reserved_bytes", level, "DCGM_FI_DEV_FB_RESERVED", kPerMebibyte,
     "Framebuffer memory reserved (in MiB)."},
    {Subject::gpu, "memory_size_bytes", constant, "DCGM_FI_DEV_FB_TOTAL", kPerMebibyte,
     "Framebuffer memory (in MiB)."},
    {Subject::gpu, "power_watts", level, "DCGM_FI_DEV_POWER_USAGE", 1, "Power draw (in W)."},
    {Subject::gpu, "power_limit_watts", constant, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1,
     "Effective power limit (in W)."},
    {Subject::gpu, "temperature_celsius", level, "DCGM_FI_DEV_GPU_TEMP", 1, "GPU temperature (in C)."},
    {Subject::gpu, "memory_temperature_celsius", level, "DCGM_FI_DEV_MEMORY_TEMP", 1,
     "Memory temperature (in C)."},
    {Subject::gpu, "sm_clock_megahertz", level, "DCGM_FI_DEV_SM_CLOCK", 1, "SM clock frequency (in MHz)."},
    {Subject::gpu, "sm_clock_limit_megahertz", constant, "DCGM_FI_DEV_MAX_SM_CLOCK", 1,
     "Maximum SM clock frequency (in MHz)."},
    {Subject::gpu, "memory_clock_megahertz", level, "DCGM_FI_DEV_MEM_CLOCK", 1,
     "Memory clock frequency (in MHz)."},
    {Subject::gpu, "clock_event_reasons", constant, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 1,
     "Why clocks are lower than they could be (bits of NVML)."},
    {Subject::gpu, "held_down", share, "", 1, ""},
    {Subject::gpu, "ecc_corrected_errors", counter, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1,
     "Corrected errors of memory since the driver was loaded."},
    {Subject::gpu, "ecc_uncorrected_errors", counter, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1,
     "Uncorrected errors of memory since the driver was loaded."},
    {Subject::gpu, "xid", constant, "DCGM_FI_DEV_XID_ERRORS", 1, "Value of the last XID error encountered."},
    {Subject::gpu, "pcie_sent_bytes_per_second", rate, "DCGM_FI_PROF_PCIE_TX_BYTES", 1,
     "Bytes sent by PCIe, per second."},
    {Subject::gpu, "pcie_received_bytes_per_second", rate, "DCGM_FI_PROF_PCIE_RX_BYTES", 1,
     "Bytes received by PCIe, per second."},
    {Subject::gpu, "pcie_replays", counter, "lockstep_gpu_pcie_replays_total", 1, "PCIe retries."},
    {Subject::gpu, "nvlink_sent_bytes_per_second", rate, "DCGM_FI_PROF_NVLINK_TX_BYTES", 1,
     "Bytes sent by NVLink, per second."},
    {Subject::gpu, "nvlink_received_bytes_per_second", rate, "DCGM_FI_PROF_NVLINK_RX_BYTES", 1,
     "Bytes received by NVLink, per second."},
    {Subject::gpu, "energy_joules", counter, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", kMilli,
     "Energy since the driver was loaded (in mJ)."},
};

}  // namespace

std::span<const MachineFigure> machine_figures() { return kFigures; }

const MachineFigure* find_machine_figure(MachineSubject::Kind subject, std::string_view field) {
  const auto* found = std::ranges::find_if(kFigures, [&](const MachineFigure& figure) {
    return figure.subject == subject && figure.field == field;
  });
  return found == std::end(kFigures) ? nullptr : found;
}

}  // namespace lockstep::observe
