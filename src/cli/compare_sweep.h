#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/compare_forecast.h"
#include "cli/compare_options.h"
#include "cli/compare_results.h"
#include "cli/job_places.h"
#include "cli/traced_training.h"
#include "cli/workplace.h"

namespace lockstep::cli {

/// The sweep of `lockstep compare`: proves, predicts and measures rows, and writes what it has found after
/// each.
class CompareSweep {
 public:
  explicit CompareSweep(const CompareArguments& arguments);
  /// Everything there is time for. Returns whether nobody asked to stop.
  bool run();
  const CompareResults& results() const { return results_; }
  std::string folder() const { return directory_; }
  bool all_are_well() const {
    return std::ranges::none_of(results_.rows, [](const CompareRow& row) {
      return !row.failure.empty() || row.proof == CompareProof::different ||
             row.proof == CompareProof::failed;
    });
  }

 private:
  std::vector<std::string> overrides(const CompareRow& row, bool proof) const;
  TrainingCommand command(const CompareRow& row, bool proof) const;
  void check(CompareRow& row) const;
  void resume();
  void prove();
  void prove(CompareRow& row, const CompareRow*& first_row, std::optional<TracedTraining>& first);
  config::RunConfig config_of(const CompareRow& row, const std::vector<std::string>& assignments = {}) const;
  void predict();
  void predict_ties(Forecast& forecast);
  void measure();
  nlohmann::ordered_json run_training(const CompareRow& row, const std::string& folder,
                                      const std::vector<std::string>& options) const;
  void measure(CompareRow& row, int round, size_t number);
  bool is_over() const { return seconds_left() <= 0; }
  double seconds_left() const {
    return 60 * arguments_.minutes - 1e-3 * milliseconds_between(began_, Clock::now());
  }
  std::string folder_of(const CompareRow& row, const std::string& what) const {
    return fmt::format("{}/runs/{}-{}", directory_, layout::to_string(row.layout), what);
  }
  void save() const;
  void use_link(const std::string& link);

  const CompareArguments& arguments_;
  std::string directory_;
  JobPlace place_;
  std::optional<StandInHosts> hosts_;
  std::string rate_;  // of their link
  std::optional<Workplace> workplace_;
  CompareResults results_;
  Clock::time_point began_ = Clock::now();
};

}  // namespace lockstep::cli
