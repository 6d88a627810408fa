#include "train/start/device_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "lockstep/error.h"

namespace lockstep::train {
namespace {

/// Making a GPU's driver ready takes a second or two on a host with many.
constexpr std::chrono::minutes kTimeout{5};

/// Ranks that have the same, in the order of ranks.
template <class Key, class KeyOf>
std::map<Key, std::vector<int>> ranks_by(const std::vector<RankDevice>& ranks, const KeyOf& key_of) {
  std::map<Key, std::vector<int>> by_key;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    by_key[key_of(ranks[rank])].push_back(static_cast<int>(rank));
  return by_key;
}

const RankDevice& first_of(const std::vector<RankDevice>& ranks, const std::vector<int>& chosen) {
  return nth(ranks, chosen.front());
}

void require_one_kind(const std::vector<RankDevice>& ranks) {
  const auto by_kind = ranks_by<device::DeviceKind>(ranks, [](const RankDevice& r) { return r.kind; });
  if (by_kind.size() == 1) return;
  const auto& on_cpu = by_kind.at(device::DeviceKind::cpu);
  const RankDevice& first = first_of(ranks, on_cpu);
  throw DeviceError(fmt::format(
      "some workers would compute on CPUs ({}), others on GPUs ({}); {} on host {}: {}. Use --device cpu for "
      "all, or start workers only on hosts with GPUs",
      comm::rank_list(on_cpu), comm::rank_list(by_kind.at(device::DeviceKind::cuda)),
      comm::rank_list({on_cpu.front()}), first.host,
      first.reason.empty() ? "CPUs are asked for" : first.reason));
}

/// `what` names it in a message; `of` tells it of a rank.
void require_one(const std::vector<RankDevice>& ranks, std::string_view what, std::string RankDevice::*of) {
  const auto by_value = ranks_by<std::string>(ranks, [&](const RankDevice& r) { return r.*of; });
  if (by_value.size() == 1) return;
  std::vector<std::string> parts;
  for (const auto& [value, holders] : by_value)
    parts.push_back(
        fmt::format("{} (host {}): {}", comm::rank_list(holders), first_of(ranks, holders).host, value));
  throw DeviceError(fmt::format(
      "the workers' {} differ, and with them the bits of a REPRODUCIBLE run: {}. Start all workers on the "
      "same kind, or use parallel.reduction: FAST",
      what, join(parts, "; ")));
}

void require_gpus_of_their_own(const std::vector<RankDevice>& ranks) {
  const auto by_gpu = ranks_by<std::pair<int, std::string>>(
      ranks, [](const RankDevice& r) { return std::pair(r.host_number, r.uuid); });
  std::vector<std::string> shared;
  for (const auto& [gpu, users] : by_gpu)
    if (users.size() > 1) {
      const RankDevice& first = first_of(ranks, users);
      shared.push_back(fmt::format("{} on host {} would share one GPU ({}, {})", comm::rank_list(users),
                                   first.host, first.name, first.uuid));
    }
  if (!shared.empty())
    throw DeviceError(
        fmt::format("{}: start fewer workers there (mpirun -n), give each its own GPU with "
                    "CUDA_VISIBLE_DEVICES, or pass --allow-shared-gpu, which is slow",
                    join(shared, "; ")));
}

/// One line for each field: none of them has line breaks that mean anything.
std::string pack(const RankDevice& device, bool allow_shared_gpu) {
  std::string text;
  for (std::string field : {device.host, std::string(device::name_of(device.kind)), device.name, device.uuid,
                            device.libraries, device.reason, std::string(allow_shared_gpu ? "1" : "0")}) {
    std::replace(field.begin(), field.end(), '\n', ' ');
    text += field + "\n";
  }
  return text;
}

RankDevice unpack(const std::string& text, int host_number, bool& allow_shared_gpu) {
  const auto fields = split(text, '\n');
  allow_shared_gpu = fields.at(6) == "1";
  return {.host = fields.at(0),
          .host_number = host_number,
          .kind = fields.at(1) == device::name_of(device::DeviceKind::cuda) ? device::DeviceKind::cuda
                                                                            : device::DeviceKind::cpu,
          .name = fields.at(2),
          .uuid = fields.at(3),
          .libraries = fields.at(4),
          .reason = fields.at(5)};
}

}  // namespace

DeviceWish device_wish_from_name(const std::string& name) {
  if (name == "auto") return DeviceWish::automatic;
  if (name == "cpu") return DeviceWish::cpu;
  if (name == "cuda") return DeviceWish::cuda;
  throw ConfigError(fmt::format("there is no device '{}'; expected auto, cpu or cuda", name));
}

DeviceChoice choose_device(const DeviceRequest& request, const device::GpuProbe& probe, int local_rank,
                           int local_size) {
  if (request.wish == DeviceWish::cpu) return {};
  const int count = static_cast<int>(probe.devices.size());
  if (count == 0) {
    if (request.wish == DeviceWish::cuda) throw DeviceError("--device cuda: " + probe.problem);
    return {.kind = device::DeviceKind::cpu, .reason = "computing on CPUs: " + probe.problem};
  }
  if (count > 1 && count < local_size && !request.allow_shared_gpu)
    throw DeviceError(
        fmt::format("this host has {} GPUs for {} workers: start at most {} here (mpirun -n), choose other "
                    "GPUs with CUDA_VISIBLE_DEVICES, or pass --allow-shared-gpu, which is slow",
                    count, local_size, count));
  const int ordinal = local_rank % count;
  const auto& gpu = nth(probe.devices, ordinal);
  return {.kind = device::DeviceKind::cuda,
          .ordinal = ordinal,
          .reason = fmt::format("computing on GPU {} ({})", ordinal, gpu.name)};
}

void check_devices(const std::vector<RankDevice>& ranks, bool reproducible, bool allow_shared_gpu) {
  require_one_kind(ranks);
  if (ranks.front().kind != device::DeviceKind::cuda) return;
  if (reproducible) {
    require_one(ranks, "GPUs", &RankDevice::name);
    require_one(ranks, "GPU libraries", &RankDevice::libraries);
  }
  if (!allow_shared_gpu) require_gpus_of_their_own(ranks);
}

DeviceChoice agree_on_device(comm::Communicator& world, const DeviceRequest& request,
                             const std::function<device::GpuProbe()>& probe, const std::vector<int>& hosts,
                             const std::string& host, int choosers, bool reproducible) {
  const bool chooses = world.rank() < choosers;
  const auto own_host = hosts.begin() + world.rank();
  const auto local_rank = static_cast<int>(std::count(hosts.begin(), own_host, *own_host));
  const auto local_size = static_cast<int>(std::count(hosts.begin(), hosts.begin() + choosers, *own_host));
  device::GpuProbe found;
  DeviceChoice choice;
  std::exception_ptr failure;
  try {
    if (chooses && request.wish != DeviceWish::cpu) found = probe();  // it wakes the driver
    if (chooses) choice = choose_device(request, found, local_rank, local_size);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  comm::agree_on_outcome(world, failure, kTimeout);

  RankDevice own{.host = host, .kind = choice.kind, .reason = choice.reason};
  if (choice.kind == device::DeviceKind::cuda) {
    const auto& gpu = nth(found.devices, choice.ordinal);
    own.name = gpu.name;
    own.uuid = gpu.uuid;
    own.libraries = device::gpu_libraries();
  }
  const auto texts = comm::gather_texts(world, pack(own, request.allow_shared_gpu), kTimeout);
  std::vector<RankDevice> ranks;
  bool all_allow = true;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    bool allows = false;
    ranks.push_back(unpack(texts[rank], hosts[rank], allows));
    all_allow = all_allow && allows;
  }
  ranks.resize(static_cast<size_t>(choosers));
  if (!chooses) choice.kind = ranks.front().kind;
  try {
    check_devices(ranks, reproducible, all_allow);
  } catch (const DeviceError& error) {
    throw comm::CollectiveError(error.what(), error.code());  // every rank has judged the same texts
  }
  if (world.rank() == 0 && request.say && !choice.reason.empty()) {
    // Without a driver there is nothing to be mended, and nothing is said to be wrong.
    std::error_code unknown;
    const bool is_usual = choice.kind == device::DeviceKind::cpu && log_level() != LogLevel::debug &&
                          !std::filesystem::exists("/dev/nvidiactl", unknown);
    request.say(is_usual ? "computing on CPUs: no NVIDIA driver is visible here" : choice.reason);
  }
  return choice;
}

}  // namespace lockstep::train
