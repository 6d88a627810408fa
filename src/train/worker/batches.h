#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/prefetch.h"
#include "model/graph.h"
#include "run/actions.h"

namespace lockstep::train {

/// How micro-batches are read ahead.
struct ReadAhead {
  int threads = 1, depth = 4;  ///< with `adapts`, at most
  bool adapts = false;
};
/// As the data's options say. `cores`: this rank's share of its host's, which threads that adapt may use.
ReadAhead read_ahead_of(const data::DataOptions& data, int cores);

/// Feeds a rank's `load` instructions from a data set. Reads ahead in the order in which the program loads.
class PrefetchedBatches : public run::BatchSource {
 public:
  /// `batch_samples`: samples of one iteration, all ranks together. `micro_batches`: of this rank, ascending,
  /// by their places in it. `stride`: the likely difference between an iteration and the next one that is
  /// loaded.
  PrefetchedBatches(const data::Dataset& dataset, const model::Graph& graph, data::SampleOrder order,
                    int64_t batch_samples, std::vector<data::SampleSpan> micro_batches,
                    const ReadAhead& ahead, int64_t stride = 1);

  /// Moves all iterations by so many samples in the data set's order, compared with batches 0, 1, 2...
  /// REQUIRES: nothing is being read.
  void shift(int64_t samples) { shift_ = samples; }
  void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) override;
  /// Begins to read what `iteration` will load first.
  void start(uint64_t iteration);
  double data_wait_ms() const { return prefetcher_->data_wait_ms(); }
  data::StageTimes stage_times() const { return prefetcher_->stage_times(); }
  int64_t held_bytes() const { return prefetcher_->held_bytes(); }

 private:
  data::SampleSpan span_of(uint64_t iteration, int64_t position) const;
  data::SampleSpan span_of(uint64_t iteration, const data::SampleSpan& micro_batch) const;

  int64_t batch_samples_, stride_, shift_ = 0;
  std::vector<data::SampleSpan> micro_batches_;
  std::unique_ptr<data::Prefetcher> prefetcher_;
};

/// Bytes that PrefetchedBatches holds once all of its micro-batches have been read ahead.
int64_t read_ahead_bytes(const model::Graph& graph, int64_t micro_batch, const ReadAhead& ahead);

/// Throws ConfigError if the data set does not have the model's inputs: names, shapes, types, classes.
void check_data_fits_model(const data::Dataset& dataset, const model::Graph& graph);

}  // namespace lockstep::train
