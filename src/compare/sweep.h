#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "compare/arguments.h"
#include "compare/forecast.h"
#include "compare/results.h"
#include "jobs/job_places.h"
#include "jobs/traced_training.h"
#include "jobs/workplace.h"
#include "train/loop/stop_request.h"

namespace lockstep::compare {

/// Somebody has asked to stop.
struct Interrupted {};
inline void leave_if_asked() {
  if (train::stop_requested()) throw Interrupted();
}

/// The sweep of `lockstep compare`: proves, predicts and measures rows, and writes results after each.
class CompareSweep {
 public:
  explicit CompareSweep(const CompareArguments& arguments);
  /// Does everything for which there is time. False if a stop was requested.
  bool run();
  const CompareResults& results() const { return results_; }
  std::string folder() const { return directory_; }
  bool all_are_well() const {
    return std::ranges::none_of(results_.rows, [](const CompareRow& row) {
      return !row.failure.empty() || row.proof == CompareProof::different ||
             row.proof == CompareProof::failed || (row.kill && !row.kill->failure.empty());
    });
  }

 private:
  std::vector<std::string> overrides(const CompareRow& row, bool proof) const;
  jobs::TrainingCommand command(const CompareRow& row, bool proof) const;
  config::RunConfig config_of(const CompareRow& row, const std::vector<std::string>& assignments = {}) const;
  void resume();
  void save() const;
  void use_link(const std::string& link);
  std::string folder_of(const CompareRow& row, const std::string& what) const {
    return fmt::format("{}/runs/{}-{}", directory_, layout::to_string(row.layout), what);
  }

  // check.cpp
  void check(std::vector<std::string> refused);
  std::string refusal_of(CompareRow& row, bool is_proven) const;
  void add_theory(CompareRow& row, const std::vector<std::string>& rank_hosts) const;

  // proofs.cpp
  /// Of a batch, with which the others are compared.
  struct FirstTraining {
    std::string name, math_hash;
    std::optional<jobs::TracedTraining> training;
  };
  bool is_proven(const CompareRow& row) const;
  void prove();
  void prove(CompareRow& row, FirstTraining& first, const std::string& number);

  // predictions.cpp
  void predict();
  void predict_ties(Forecast& forecast);

  // kill.cpp
  void kill_if_due(CompareRow& row);
  CompareKill run_kill(const CompareRow& row, const std::string& folder);
  jobs::JobOutcome start_saving(const CompareRow& row, const std::string& folder, int number,
                                const std::vector<std::string>& options) const;

  // rounds.cpp
  void measure();
  void measure(CompareRow& row, int round, size_t number);
  CompareSample sample(CompareRow& row, int round, const std::string& folder);
  nlohmann::ordered_json run_training(const CompareRow& row, const std::string& folder,
                                      const std::vector<std::string>& options) const;
  bool is_over() const { return seconds_left() <= 0; }
  double seconds_left() const {
    return 60 * arguments_.minutes - 1e-3 * milliseconds_between(rounds_began_, Clock::now());
  }
  double seconds_to_go() const;
  double seconds_of_kills(double run_seconds) const;
  /// Whether there is more than this host, so that something is known of links.
  bool has_known_hosts() const { return !arguments_.links.empty() || !results_.hosts_text.empty(); }

  const CompareArguments& arguments_;
  std::string directory_;
  jobs::JobPlace place_;
  std::optional<jobs::StandInHosts> hosts_;
  std::string rate_;  // of their link; "": not known
  std::optional<jobs::Workplace> workplace_;
  CompareResults results_;
  Clock::time_point rounds_began_;
  int measured_runs_ = 0;
  double measured_seconds_ = 0;
};

}  // namespace lockstep::compare
