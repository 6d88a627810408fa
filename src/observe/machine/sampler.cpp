#include "observe/machine/sampler.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "observe/machine/control_group.h"
#include "observe/machine/disk.h"
#include "observe/machine/memory.h"
#include "observe/machine/pressure.h"
#include "observe/machine/processor.h"
#include "observe/machine/text_numbers.h"
#include "observe/network_counters.h"
#include "observe/process_memory.h"

namespace lockstep::observe {
namespace {

using Figures = std::vector<std::pair<std::string, double>>;

void add(Figures& figures, const char* name, const std::optional<double>& value) {
  if (value && std::isfinite(*value)) figures.emplace_back(name, *value);
}

void add_share(Figures& figures, const char* name, const std::optional<double>& value) {
  if (value) add(figures, name, short_share(std::clamp(*value, 0.0, 1.0)));
}

/// To whole bytes.
void add_rate(Figures& figures, const char* name, const std::optional<double>& value) {
  if (value) add(figures, name, std::round(*value));
}

double ticks_per_second() { return static_cast<double>(::sysconf(_SC_CLK_TCK)); }

/// Of all interfaces that are hardware; of all, if none is, as in containers. Others move the same bytes
/// again.
std::optional<InterfaceBytes> network_total(const NetworkBytes& interfaces, const std::string& sys) {
  InterfaceBytes all, hardware;
  bool has_hardware = false;
  for (const auto& [name, bytes] : interfaces) {
    std::error_code unknown;
    const bool is_hardware = std::filesystem::exists(sys + "/class/net/" + name + "/device", unknown);
    has_hardware = has_hardware || is_hardware;
    for (InterfaceBytes* sum : {&all, is_hardware ? &hardware : nullptr}) {
      if (sum == nullptr) continue;
      sum->sent += bytes.sent;
      sum->received += bytes.received;
    }
  }
  if (interfaces.empty()) return std::nullopt;
  return has_hardware ? hardware : all;
}

}  // namespace

std::string HostSampler::text(const std::string& file) const {
  return text_if_there(places_.proc + "/" + file);
}

bool HostSampler::is_disk(const std::string& name) const {
  std::error_code unknown;
  return std::filesystem::exists(places_.sys + "/block/" + name + "/device", unknown);
}

Figures HostSampler::process(double now_seconds) {
  Figures figures;
  if (const auto cores =
          process_time_.add(process_processor_seconds(text("self/stat"), ticks_per_second()), now_seconds))
    add(figures, "processor_cores", short_share(*cores));
  const std::string status = text("self/status");
  for (const auto& [name, field] :
       {std::pair{"memory_resident_bytes", "VmRSS"}, {"memory_private_bytes", "RssAnon"}})
    if (const int64_t bytes = status_field_bytes(status, field); bytes >= 0)
      add(figures, name, static_cast<double>(bytes));
  const auto disk = process_disk_bytes(text("self/io"));
  add_rate(figures, "disk_read_bytes_per_second",
           process_read_.add(disk ? std::optional(disk->read) : std::nullopt, now_seconds));
  add_rate(figures, "disk_written_bytes_per_second",
           process_written_.add(disk ? std::optional(disk->written) : std::nullopt, now_seconds));
  return figures;
}

Figures HostSampler::host(double now_seconds) {
  Figures figures;
  const GroupLimits limits = group_limits(places_.proc + "/self/cgroup", places_.sys + "/fs/cgroup");
  add_processor(figures, limits, now_seconds);
  add_memory(figures, limits, now_seconds);
  add_traffic(figures, now_seconds);
  add_pressure(figures, now_seconds);
  return figures;
}

void HostSampler::add_processor(Figures& figures, const GroupLimits& limits, double now_seconds) {
  const auto time = host_processor_time(text("stat"), ticks_per_second());
  const auto of = [&](double HostProcessorTime::*part) {
    return time ? std::optional((*time).*part) : std::nullopt;
  };
  const auto total = total_time_.add(of(&HostProcessorTime::total), now_seconds);
  const auto idle = idle_time_.add(of(&HostProcessorTime::idle), now_seconds);
  const auto waiting = disk_wait_.add(of(&HostProcessorTime::waiting_for_disk), now_seconds);
  const auto group = group_time_.add(limits.processor_seconds, now_seconds);
  const bool is_limited = limits.cores && (!time || *limits.cores < time->cores);
  if (is_limited && group)
    add_share(figures, "processor_share", *group / *limits.cores);
  else if (total && idle && *total > 0)
    add_share(figures, "processor_share", 1 - *idle / *total);
  if (total && waiting && *total > 0)
    add_share(figures, "processor_waiting_for_disk_share", *waiting / *total);
  if (is_limited)
    add(figures, "processor_cores", *limits.cores);
  else if (time)
    add(figures, "processor_cores", time->cores);
}

void HostSampler::add_memory(Figures& figures, const GroupLimits& limits, double now_seconds) {
  HostMemory memory = host_memory(text("meminfo"));
  if (limits.memory_bytes && limits.memory_used_bytes &&
      (!memory.size_bytes || *limits.memory_bytes < *memory.size_bytes)) {
    const double left = std::max(0.0, *limits.memory_bytes - *limits.memory_used_bytes);
    memory.size_bytes = limits.memory_bytes;
    memory.available_bytes = std::min(left, memory.available_bytes.value_or(left));
  }
  if (memory.size_bytes && memory.available_bytes)
    add(figures, "memory_used_bytes", *memory.size_bytes - *memory.available_bytes);
  add(figures, "memory_available_bytes", memory.available_bytes);
  add(figures, "memory_size_bytes", memory.size_bytes);
  add(figures, "swap_used_bytes", memory.swap_used_bytes);
  add_rate(
      figures, "swapped_bytes_per_second",
      swapped_.add(swapped_bytes(text("vmstat"), static_cast<double>(::sysconf(_SC_PAGESIZE))), now_seconds));
}

void HostSampler::add_traffic(Figures& figures, double now_seconds) {
  const auto disk =
      host_disk_bytes(text("diskstats"), [this](const std::string& name) { return is_disk(name); });
  add_rate(figures, "disk_read_bytes_per_second",
           read_.add(disk ? std::optional(disk->read) : std::nullopt, now_seconds));
  add_rate(figures, "disk_written_bytes_per_second",
           written_.add(disk ? std::optional(disk->written) : std::nullopt, now_seconds));
  // Of this process's network namespace.
  const auto network = network_total(network_bytes_from(text("self/net/dev")), places_.sys);
  add_rate(figures, "network_sent_bytes_per_second",
           sent_.add(network ? std::optional(network->sent) : std::nullopt, now_seconds));
  add_rate(figures, "network_received_bytes_per_second",
           received_.add(network ? std::optional(network->received) : std::nullopt, now_seconds));
}

void HostSampler::add_pressure(Figures& figures, double now_seconds) {
  const StalledSeconds processor = stalled_seconds(text("pressure/cpu"));
  const StalledSeconds memory = stalled_seconds(text("pressure/memory"));
  const StalledSeconds disk = stalled_seconds(text("pressure/io"));
  add_share(figures, "pressure_processor_some_share", pressures_[0].add(processor.some, now_seconds));
  add_share(figures, "pressure_memory_some_share", pressures_[1].add(memory.some, now_seconds));
  add_share(figures, "pressure_memory_full_share", pressures_[2].add(memory.full, now_seconds));
  add_share(figures, "pressure_disk_some_share", pressures_[3].add(disk.some, now_seconds));
  add_share(figures, "pressure_disk_full_share", pressures_[4].add(disk.full, now_seconds));
}

void GpuSampler::add_to(MachineSample& sample, double now_seconds) {
  const device::GpuReading reading = monitor_.read();
  sample.subject.kind = MachineSubject::Kind::gpu;
  sample.subject.gpu = monitor_.index();
  sample.subject.slice = monitor_.slice();
  sample.subject.uuid = monitor_.uuid();
  sample.subject.model = monitor_.name();
  Figures& figures = sample.figures;
  add(figures, "utilization_percent", reading.utilization_percent);
  add(figures, "memory_utilization_percent", reading.memory_utilization_percent);
  add(figures, "memory_used_bytes", reading.memory_used_bytes);
  add(figures, "memory_free_bytes", reading.memory_free_bytes);
  add(figures, "memory_reserved_bytes", reading.memory_reserved_bytes);
  add(figures, "memory_size_bytes", reading.memory_total_bytes);
  add(figures, "power_watts", reading.power_watts);
  add(figures, "power_limit_watts", reading.power_limit_watts);
  add(figures, "temperature_celsius", reading.temperature_celsius);
  add(figures, "memory_temperature_celsius", reading.memory_temperature_celsius);
  add(figures, "sm_clock_megahertz", reading.sm_clock_megahertz);
  add(figures, "sm_clock_limit_megahertz", reading.sm_clock_limit_megahertz);
  add(figures, "memory_clock_megahertz", reading.memory_clock_megahertz);
  if (reading.clock_event_reasons) {
    sample.held_down_by = device::held_down_by(*reading.clock_event_reasons);
    add(figures, "clock_event_reasons", static_cast<double>(*reading.clock_event_reasons));
    add(figures, "held_down", sample.held_down_by.empty() ? 0 : 1);
  }
  add(figures, "ecc_corrected_errors", reading.ecc_corrected_errors);
  add(figures, "ecc_uncorrected_errors", reading.ecc_uncorrected_errors);
  add(figures, "xid", reading.xid);
  add(figures, "pcie_sent_bytes_per_second", reading.pcie_sent_bytes_per_second);
  add(figures, "pcie_received_bytes_per_second", reading.pcie_received_bytes_per_second);
  add(figures, "pcie_replays", reading.pcie_replays);
  add_rate(figures, "nvlink_sent_bytes_per_second", nvlink_sent_.add(reading.nvlink_sent_bytes, now_seconds));
  add_rate(figures, "nvlink_received_bytes_per_second",
           nvlink_received_.add(reading.nvlink_received_bytes, now_seconds));
  add(figures, "energy_joules", reading.energy_joules);
}

}  // namespace lockstep::observe
