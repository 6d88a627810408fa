#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

/// In what form micro-batches get to a device.
struct BatchForm {
  std::optional<program::PackedInput> packed = {};  ///< images are packed samples (data.transforms_on: GPU)
  device::Device* device = nullptr;  ///< that copies them from where they were read to; may be null
  int64_t most_samples = 0;          ///< of a micro-batch; if there is a device
};

/// Feeds a rank's `load` instructions from a data set. Reads ahead in the order in which the program loads.
class PrefetchedBatches : public run::BatchSource {
 public:
  /// `batch_samples`: samples of one iteration, all ranks together. `micro_batches`: of this rank, ascending,
  /// by their places in it. `stride`: the likely difference between an iteration and the next one that is
  /// loaded.
  PrefetchedBatches(const data::Dataset& dataset, const model::Graph& graph, data::SampleOrder order,
                    int64_t batch_samples, std::vector<data::SampleSpan> micro_batches,
                    const ReadAhead& ahead, int64_t stride = 1, const BatchForm& form = {});

  /// Moves all iterations by so many samples in the data set's order, compared with batches 0, 1, 2...
  /// REQUIRES: nothing is being read.
  void shift(int64_t samples) { shift_ = samples; }
  void load(uint64_t iteration, int64_t position, std::span<const Tensor> fields) override;
  bool exchanges() const override { return exchanges_; }
  void exchange(uint64_t iteration, int64_t position, device::Buffer& buffer) override;
  /// Begins to read what `iteration` will load first.
  void start(uint64_t iteration);
  double data_wait_ms() const { return prefetcher_->data_wait_ms(); }
  data::StageTimes stage_times() const { return prefetcher_->stage_times(); }
  int64_t held_bytes() const { return prefetcher_->held_bytes(); }

 private:
  data::SampleSpan span_of(uint64_t iteration, int64_t position) const;
  data::SampleSpan span_of(uint64_t iteration, const data::SampleSpan& micro_batch) const;

  int64_t batch_samples_, stride_, shift_ = 0;
  bool exchanges_;
  std::vector<data::SampleSpan> micro_batches_;
  std::unique_ptr<data::Prefetcher> prefetcher_;
};

/// Bytes that PrefetchedBatches holds once all of its micro-batches have been read ahead.
struct ReadAheadBytes {
  int64_t batches = 0;  ///< with BatchForm::device, memory of that device's host
  int64_t samples = 0;  ///< that are converted
};
/// `exchanged`: there is a BatchForm::device.
ReadAheadBytes read_ahead_bytes(const model::Graph& graph, int64_t micro_batch, const ReadAhead& ahead,
                                bool exchanged = false,
                                const std::optional<program::PackedInput>& packed = {});

/// Throws ConfigError if the data set does not have the model's inputs: names, shapes, types, classes; or if
/// it is not packed as `packed` says.
void check_data_fits_model(const data::Dataset& dataset, const model::Graph& graph,
                           const std::optional<program::PackedInput>& packed = {});

}  // namespace lockstep::train
