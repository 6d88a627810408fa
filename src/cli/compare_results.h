#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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
  double straggler_step_ms = 0;  ///< of a run with a straggler; 0: nobody asked
  bool operator==(const CompareSample&) const = default;
};

/// The mean loss of some steps, and how many samples were seen when they were over.
struct CompareLoss {
  int64_t samples = 0;
  double loss = 0;
  bool operator==(const CompareLoss&) const = default;
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
  std::vector<CompareLoss> losses;  ///< of the first run
  std::string failure;              ///< of a measurement: why there are no more samples
  double predicted_ms = 0;          ///< of a step, whose processes have a core each; 0: nothing is predicted

  std::vector<double> step_times() const;
  double step_ms() const { return median(step_times()); }
  Interval step_interval() const { return bootstrap_median(step_times()); }
  /// "2 workers, sync=ps", with the link where there is one.
  std::string name() const;
  double predicted_rate() const { return 1e3 * static_cast<double>(global_batch) / predicted_ms; }
  /// Of throughput, what is left with a straggler. REQUIRES: it was measured.
  double straggler_goodput() const;
  /// Seconds of training until losses are first as low as that, at the median pace; nothing where they are
  /// not.
  std::optional<double> seconds_to(double loss) const;
  /// Of the prediction beside the median: 0.1 says that it is a tenth too long. REQUIRES: both are there.
  double prediction_error() const { return predicted_ms / step_ms() - 1; }
  double mean(double CompareSample::*field) const;  ///< of all samples; 0 without any
  double samples_per_second() const { return 1e3 * static_cast<double>(global_batch) / step_ms(); }
  /// Whether the interval of 95 % is no wider on either side than `precision` of the median.
  bool is_precise(double precision) const;
};

/// Where a layout with servers is predicted to be no slower than another one: either from which rate of a
/// link on, or with how many servers over a link of a known rate.
struct CompareTie {
  int workers = 1;
  std::string kind, beside;
  double bits_per_second = 0;  ///< 0: always; infinity: never
  bool up_to = false;          ///< that rate, rather than from it on
  std::string link;            ///< over which servers are counted; "": over that of the hosts
  std::optional<int> servers;  ///< 0: none of those that were tried; none: it is the rate that is told
  int servers_tried = 0;
  bool operator==(const CompareTie&) const = default;
};

/// All that `lockstep compare` has found out so far.
struct CompareResults {
  std::string command;                                    ///< that does it again
  std::string config, config_hash, version, host, began;  ///< config_hash: of the config as it is stated
  bool weak = false;                                      ///< the batch grows with the workers
  int64_t steps = 0, proof_steps = 0;
  int cores = 0;
  std::string straggler;   ///< "RANK:FACTOR"; "": nobody asked
  double target_loss = 0;  ///< likewise 0
  std::string device;      ///< as it was asked for
  std::string hosts_text;  ///< of the hostfile; "": there is none
  double price = 0;        ///< of a host for an hour; 0: nobody asked
  std::vector<CompareRow> rows;
  std::vector<CompareRow> forecasts;  ///< with more workers than there are: predicted alone
  std::vector<CompareTie> ties;

  /// Whether they are of the same comparison: everything but what was found, and where and when.
  bool continues(const CompareResults& other) const;
  /// Throughput of each worker, beside the fewest workers of the same layout. REQUIRES: the row has samples.
  double efficiency(const CompareRow& row) const;
  /// Of a million samples, at `price`. REQUIRES: likewise.
  double cost(const CompareRow& row) const;
  /// In the order of rows; "" alone where no link was asked for.
  std::vector<std::string> links() const;
  /// Whether each process of the row has a core of its own.
  bool has_cores(const CompareRow& row) const { return row.layout.world_size() <= cores; }
  /// Of predictions beside what was measured, without sign: the median of rows whose processes have a core
  /// each; nothing where there is none.
  std::optional<double> prediction_error() const;
  /// A sentence that answers, for each link, and one about ties; at least one.
  std::vector<std::string> answers() const;
  std::string headline() const;  ///< all of them
  std::string table() const;
  std::string predictions() const;  ///< lines below the table; none where nothing is predicted
  std::string csv() const;
};

/// "sync=ps,servers=1 ties with sync=all_reduce from 2.1 Gbit/s on".
std::string sentence_of(const CompareTie& tie);

nlohmann::ordered_json to_json(const CompareResults& results);
/// Throws DataError where `text` is not what to_json() makes.
CompareResults compare_results_from_text(const std::string& text, const std::string& name);

}  // namespace lockstep::cli
