#include "compare/forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/text.h"
#include "jobs/job_places.h"
#include "lockstep/error.h"
#include "train/worker/compile_options.h"

namespace lockstep::compare {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kProfiledSteps = 20, kProfiles = 3;
constexpr double kTie = 1.02;  // times as long is no slower

std::vector<int> each_its_own(int processes) {
  std::vector<int> hosts(static_cast<size_t>(processes));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

bool are_one(const std::vector<int>& hosts) {
  return std::ranges::all_of(hosts, [&](int host) { return host == hosts.front(); });
}

/// So long that a link of this rate is busy with it for a third of a second; a few KiB at least.
int64_t message_bytes(const std::string& link) {
  constexpr int64_t kMost = 4 << 20, kLeast = 4096;
  if (link.empty() || link == "none") return kMost;
  const auto bytes = static_cast<int64_t>(jobs::link_bits_per_second(link) / 8 / 3);
  return std::clamp(bytes, kLeast, kMost) / 4 * 4;
}

}  // namespace

std::vector<int> stand_in_hosts(int processes) {
  std::vector<int> hosts;
  for (int rank = 0; rank < processes; ++rank) hosts.push_back(rank < (processes + 1) / 2 ? 0 : 1);
  return hosts;
}

Json Forecast::run(jobs::ProcessJob job, const std::string& what, const std::string& folder) const {
  job.stdout_path = folder + "/result.json";
  job.stderr_path = folder + "/stderr.txt";
  job.watch = place_.watch;
  const jobs::JobOutcome outcome = jobs::run_to_end(job);
  if (outcome.code != 0) throw jobs::job_failure(what, outcome, folder);
  try {
    return Json::parse(outcome.output);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: what it wrote to {} is no JSON: {}", what, folder, error.what()));
  }
}

/// `apart`: on as many hosts as there are, rather than as a row's processes fill them.
const BenchReport& Forecast::bench(const std::string& link, int processes, bool apart) {
  const auto key = std::tuple(link, processes, apart);
  const auto found = benches_.find(key);
  if (found != benches_.end()) return found->second;
  place_.use_link(link);
  const std::string folder =
      fmt::format("{}/bench/{}{}-processes{}", place_.directory, link.empty() ? "" : "link-" + link + "-",
                  processes, apart ? "-apart" : "");
  jobs::ProcessJob job{
      .processes = processes,
      .arguments = {"bench", "--json", "--brief", "--largest", fmt::to_string(message_bytes(link))},
      .place = place_.place};
  if (apart && !place_.stands_in)
    job.place.mpirun_options.insert(job.place.mpirun_options.end(), {"--map-by", "node"});
  BenchReport report = bench_report_from(run(std::move(job), "measuring messages", folder));
  if (apart && report.figures().between_hosts.latency == 0)
    throw DeviceError(
        "there is only one host, so messages between hosts cannot be measured; name two hosts in --hostfile");
  return benches_.emplace(key, std::move(report)).first->second;
}

/// Of several runs, whichever is neither fast nor slow: what else a machine does lasts longer than one.
const Forecast::Measured& Forecast::profile(const CompareRow& row, int workers, int64_t micro_batch) {
  const std::tuple key(workers, micro_batch, row.global_batch);
  const auto found = profiles_.find(key);
  if (found != profiles_.end()) return found->second;
  std::vector<Measured> runs;
  for (int i = 0; i < kProfiles; ++i) runs.push_back(profile_once(row, workers, micro_batch, i));
  const auto middle = runs.begin() + kProfiles / 2;
  std::ranges::nth_element(runs, middle, {}, [](const Measured& run) {
    double seconds = 0;
    for (const auto& node : run.profile.nodes) seconds += node.seconds.all();
    return seconds;
  });
  return profiles_.emplace(key, std::move(*middle)).first->second;
}

Forecast::Measured Forecast::profile_once(const CompareRow& row, int workers, int64_t micro_batch,
                                          int number) const {
  place_.use_link(place_.stands_in ? "none" : "");
  jobs::TrainingCommand training = place_.command(row);
  training.command = "profile";
  training.layout = {.dp = workers};
  // How long it trains, profile says itself.
  std::erase_if(training.assignments,
                [](const std::string& assignment) { return assignment.starts_with("trainer.steps="); });
  training.assignments.push_back(fmt::format("trainer.micro_batch={}", micro_batch));
  const std::string folder =
      fmt::format("{}/profiles/{}-workers-batch-{}-micro-batch-{}-{}", place_.directory, workers,
                  row.global_batch, micro_batch, number + 1);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  jobs::ProcessJob job{.processes = workers, .arguments = training.arguments(), .place = place_.place};
  const std::string file = folder + "/profile.textproto";
  job.arguments.insert(job.arguments.end(),
                       {"--quiet", "--steps", fmt::to_string(kProfiledSteps), "--out", file});
  const Json told = run(std::move(job), "measuring how long layers take", folder);
  model::Profile profile = config::profile_from_text(read_text_file(file), file);
  if (profile.device != "cpu")
    throw DeviceError("steps on GPUs are not predicted; use --device cpu for predictions");
  return {std::move(profile), told.value("rest_seconds", 0.0)};
}

/// What a worker's step takes beside what instructions are reckoned to take: as one process alone has it,
/// if nothing of it is communication.
double Forecast::overhead(const CompareRow& row, int64_t micro_batch, double addition_per_byte) {
  CompareRow alone = row;
  alone.layout = {.dp = 1};
  const auto run = compile(alone, {0}, {fmt::format("trainer.micro_batch={}", micro_batch)});
  const double reckoned = plan::other_seconds(*run, {.addition_per_byte = addition_per_byte});
  return std::max(profile(row, 1, micro_batch).rest_seconds - reckoned, 0.0);
}

std::vector<int> Forecast::hosts_of(const CompareRow& row) {
  const int processes = row.layout.world_size();
  if (processes == 1) return {0};
  return place_.stands_in ? stand_in_hosts(processes) : bench(row.link, processes).hosts;
}

std::unique_ptr<compile::CompiledRun> Forecast::compile(const CompareRow& row, const std::vector<int>& hosts,
                                                        const std::vector<std::string>& assignments) const {
  const bool alone = hosts.size() == 1;
  compile::CompileFacts facts{.world_size = static_cast<int>(hosts.size()),
                              .shared_memory = !alone && are_one(hosts)};
  if (!are_one(hosts)) facts.hosts = hosts;
  return std::make_unique<compile::CompiledRun>(train::fitted_options(place_.config(row, assignments), facts),
                                                facts);
}

plan::StepCosts Forecast::costs(const CompareRow& row, const compile::CompiledRun& run, bool apart) {
  const int processes = row.layout.world_size(), benched = apart ? 2 : processes;
  const int64_t micro_batch = run.division().micro_batch;
  plan::MachineFigures figures = bench(row.link, benched, apart).figures();
  if (place_.stands_in && processes > 1) {
    figures.free_link = bench("none", benched, apart).figures().between_hosts;
    figures.link_burst_bytes = jobs::link_burst_bytes(row.link);
  }
  // As many processes beside each other, if the batch can be divided so.
  const bool divides = run.division().global_batch / micro_batch % row.workers == 0;
  const int profiled = apart ? 1 : divides ? row.workers : row.layout.dp;
  return {.profile = profile(row, profiled, micro_batch).profile,
          .communication = plan::communication_times(figures),
          .addition_per_byte = figures.addition_per_byte,
          .overhead = overhead(row, micro_batch, figures.addition_per_byte)};
}

double Forecast::step_ms(const CompareRow& row) {
  const std::vector<int> hosts = hosts_of(row);
  const auto run = compile(row, hosts);
  return 1e3 * plan::predict_step(*run, hosts, costs(row, *run, false));
}

double Forecast::step_ms_apart(const CompareRow& row) {
  const std::vector<int> hosts = each_its_own(row.layout.world_size());
  const auto run = compile(row, hosts);
  return 1e3 * plan::predict_step(*run, hosts, costs(row, *run, true));
}

CompareTie Forecast::tying_rate(const CompareRow& row, const CompareRow& beside) {
  const std::vector<int> hosts = each_its_own(row.layout.world_size());
  const std::vector<int> beside_hosts = each_its_own(beside.layout.world_size());
  const auto run = compile(row, hosts), beside_run = compile(beside, beside_hosts);
  plan::StepCosts own = costs(row, *run, true), other = costs(beside, *beside_run, true);
  own.communication.link_burst_bytes = other.communication.link_burst_bytes = 0;
  const auto ratio = [&](double rate) {
    place_.watch(0);
    own.communication.link_per_byte = other.communication.link_per_byte = 8 / rate;
    return plan::predict_step(*run, hosts, own) / plan::predict_step(*beside_run, beside_hosts, other);
  };
  return {.workers = row.workers,
          .kind = row.kind,
          .beside = beside.kind,
          .rates = plan::tying_rates(ratio, kTie)};
}

CompareTie Forecast::tying_servers(const CompareRow& row, const CompareRow& beside) {
  const double beside_ms = step_ms_apart(beside);
  // One server has nothing to be assigned.
  const int fewest = row.layout.assign == layout::ServerAssignment::whole ? 2 : 1;
  const auto ratio = [&](int servers) -> std::optional<double> {
    place_.watch(0);
    CompareRow more = row;
    more.layout.servers = servers;
    try {
      return step_ms_apart(more) / beside_ms;
    } catch (const ConfigError&) {
      return std::nullopt;  // the model has no more parts than that
    }
  };
  return {.workers = row.workers,
          .kind = row.kind,
          .beside = beside.kind,
          .link = row.link,
          .servers = plan::tying_servers(ratio, kTie, fewest, 2 * row.workers)};
}

std::vector<CompareLink> Forecast::links() const {
  std::map<std::string, CompareLink> links;
  std::map<std::string, bool> between;
  for (const auto& [key, report] : benches_) {
    const std::string& name = std::get<0>(key);
    const plan::MachineFigures figures = report.figures();
    const bool has_hosts = figures.between_hosts.latency > 0;
    if (report.pairs.empty() || (links.contains(name) && (between[name] || !has_hosts))) continue;
    const plan::MessageFigures& messages = has_hosts ? figures.between_hosts : figures.within_host;
    const auto rate = [](double seconds_per_byte) { return seconds_per_byte > 0 ? 8 / seconds_per_byte : 0; };
    CompareLink link{.link = name,
                     .latency_seconds = messages.latency,
                     .one_way_bits_per_second = rate(messages.one_way_per_byte),
                     .both_ways_bits_per_second = rate(messages.both_ways_per_byte),
                     .all_reduce = {}};
    for (const comm::SumTime& sum : report.sums) link.all_reduce.emplace_back(sum.bytes, sum.seconds);
    links[name] = std::move(link);
    between[name] = has_hosts;
  }
  std::vector<CompareLink> all;
  for (auto& [name, link] : links) all.push_back(std::move(link));
  return all;
}

}  // namespace lockstep::compare
