#include "doctor/job_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/index.h"
#include "base/statistics.h"
#include "base/text.h"
#include "comm/agreement.h"

namespace lockstep::doctor {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kClocksApart = 2;        // seconds; logs of hosts are read side by side
constexpr double kSlowRank = 0.7;         // of the median
constexpr double kFarAway = 5e-3;         // seconds between ranks, which no network of a machine room takes
constexpr double kLinkAsPromised = 0.25;  // of what the interface says: one TCP connection may not fill it
constexpr double kSlowLink = 0.5;         // of the median of all links between hosts
constexpr size_t kMostLinks = 30;         // that are listed one by one
constexpr double kBitsPerByte = 8;

std::string bit_rate(double bits_per_second) {
  return bits_per_second >= 1e9 ? fmt::format("{:.3g} Gbit/s", bits_per_second / 1e9)
                                : fmt::format("{:.3g} Mbit/s", bits_per_second / 1e6);
}

std::string rank_on_host(const Ranks& ranks, int rank) {
  return fmt::format("rank {} on {}", rank, nth(ranks, rank).host);
}

/// "rank 3 on b", "ranks 0, 1 on a, b".
std::string ranks_on_hosts(const Ranks& ranks, const std::vector<int>& some) {
  std::vector<std::string> hosts;
  for (const int rank : some)
    if (hosts.empty() || hosts.back() != nth(ranks, rank).host) hosts.push_back(nth(ranks, rank).host);
  return fmt::format("{} on {}", comm::rank_list(some), join(hosts, ", "));
}

/// The ranks that say something else than most do, and what most say; empty if all say the same.
struct Difference {
  std::vector<int> ranks;
  std::string theirs, most;
};
Difference difference_of(const Ranks& ranks, std::string RankFacts::*value) {
  std::map<std::string, std::vector<int>> by_value;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    by_value[ranks[rank].*value].push_back(static_cast<int>(rank));
  // Of equally many, those of rank 0 are most.
  const auto most = std::ranges::max_element(by_value, [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), -a.second.front()) < std::pair(b.second.size(), -b.second.front());
  });
  Difference difference{{}, "", most->first};
  for (const auto& [text, holding] : by_value)
    if (text != most->first) {
      difference.ranks.insert(difference.ranks.end(), holding.begin(), holding.end());
      difference.theirs = text;
    }
  std::ranges::sort(difference.ranks);
  return difference;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find_first_of(",\n")); }

bool between_hosts(const Ranks& ranks, int a, int b) {
  return nth(ranks, a).host_number != nth(ranks, b).host_number;
}

std::string describe(const Ranks& ranks, const LinkFacts& link) {
  const std::string rate = bit_rate(link.bytes_per_second * kBitsPerByte);
  const std::string& from = nth(ranks, link.from).host;
  if (!between_hosts(ranks, link.from, link.to))
    return fmt::format("within {}: {} (rank {} to {})", from, rate, link.from, link.to);
  std::string said = link.interface.empty() ? std::string() : " by " + link.interface;
  if (link.speed_mbit > 0) said += fmt::format(", which says {}", bit_rate(link.speed_mbit * 1e6));
  return fmt::format("{} to {}: {}{} (rank {} to {})", from, nth(ranks, link.to).host, rate, said, link.from,
                     link.to);
}

Finding judge_link(const Ranks& ranks, const LinkFacts& link, double usual) {
  const std::string found = describe(ranks, link);
  if (!between_hosts(ranks, link.from, link.to)) return {Level::ok, found};
  const std::string look =
      fmt::format("ethtool {}, on both hosts", link.interface.empty() ? "INTERFACE" : link.interface);
  const double promised = link.speed_mbit * 1e6 / kBitsPerByte;
  if (promised > 0 && link.bytes_per_second < kLinkAsPromised * promised)
    return {Level::warn, found + ": far less than its speed", look};
  if (usual > 0 && link.bytes_per_second < kSlowLink * usual)
    return {Level::warn, fmt::format("{}: the others have {}", found, bit_rate(usual * kBitsPerByte)), look};
  return {Level::ok, found};
}

}  // namespace

