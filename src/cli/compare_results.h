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
  double exposed_comm_ms = 0;  ///< of the worker that waited longest, as data_wait_ms and compute_ms are
  double data_wait_ms = 0;
  double compute_ms = 0;  ///< 0 where it is not known
  double bubble_ms = 0;   ///< of that wait, what follows from a pipeline's schedule
  double server_ms = 0;   ///< of the rest of it, in which a server was busy, at most
  double samples_per_second = 0;
  double sent_bytes_per_step = 0;  ///< of all ranks
  double link_bytes_per_step = 0;  ///< that the busiest network interface moved in its busier direction
  double hosts = 1;                ///< on which there were ranks
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
  std::string link;  ///< rate of the link between two hosts; "": there is none such
  int workers = 1;
  layout::Layout layout;  ///< its dp known
  std::string kind;       ///< the layout as it was asked for, without dp
  int64_t global_batch = 0;
  /// That programs move over the busiest host's link in its busier direction; 0 on one host.
  double link_bytes_theory = 0;
  CompareProof proof = CompareProof::not_tried;
  std::string proof_detail;  ///< where it is different or failed
  std::vector<CompareSample> samples;
  std::string failure;  ///< of a measurement: why there are no more samples

  std::vector<double> step_times() const;
  double step_ms() const { return median(step_times()); }
  Interval step_interval() const { return bootstrap_median(step_times()); }
  /// "2 workers, sync=ps", with the link where there is one.
  std::string name() const;
  double mean(double CompareSample::*field) const;  ///< of all samples; 0 without any
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
  double price = 0;  ///< of a host for an hour; 0: nobody asked
  std::vector<CompareRow> rows;

  /// Whether they are of the same comparison: everything but what was found, and where and when.
  bool continues(const CompareResults& other) const;
  /// Throughput of each worker, beside the fewest workers of the same layout. REQUIRES: the row has samples.
  double efficiency(const CompareRow& row) const;
  /// Of a million samples, at `price`. REQUIRES: likewise.
  double cost(const CompareRow& row) const;
  /// In the order of rows; "" alone where no link was asked for.
  std::vector<std::string> links() const;
  std::string headline() const;  ///< a sentence that answers, for each link
  std::string table() const;
  std::string csv() const;
};

nlohmann::ordered_json to_json(const CompareResults& results);
/// Throws DataError where `text` is not what to_json() makes.
CompareResults compare_results_from_text(const std::string& text, const std::string& name);

}  // namespace lockstep::cli
