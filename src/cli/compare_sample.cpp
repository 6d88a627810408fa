#include "cli/compare_sample.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "observe/metrics_reader.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

double longest(const Json& ranks, const char* field, bool of_workers) {
  double most = 0;
  for (const Json& rank : ranks)
    if (rank.contains(field) && (!of_workers || rank.at("role") != "server"))
      most = std::max(most, rank.at(field).get<double>());
  return most;
}

/// What of a worker's wait follows from its pipeline's schedule, and in what of the rest a server worked.
void split_wait(CompareSample& sample, double bubble_fraction) {
  sample.bubble_ms = std::min(sample.exposed_comm_ms, bubble_fraction * sample.step_ms);
  sample.server_ms = std::min(sample.exposed_comm_ms - sample.bubble_ms, sample.server_busy * sample.step_ms);
}

/// That the busiest interface of any host moved in a step, in its busier direction.
double busiest_interface(const Json& ranks) {
  double most = 0;
  for (const Json& rank : ranks)
    if (rank.contains("interface_bytes"))
      for (const Json& bytes : rank.at("interface_bytes"))
        most = std::max({most, bytes.at("sent").get<double>(), bytes.at("received").get<double>()});
  return most;
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
                       .train_loss = loss_of(report.at("train_loss"))};
  const Json& ranks = report.at("ranks");
  sample.exposed_comm_ms = longest(ranks, "exposed_comm_ms", true);
  sample.data_wait_ms = longest(ranks, "data_wait_ms", true);
  sample.server_busy = longest(ranks, "server_busy", false);
  for (const Json& rank : ranks) sample.sent_bytes_per_step += rank.at("wire_bytes").at("sent").get<double>();
  sample.link_bytes_per_step = busiest_interface(ranks);
  sample.hosts = count_hosts(ranks);
  for (const Json& rank : ranks) {
    const bool waited_longest = rank.contains("exposed_comm_ms") &&
                                rank.at("exposed_comm_ms").get<double>() == sample.exposed_comm_ms;
    if (waited_longest && rank.contains("compute_share"))
      sample.compute_ms = rank.at("compute_share").get<double>() * sample.step_ms;
  }
  split_wait(sample, report.value("bubble_fraction_theory", 0.0));
  if (report.contains("staleness")) sample.staleness_mean = report.at("staleness").at("mean").get<double>();
  return sample;
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

}  // namespace lockstep::cli
