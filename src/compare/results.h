#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.h"
#include "layout/layout.h"
#include "plan/ties.h"

namespace lockstep::compare {

/// The fewest runs for a statement.
inline constexpr size_t kFewestRuns = 3;

/// Bytes that a host's network interfaces moved in a step, or that programs say they move.
struct HostTraffic {
  std::string host;
  double sent = 0, received = 0;
  bool operator==(const HostTraffic&) const = default;
};

/// The measurements of one training of a row. Milliseconds are means of its steps after the first ones.
struct CompareSample {
  int round = 0;  ///< counted from 1
  double step_ms = 0;
  double exposed_comm_ms = 0;  ///< of the worker that waited longest, as data_wait_ms and compute_ms are
  double data_wait_ms = 0;
  double compute_ms = 0;  ///< 0 if it is not known
  double bubble_ms = 0;   ///< of that wait, what follows from a pipeline's schedule
  double server_ms = 0;   ///< of the rest of it, in which a server was busy, at most
  double samples_per_second = 0;
  double sent_bytes_per_step = 0;  ///< of all ranks
  double link_bytes_per_step = 0;  ///< that the busiest network interface moved in its busier direction
  double hosts = 1;                ///< on which there were ranks
  double server_busy = 0;          ///< of the busiest server, a part of its time
  double staleness_mean = 0;
  double train_loss = 0;
  double straggler_step_ms = 0;      ///< of a run with a straggler; 0: nobody asked
  std::vector<HostTraffic> traffic;  ///< as interfaces counted; none if the run was too short
  std::optional<int> staleness_bound;
  int64_t staleness_max = 0;
  std::vector<int64_t> staleness_histogram;  ///< pushes of parts of the parameters, by staleness
  bool operator==(const CompareSample&) const = default;
};

/// The mean loss of some steps, and the number of samples seen after them.
struct CompareLoss {
  int64_t samples = 0;
  double loss = 0;
  bool operator==(const CompareLoss&) const = default;
};

/// A training in which a worker is killed in the middle, restarted until it is complete.
struct CompareKill {
  double seconds = 0, undisturbed_seconds = 0;  ///< of whole jobs, with their starts and checkpoints
  int starts = 0;
  std::string failure;  ///< "": it was completed
  /// The share of throughput that is left. REQUIRES: it was completed.
  double goodput() const { return undisturbed_seconds / seconds; }
  bool operator==(const CompareKill&) const = default;
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
  std::vector<HostTraffic> links_theory;  ///< by host; none on one
  CompareProof proof = CompareProof::not_tried;
  std::string proof_detail;  ///< if it is different or failed
  std::string math_hash;     ///< of the proof: what decides the numbers, whatever the layout
  std::vector<CompareSample> samples;
  std::vector<CompareLoss> losses;  ///< of the first run
  std::string failure;              ///< of a measurement: why there are no more samples
  std::optional<CompareKill> kill;
  double predicted_ms = 0;  ///< of a step, whose processes have a core each; 0: nothing is predicted

