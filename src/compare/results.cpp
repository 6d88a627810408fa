#include "compare/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::compare {

std::string CompareRow::name() const {
  return fmt::format("{}{} worker{}, {}", link.empty() ? "" : "link " + link + ", ", workers,
                     workers == 1 ? "" : "s", kind);
}

double CompareRow::mean(double CompareSample::*field) const {
  double sum = 0;
  for (const CompareSample& sample : samples) sum += sample.*field;
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

std::vector<double> CompareRow::step_times() const {
  std::vector<double> times;
  for (const CompareSample& sample : samples) times.push_back(sample.step_ms);
  return times;
}

double CompareRow::straggler_goodput() const {
  const double with = mean(&CompareSample::straggler_step_ms);
  return with > 0 ? mean(&CompareSample::step_ms) / with : 0;
}

std::optional<double> CompareRow::seconds_to(double loss) const {
  const auto reached =
      std::ranges::find_if(losses, [loss](const CompareLoss& some) { return some.loss <= loss; });
  if (reached == losses.end() || samples.empty()) return std::nullopt;
  return static_cast<double>(reached->samples) / samples_per_second();
}

bool CompareRow::is_precise(double precision) const {
  if (samples.size() < kFewestRuns) return false;
  const Interval interval = step_interval();
  const double middle = step_ms();
  return middle - interval.low <= precision * middle && interval.high - middle <= precision * middle;
}

std::string CompareResults::first_difference(const CompareResults& other) const {
  const auto same = [](const CompareRow& one, const CompareRow& two) {
    return one.link == two.link && one.workers == two.workers && one.layout == two.layout &&
           one.global_batch == two.global_batch;
  };
  const bool has_links = std::ranges::any_of(rows, [](const CompareRow& row) { return !row.link.empty(); });
  const std::pair<const char*, bool> fields[] = {
      {"the config", config_hash == other.config_hash},
      {"lockstep's version", version == other.version},
      {"--scaling", weak == other.weak},
      {"--steps", steps == other.steps},
      {"--proof-steps", proof_steps == other.proof_steps},
      {"--straggler", straggler == other.straggler},
      {"--kill", kill_rank == other.kill_rank},
      {"--device", device == other.device},
      {"the machine", host == other.host},
      {"the hosts", hosts_text == other.hosts_text},
      {"--workers, --layouts or --link", std::ranges::equal(rows, other.rows, same)},
      {"the order of ranks on the hosts", !has_links || ranks == other.ranks},
      {"--predict", std::ranges::equal(forecasts, other.forecasts, same)},
  };
  for (const auto& [name, is_same] : fields)
    if (!is_same) return name;
  return "";
}

double CompareResults::efficiency(const CompareRow& row) const {
  const CompareRow* fewest = &row;
  for (const CompareRow& other : rows)
    if (other.link == row.link && other.kind == row.kind && !other.samples.empty() &&
        other.workers < fewest->workers)
      fewest = &other;
  return row.samples_per_second() * fewest->workers / (fewest->samples_per_second() * row.workers);
}

std::optional<double> CompareResults::prediction_error() const {
  std::vector<double> errors;
  for (const CompareRow& row : rows)
    if (!row.samples.empty() && row.predicted_ms > 0 && has_cores(row))
      errors.push_back(std::abs(row.prediction_error()));
  if (errors.empty()) return std::nullopt;
  return median(errors);
}

double CompareResults::cost(const CompareRow& row) const {
  const double seconds = 1e6 / row.samples_per_second();
  return price * row.mean(&CompareSample::hosts) * seconds / 3600;
}

std::vector<std::string> CompareResults::links() const {
  std::vector<std::string> links;
  for (const CompareRow& row : rows)
    if (std::ranges::find(links, row.link) == links.end()) links.push_back(row.link);
  return links;
}

double CompareResults::predicted_efficiency(const CompareRow& row) const {
  const CompareRow* fewest = &row;
  for (const auto* some : {&rows, &forecasts})
    for (const CompareRow& other : *some)
      if (other.link == row.link && other.kind == row.kind && other.predicted_ms > 0 &&
          other.workers < fewest->workers)
        fewest = &other;
  return row.predicted_rate() * fewest->workers / (fewest->predicted_rate() * row.workers);
}

double CompareResults::predicted_cost(const CompareRow& row) const {
  return price * row.layout.world_size() * 1e6 / row.predicted_rate() / 3600;
}

bool CompareResults::has_cores(const CompareRow& row) const {
  const int servers = row.layout.dedicated_servers();
  const int all = row.layout.workers() * threads + servers * server_threads;
  const bool is_elsewhere = !hosts_text.empty() && !row.samples.empty();
  const double hosts = is_elsewhere ? row.mean(&CompareSample::hosts) : 1;
  return all <= cores * hosts;
}

double CompareResults::free_rate() const {
  const auto found = std::ranges::find(measured_links, "none", &CompareLink::link);
  return found == measured_links.end() ? 0 : found->one_way_bits_per_second;
}

}  // namespace lockstep::compare