std::string encode(const RankFacts& facts) {
  const Json json{{"host", facts.host},
                  {"host_number", facts.host_number},
                  {"program", facts.program},
                  {"binary", facts.binary},
                  {"mpi", facts.mpi},
                  {"arithmetic", facts.arithmetic},
                  {"gpu_libraries", facts.gpu_libraries},
                  {"gpus", facts.gpus},
                  {"clock", facts.clock},
                  {"work_rate", facts.work_rate},
                  {"binding", facts.launch_warnings},
                  {"host_findings", encode(facts.host_findings)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankFacts decode_rank_facts(const std::string& text) {
  const Json json = Json::parse(text);
  return {.host = json.at("host"),
          .host_number = json.at("host_number"),
          .program = json.at("program"),
          .binary = json.at("binary"),
          .mpi = json.at("mpi"),
          .arithmetic = json.at("arithmetic"),
          .gpu_libraries = json.at("gpu_libraries"),
          .gpus = json.at("gpus"),
          .clock = json.at("clock"),
          .work_rate = json.at("work_rate"),
          .launch_warnings = json.at("binding"),
          .host_findings = decode(json.at("host_findings"))};
}

Finding judge_ranks(const Ranks& ranks) {
  std::map<int, std::vector<int>> by_host;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    by_host[ranks[rank].host_number].push_back(static_cast<int>(rank));
  std::vector<std::string> texts;
  for (const auto& [number, own] : by_host)
    texts.push_back(fmt::format("{} on {}", own.size(), nth(ranks, own.front()).host));
  return {Level::ok, fmt::format("{}: {}", ranks.size(), join(texts, ", "))};
}

std::vector<Finding> judge_hosts(const Ranks& ranks) {
  std::vector<Finding> wrong;
  int hosts = 0;
  for (const auto& rank : ranks) {
    if (!rank.host_findings.empty()) ++hosts;
    for (Finding each : rank.host_findings) {
      if (each.level == Level::ok || each.level == Level::skip) continue;
      each.found = fmt::format("on {}, {}", rank.host, each.found);
      wrong.push_back(std::move(each));
    }
  }
  if (hosts == 0) return {{Level::skip, "the launcher does not say which rank is its host's first"}};
  if (wrong.empty())
    return {{Level::ok, fmt::format("no problem found on {} host{} (lockstep doctor lists the checks)", hosts,
                                    hosts == 1 ? "" : "s")}};
  return wrong;
}

Finding judge_binding(const Ranks& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (!ranks[rank].launch_warnings.empty())
      return {
          Level::warn,
          fmt::format("{}: {}", rank_on_host(ranks, static_cast<int>(rank)),
                      join(ranks[rank].launch_warnings, "; ")),
          "launcher/lockstep-run -n N -- doctor --job, with at most as many ranks on a host as it has cores"};
  return {Level::ok, "each rank has cores to run on"};
}

Finding judge_programs(const Ranks& ranks) {
  const auto other = difference_of(ranks, &RankFacts::binary);
  if (other.ranks.empty()) return {Level::ok, "all ranks run the same program"};
  const auto good = std::ranges::find(ranks, other.most, &RankFacts::binary);
  const RankFacts& bad = nth(ranks, other.ranks.front());
  return {Level::fail,
          fmt::format("{}: its lockstep ({}) differs from that of the others ({})",
                      ranks_on_hosts(ranks, other.ranks), bad.program, good->program),
          good->host_number == bad.host_number
              ? fmt::format("cp {} {}", good->program, bad.program)
              : fmt::format("scp {} {}:{}", good->program, bad.host, bad.program)};
}

Finding judge_mpi_libraries(const Ranks& ranks) {
  const auto other = difference_of(ranks, &RankFacts::mpi);
  if (other.ranks.empty()) return {Level::ok, "all ranks have " + first_line(other.most)};
  return {Level::fail,
          fmt::format("{}: {}; the others: {}", ranks_on_hosts(ranks, other.ranks), first_line(other.theirs),
                      first_line(other.most)),
          "apt-get install openmpi-bin, of the same version on every host"};
}

Finding judge_arithmetic(const Ranks& ranks) {
  const auto other = difference_of(ranks, &RankFacts::arithmetic);
  if (other.ranks.empty()) return {Level::ok, "all ranks compute alike: " + other.most};
  return {Level::warn,
          fmt::format("{}: {}; the others: {}; REPRODUCIBLE would be refused",
                      ranks_on_hosts(ranks, other.ranks), other.theirs, other.most),
          "install the same C library on every host, and use processors that all have FMA, or none"};
}

Finding judge_gpus_of_ranks(const Ranks& ranks) {
  if (std::ranges::all_of(ranks, [](const RankFacts& each) { return each.gpus == 0; }))
    return {Level::skip, "no rank sees a GPU: all compute on CPUs"};
  const auto other = difference_of(ranks, &RankFacts::gpu_libraries);
  if (!other.ranks.empty())
    return {
        Level::fail,
        fmt::format("{}: {}; the others: {}", ranks_on_hosts(ranks, other.ranks), other.theirs, other.most),
        "install the same CUDA and NCCL on every host"};
  std::map<int, int> ranks_of_host;
  for (const auto& each : ranks) ++ranks_of_host[each.host_number];
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int here = ranks_of_host[ranks[rank].host_number];
    // A launcher may show each rank a single one of its own.
    if (ranks[rank].gpus != 1 && ranks[rank].gpus < here)
      return {Level::fail,
              fmt::format("{} sees {} GPUs for the {} ranks of its host",
                          rank_on_host(ranks, static_cast<int>(rank)), ranks[rank].gpus, here),
              "nvidia-smi -L, on that host; start one rank for each GPU, or all with --device cpu"};
  }
  return {Level::ok, "every rank sees a GPU: " + other.most};
}

Finding judge_clocks(const Ranks& ranks) {
  const auto [slow, fast] = std::ranges::minmax_element(ranks, {}, &RankFacts::clock);
  const double apart = fast->clock - slow->clock;
  if (apart <= kClocksApart) return {Level::ok, "clocks of all hosts agree"};
  return {
      Level::warn,
      fmt::format("the clock of {} is {} ahead of that of {}", fast->host, human_seconds(apart), slow->host),
      "timedatectl set-ntp true, on every host"};
}

Finding judge_speed(const Ranks& ranks) {
  std::vector<double> rates;
  for (const auto& each : ranks) rates.push_back(each.work_rate);
  const auto slowest = std::ranges::min_element(rates);
  const int rank = static_cast<int>(slowest - rates.begin());
  const double usual = median(rates);
  const double part = usual > 0 ? *slowest / usual : 1;
  const std::string found =
      fmt::format("the slowest is {}, at {:.0f} % of the median", rank_on_host(ranks, rank), 100 * part);
  if (part >= kSlowRank) return {Level::ok, found};
  return {Level::warn, found + ": all others wait for it in every step",
          fmt::format("on {}: top -b -n 1 | head -20", nth(ranks, rank).host)};
}

Finding judge_latencies(const Ranks& ranks, const std::vector<Latency>& latencies) {
  if (latencies.empty()) return {Level::skip, "a single rank has no peers"};
  const Latency& worst = *std::ranges::max_element(latencies, {}, &Latency::seconds);
  std::vector<double> all;
  for (const auto& each : latencies) all.push_back(each.seconds);
  const std::string found = fmt::format("{} connected: median latency {}, slowest {} between {} and {}",
                                        all.size(), human_seconds(median(all)), human_seconds(worst.seconds),
                                        rank_on_host(ranks, worst.first), rank_on_host(ranks, worst.second));
  if (worst.seconds <= kFarAway) return {Level::ok, found};
  return {
      Level::warn, found,
      between_hosts(ranks, worst.first, worst.second)
          ? fmt::format("ping -c 5 {}, from {}", nth(ranks, worst.second).host, nth(ranks, worst.first).host)
          : fmt::format("on {}: top -b -n 1 | head -20", nth(ranks, worst.first).host)};
}

std::vector<Finding> judge_links(const Ranks& ranks, const std::vector<LinkFacts>& links) {
  if (links.empty()) return {{Level::skip, "a single rank has no links"}};
  std::vector<double> across;
  for (const auto& each : links)
    if (between_hosts(ranks, each.from, each.to)) across.push_back(each.bytes_per_second);
  const double usual = across.size() >= 3 ? median(across) : 0;
  // Slowest first, and those between hosts before those within.
  std::vector<LinkFacts> sorted = links;
  std::ranges::stable_sort(sorted, {}, [&](const LinkFacts& each) {
    return std::pair(!between_hosts(ranks, each.from, each.to), each.bytes_per_second);
  });
  std::vector<Finding> findings;
  for (const auto& each : sorted)
    if (Finding finding = judge_link(ranks, each, usual);
        findings.size() < kMostLinks || finding.level != Level::ok)
      findings.push_back(std::move(finding));
  if (links.size() > 1) findings.front().found += "; the slowest link";
  if (sorted.size() > findings.size())
    findings.push_back(
        {Level::ok, fmt::format("{} more, none of them slow", sorted.size() - findings.size())});
  return findings;
}

Finding judge_all_reduce(const Ranks& ranks, const AllReduceFacts& facts) {
  const auto count = static_cast<double>(ranks.size());
  if (count < 2) return {Level::skip, "a single rank sums nothing"};
  // What each link of a ring carries.
  const double rate = 2 * (count - 1) / count * static_cast<double>(facts.size_bytes) / facts.seconds;
  const std::string found =
      fmt::format("{} in {} over {}: {} by rank", human_bytes(facts.size_bytes), human_seconds(facts.seconds),
                  facts.backend == "mpi"      ? "MPI"
                  : facts.backend == "shared" ? "shared memory"
                                              : facts.backend,
                  bit_rate(rate * kBitsPerByte));
  if (facts.shm_problem.empty()) return {Level::ok, found};
  return {Level::warn, fmt::format("{}; the ranks cannot share memory: {}", found, facts.shm_problem),
          "mount -o remount,size=1g /dev/shm, or docker run --shm-size=1g"};
}

}  // namespace lockstep::doctor