  std::vector<double> step_times() const;
  double step_ms() const { return median(step_times()); }
  Interval step_interval() const { return bootstrap_median(step_times()); }
  /// "2 workers, sync=ps", with the link if there is one.
  std::string name() const;
  double predicted_rate() const { return 1e3 * static_cast<double>(global_batch) / predicted_ms; }
  /// The share of throughput that is left with a straggler. REQUIRES: it was measured.
  double straggler_goodput() const;
  /// Seconds of training until losses are first as low as that, at the median pace; nothing if they are
  /// not.
  std::optional<double> seconds_to(double loss) const;
  /// The relative error of the prediction to the median: 0.1 means a tenth too long. REQUIRES: there are
  /// both.
  double prediction_error() const { return predicted_ms / step_ms() - 1; }
  double mean(double CompareSample::*field) const;  ///< of all samples; 0 without any
  double samples_per_second() const { return 1e3 * static_cast<double>(global_batch) / step_ms(); }
  /// Whether the interval of 95 % is no wider on either side than `precision` of the median.
  bool is_precise(double precision) const;
};

/// Where a layout with servers is predicted to be no slower than another one, each process on a host of its
/// own: either at which rates of a link, or with how many servers over a link of a known rate.
struct CompareTie {
  int workers = 1;
  std::string kind, beside;
  std::vector<plan::RateRange> rates;         ///< none: at no rate
  std::string link;                           ///< over which servers are counted; "": over that of the hosts
  std::optional<plan::TyingServers> servers;  ///< nothing: it is rates that are told
  bool operator==(const CompareTie&) const = default;
};

/// Measurements of a link, made before predictions.
struct CompareLink {
  std::string link;  ///< as it was asked for; "": of the hosts, or within the only one
  double latency_seconds = 0, one_way_bits_per_second = 0, both_ways_bits_per_second = 0;  ///< 0: unknown
  std::vector<std::pair<int64_t, double>> all_reduce;  ///< bytes, seconds; of two processes
  bool operator==(const CompareLink&) const = default;
};

/// Of the layouts with the most workers over a link: the fastest one, and the others, which are at least as
/// slow. Points to rows of the results.
struct CompareStanding {
  std::string link;
  int workers = 0;
  const CompareRow* fastest = nullptr;
  std::vector<const CompareRow*> slower;  ///< measured to be slower; the fastest of them comes first
  std::vector<const CompareRow*> alike;   ///< the runs do not tell them apart from `fastest`
};

/// All results of `lockstep compare` so far.
struct CompareResults {
  std::string command;                                    ///< that does it again
  std::string config, config_hash, version, host, began;  ///< config_hash: of the config as it is stated
  bool weak = false;                                      ///< the batch grows with the workers
  int64_t steps = 0, proof_steps = 0;
  int cores = 0;
  std::string straggler;                ///< "RANK:FACTOR"; "": nobody asked
  double target_loss = 0;               ///< likewise 0
  std::string device;                   ///< as it was asked for
  std::string hosts_text;               ///< of the hostfile; "": there is none
  double price = 0;                     ///< of a host for an hour; 0: nobody asked
  std::string cpu, kernel, mpirun;      ///< of this machine: model, release, version
  std::string data, element_type;       ///< that all rows train on and with
  uint64_t seed = 0;                    ///< likewise
  int threads = 1, server_threads = 1;  ///< that a worker and a dedicated server compute with
  int kill_rank = -1;                   ///< of the worker that is killed once; -1: nobody asked
  std::string ranks = "by host";  ///< on the hosts of --link; "" in files of builds in which they alternated
  std::vector<CompareRow> rows;
  std::vector<CompareRow> forecasts;  ///< with more workers than there are: predicted alone
  std::vector<CompareTie> ties;
  std::vector<CompareLink> measured_links;

  /// The first setting, in a user's words, by which `other` is a different comparison; results and dates do
  /// not count. "" if it is the same one.
  std::string first_difference(const CompareResults& other) const;
  /// Throughput per worker, relative to the fewest workers of the same layout. REQUIRES: the row has samples.
  double efficiency(const CompareRow& row) const;
  /// Likewise by predictions. REQUIRES: the row is predicted.
  double predicted_efficiency(const CompareRow& row) const;
  /// The cost of a million samples, at `price`. REQUIRES: the row has samples.
  double cost(const CompareRow& row) const;
  /// Likewise by a prediction, each process on a host of its own. REQUIRES: the row is predicted.
  double predicted_cost(const CompareRow& row) const;
  /// Bits per second of the link that nothing limits, one way; 0: unknown.
  double free_rate() const;
  /// In the order of rows; only "" if no link was asked for.
  std::vector<std::string> links() const;
  /// Whether each thread that computes has a core of its own: on this machine, which makes all hosts unless a
  /// hostfile names others; of these, as if each had as many cores as this one.
  bool has_cores(const CompareRow& row) const;
  /// The median absolute error of predictions, over measured rows whose processes have a core each; nothing
  /// if there is no such row.
  std::optional<double> prediction_error() const;
  /// One for each link over which two layouts with equal numbers of workers were measured.
  std::vector<CompareStanding> standings() const;
  /// For each link, a sentence for the fastest layout, and one for those that are not told apart from it.
  std::string headline() const;
  /// These sentences, and others about bits and predictions; at least one.
  std::vector<std::string> answers() const;
  std::string table() const;
  std::string predictions() const;  ///< lines below the table; none if nothing is predicted
  std::string csv() const;
};

/// "2 workers: sync=ps takes at most 2 % longer than sync=all_reduce at link rates from 2.1 Gbit/s on".
std::string sentence_of(const CompareTie& tie);

nlohmann::ordered_json to_json(const CompareResults& results);
/// Throws DataError if `text` is not what to_json() makes.
CompareResults compare_results_from_text(const std::string& text, const std::string& name);

}  // namespace lockstep::compare
