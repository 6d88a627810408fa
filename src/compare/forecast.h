#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compare/bench_report.h"
#include "compare/results.h"
#include "config/run_config.h"
#include "jobs/job.h"
#include "plan/step_prediction.h"

namespace lockstep::compare {

/// How a forecast starts jobs, and what it compiles: as the sweep does.
struct ForecastPlace {
  std::string directory;  ///< takes what its jobs write
  jobs::JobPlace place;
  bool stands_in = false;  ///< hosts are made on this machine, two of them
  std::function<void(const std::string& link)> use_link;
  std::function<void(pid_t)> watch;  ///< throws if nothing more is wanted
  /// A training of a row, and its config with further assignments.
  std::function<jobs::TrainingCommand(const CompareRow& row)> command;
  std::function<config::RunConfig(const CompareRow& row, const std::vector<std::string>& assignments)> config;
};

/// Predicts steps by times of layers, measured in short trainings with all-reduce, and by times of messages,
/// measured by `lockstep bench`, each once. Methods throw Error if these jobs fail, or if workers do not
/// compute on CPUs.
class Forecast {
 public:
  explicit Forecast(ForecastPlace place) : place_(std::move(place)) {}

  /// Predicted milliseconds of a step of a row, under the conditions of its measurement.
  double step_ms(const CompareRow& row);
  /// The same if each process has its own host.
  double step_ms_apart(const CompareRow& row);
  /// At which rates of a link `row`, of servers, is no slower than `beside`, and with how many dedicated
  /// servers, of twice the workers at most: each process on a host of its own. REQUIRES: both are of equal
  /// workers and pipelines, and of the same mathematics; for tying_servers() the row has dedicated servers.
  CompareTie tying_rate(const CompareRow& row, const CompareRow& beside);
  CompareTie tying_servers(const CompareRow& row, const CompareRow& beside);

  /// What was measured so far, for each link once: between hosts, if that is known.
  std::vector<CompareLink> links() const;

 private:
  const BenchReport& bench(const std::string& link, int processes, bool apart = false);
  struct Measured {
    model::Profile profile;
    double rest_seconds = 0;  ///< of a step
  };
  Measured profile_once(const CompareRow& row, int workers, int64_t micro_batch, int number) const;
  const Measured& profile(const CompareRow& row, int workers, int64_t micro_batch);
  double overhead(const CompareRow& row, int64_t micro_batch, double addition_per_byte);
  std::vector<int> hosts_of(const CompareRow& row);
  plan::StepCosts costs(const CompareRow& row, const compile::CompiledRun& run, bool apart);
  std::unique_ptr<compile::CompiledRun> compile(const CompareRow& row, const std::vector<int>& hosts,
                                                const std::vector<std::string>& assignments = {}) const;
  nlohmann::ordered_json run(jobs::ProcessJob job, const std::string& what, const std::string& folder) const;

  ForecastPlace place_;
  std::map<std::tuple<std::string, int, bool>, BenchReport> benches_;  // by link, processes, hosts apart
  std::map<std::tuple<int, int64_t, int64_t>, Measured> profiles_;  // by workers, micro-batch, global batch
};

/// Of each rank, on jobs::StandInHosts.
std::vector<int> stand_in_hosts(int processes);

}  // namespace lockstep::compare
