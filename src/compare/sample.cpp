#include "compare/sample.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "observe/metrics_reader.h"

namespace lockstep::compare {
namespace {

using Json = nlohmann::ordered_json;

double busiest_server(const Json& ranks) {
  double most = 0;
  for (const Json& rank : ranks) most = std::max(most, rank.value("server_busy", 0.0));
  return most;
}

/// Of those that computed: the worker that waited longest for others.
const Json* longest_waiting(const Json& ranks) {
  const Json* found = nullptr;
  for (const Json& rank : ranks) {
    if (!rank.contains("exposed_comm_ms") || rank.at("role") == "server") continue;
    if (!found || rank.at("exposed_comm_ms").get<double>() > found->at("exposed_comm_ms").get<double>())
      found = &rank;
  }
  return found;
}

/// What of a worker's wait follows from its pipeline's schedule, and in what of the rest a server worked.
void split_wait(CompareSample& sample, double bubble_fraction) {
  sample.bubble_ms = std::min(sample.exposed_comm_ms, bubble_fraction * sample.step_ms);
  sample.server_ms = std::min(sample.exposed_comm_ms - sample.bubble_ms, sample.server_busy * sample.step_ms);
}

/// What the busiest interface of each host moved in a step.
std::vector<HostTraffic> traffic_of(const Json& ranks) {
  std::vector<HostTraffic> traffic;
  for (const Json& rank : ranks) {
    if (!rank.contains("interface_bytes")) continue;
    HostTraffic busiest{.host = rank.at("host").get<std::string>()};
    for (const Json& bytes : rank.at("interface_bytes")) {
      const double sent = bytes.at("sent").get<double>(), received = bytes.at("received").get<double>();
      if (std::max(sent, received) > std::max(busiest.sent, busiest.received))
        busiest.sent = sent, busiest.received = received;
    }
    traffic.push_back(std::move(busiest));
  }
  return traffic;
}

int count_hosts(const Json& ranks) {
  std::vector<std::string> hosts;
  for (const Json& rank : ranks) hosts.push_back(rank.at("host").get<std::string>());
  std::ranges::sort(hosts);
  return static_cast<int>(std::unique(hosts.begin(), hosts.end()) - hosts.begin());
}

/// Reports say in words what is not finite.
double loss_of(const Json& loss) {
  return loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

CompareSample sample_of(const Json& report, int round) {
  CompareSample sample{.round = round,
                       .step_ms = report.at("step_ms").at("mean").get<double>(),
                       .samples_per_second = report.at("samples_per_second").get<double>(),
                       .train_loss = loss_of(report.value("train_loss", Json()))};
  const Json& ranks = report.at("ranks");
  sample.server_busy = busiest_server(ranks);
  for (const Json& rank : ranks) sample.sent_bytes_per_step += rank.at("wire_bytes").at("sent").get<double>();
  sample.traffic = traffic_of(ranks);
  for (const HostTraffic& host : sample.traffic)
    sample.link_bytes_per_step = std::max({sample.link_bytes_per_step, host.sent, host.received});
  sample.hosts = count_hosts(ranks);
  // All of one worker, so that they fit into its step.
  if (const Json* worker = longest_waiting(ranks)) {
    sample.exposed_comm_ms = worker->at("exposed_comm_ms").get<double>();
    sample.data_wait_ms = worker->at("data_wait_ms").get<double>();
    sample.compute_ms = worker->value("compute_share", 0.0) * sample.step_ms;
  }
  split_wait(sample, report.value("bubble_fraction_theory", 0.0));
  if (report.contains("staleness")) {
    const Json& staleness = report.at("staleness");
    sample.staleness_mean = staleness.at("mean").get<double>();
    sample.staleness_max = staleness.at("max").get<int64_t>();
    if (staleness.contains("bound")) sample.staleness_bound = staleness.at("bound").get<int>();
    sample.staleness_histogram = staleness.at("histogram").get<std::vector<int64_t>>();
  }
  return sample;
}

std::vector<std::string> hosts_of_ranks(const Json& report) {
  std::vector<std::string> hosts;
  for (const Json& rank : report.at("ranks")) hosts.push_back(rank.at("host").get<std::string>());
  return hosts;
}

std::vector<CompareLoss> losses_of(const std::string& path, int64_t global_batch) {
  std::vector<observe::MetricsRow> steps = observe::read_metrics(path);
  std::erase_if(steps, [](const observe::MetricsRow& row) { return !row.has("loss"); });
  const size_t each = (steps.size() + kMostLosses - 1) / kMostLosses;
  std::vector<CompareLoss> losses;
  for (size_t begin = 0; begin < steps.size(); begin += each) {
    const size_t end = std::min(begin + each, steps.size());
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += steps[i].number("loss");
    losses.push_back(
        {.samples = steps[end - 1].step() * global_batch, .loss = sum / static_cast<double>(end - begin)});
  }
  return losses;
}

}  // namespace lockstep::compare
