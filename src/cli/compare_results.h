#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "layout/layout.h"

namespace lockstep::cli {

/// What one training of a row told. Milliseconds are means of its steps after the first ones.
struct CompareSample {
  int round = 0;  ///< counted from 1
  double step_ms = 0;
  double exposed_comm_ms = 0;  ///< of the worker that waited longest, as are data_wait_ms
  double data_wait_ms = 0;
  double samples_per_second = 0;
  double sent_bytes_per_step = 0;  ///< of all ranks
  double server_busy = 0;          ///< of the busiest server, a part of its time
  double staleness_mean = 0;
  double train_loss = 0;
  bool operator==(const CompareSample&) const = default;
};

/// Whether a row's bits are those of the first row of its batch.
enum class CompareProof { not_tried, identical, different, other_mathematics, failed };
std::string_view name_of(CompareProof proof);

/// A layout with a number of workers.
struct CompareRow {
  int workers = 1;
  layout::Layout layout;  ///< its dp known
  std::string kind;       ///< the layout as it was asked for, without dp
  int64_t global_batch = 0;
  CompareProof proof = CompareProof::not_tried;
  std::string proof_detail;  ///< where it is different or failed
  std::vector<CompareSample> samples;
  std::string failure;  ///< of a measurement: why there are no more samples

  std::vector<double> step_times() const;
  double step_ms() const { return median(step_times()); }
  Interval step_interval() const { return bootstrap_median(step_times()); }
  double samples_per_second() const { return 1e3 * static_cast<double>(global_batch) / step_ms(); }
  /// Whether the interval of 95 % is no wider on either side than `precision` of the median.
  bool is_precise(double precision) const;
};

/// All that `lockstep compare` has found out so far.
struct CompareResults {
  std::string command;                                    ///< that does it again
  std::string config, config_hash, version, host, began;  ///< config_hash: of the config as it is stated
  bool weak = false;                                      ///< the batch grows with the workers
  int64_t steps = 0, proof_steps = 0;
  int cores = 0;
  std::vector<CompareRow> rows;

  /// Whether they are of the same comparison: everything but what was found, and where and when.
  bool continues(const CompareResults& other) const;
  /// Throughput of each worker, beside the fewest workers of the same layout. REQUIRES: the row has samples.
  double efficiency(const CompareRow& row) const;
  std::string headline() const;  ///< one sentence that answers
  std::string table() const;
  std::string csv() const;
};

nlohmann::ordered_json to_json(const CompareResults& results);
/// Throws DataError where `text` is not what to_json() makes.
CompareResults compare_results_from_text(const std::string& text, const std::string& name);

}  // namespace lockstep::cli
