#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "data/batch_reader.h"
#include "data/read_ahead_control.h"
#include "data/stage_clock.h"
#include "device/device.h"
#include "tensor/batch_places.h"

namespace lockstep::data {

struct PrefetchOptions {
  int threads = 1;      ///< 0: everything is read by take() itself
  int depth = 4;        ///< micro-batches held ready, at least 1
  bool adapts = false;  ///< both are what may be used at most; how much is, is found out (ReadAheadControl)
  std::vector<std::string>
      fields;  ///< fields that take() fills, in this order; empty: all, in the data set's order
  DType float_type = DType::float32;  ///< in which fields of float32 are delivered
  bool packed = false;                ///< images are delivered as packed samples (Dataset::read_packed)
  /// If set, batches lie in memory that it makes, from which a device can copy, and exchange() delivers them.
  /// A batch has then at most `most_samples`. The thread that takes calls it, once there is something to read
  /// ahead; with `adapts` for no more batches than are read ahead.
  std::function<device::Buffer(int64_t size_bytes)> allocate = {};
  int64_t most_samples = 0;
};

/// Reads micro-batches ahead of the trainer, on its own threads. `next` predicts the order. If the trainer
/// asks for another micro-batch (after a resume, or to replay a step), what was read ahead is discarded,
/// take() reads by itself, and prediction continues from there. Nothing is allocated per batch once every
/// slot has held the largest one.
///
/// Thread-safety: one thread calls start() and take(). Any thread may call `next`, one call at a time.
/// Ownership: borrows the data set, which must outlive this.
class Prefetcher {
 public:
  using Next = std::function<SampleSpan(SampleSpan)>;

  /// REQUIRES: `next` is a pure function that does not throw.
  Prefetcher(const Dataset& dataset, SampleOrder order, Next next, const PrefetchOptions& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Begins reading `first`, for which take() will ask next. Discards what was read ahead.
  void start(SampleSpan first);
  /// Fills `fields`, each of shape [span.count, ...]. Rethrows errors of reading this span; the next call
  /// works again. Throws ConfigError for tensors that do not fit.
  void take(SampleSpan span, std::span<const Tensor> fields);
  /// The same without a copy: `buffer` becomes the memory that holds the batch, with its fields where
  /// places() says. What it was before is filled later. REQUIRES: PrefetchOptions::allocate; the buffer is of
  /// places().size_bytes, and nobody reads it any more.
  void exchange(SampleSpan span, device::Buffer& buffer);
  /// Throws ConfigError unless batches of most_samples that are exchanged have these fields: exchange() sees
  /// bytes alone.
  void require_fields(std::span<const Tensor> fields) const { reader_.check({0, most_samples_}, fields); }
  /// Of a batch of most_samples.
  const tensor::BatchPlaces& places() const { return places_; }

  /// Time that take() spent waiting, or reading by itself, since construction. For the thread that calls
  /// take().
  double data_wait_ms() const { return wait_ms_; }
  /// What all threads together have spent on each stage. Any thread may call it.
  StageTimes stage_times() const;
  /// How many threads read now, and how far ahead. For the thread that calls take().
  ReadAheadSize size() const { return size_; }
  /// Bytes allocated for batches so far, without those of PrefetchOptions::allocate, which its device counts.
  /// Any thread may call it.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  enum class State { free, filling, ready };
  /// Grows to the largest that is asked for, and is not cleared.
  struct Storage {
    std::unique_ptr<std::byte[]> bytes;
    int64_t capacity = 0;
  };
  struct Slot {
    State state = State::free;
    SampleSpan span;
    std::vector<Storage> storage;     // per field, unless batches are exchanged
    device::Buffer buffer;            // of all fields, if they are; not while the slot is free
    std::vector<std::byte*> batches;  // into one of them
    std::vector<std::byte> scratch;
    std::exception_ptr error;
  };

  void work(int thread);
  void adapt(double waited_ms);
  void add_stages(const StageTimes& before);
  void notify_work();
  bool can_claim() const;
  void make_buffers();
  void set_free(Slot& slot);
  void fill(Slot& slot, uint64_t generation);
  void make_room(Slot& slot);
  void point_into(const device::Buffer& buffer, std::vector<std::byte*>& batches) const;
  template <class Receive, class Read>
  void deliver(SampleSpan span, const Receive& receive, const Read& read);
  void predict_from(SampleSpan first);
  void discard();

  const BatchReader reader_;
  const Next next_;
  std::vector<std::byte> scratch_;  // of the thread that takes
  const std::function<device::Buffer(int64_t)> allocate_;
  const int64_t most_samples_;
  tensor::BatchPlaces places_;
  std::vector<std::byte*> taken_batches_;  // of the thread that takes

  std::mutex mutex_;  // guards everything down to the threads, save the contents of a slot that is filling
  std::condition_variable work_available_, slot_ready_;
  std::vector<Slot> slots_;            // a ring: batch number n lies in slot n mod depth
  std::vector<device::Buffer> spare_;  // for slots that are filled next, if batches are exchanged
  int made_ = 0;                       // buffers, wherever they are
  uint64_t head_ = 0;                  // number of the batch that take() expects
  uint64_t tail_ = 0;  // number of the next batch to be claimed by a thread; head_ <= tail_ <= head_ + depth
  SampleSpan upcoming_;      // span of batch tail_
  bool predicting_ = false;  // upcoming_ means something
  std::atomic<uint64_t> generation_{
      0};  // rises when batches are discarded; tells a thread that its work is stale
  bool stopping_ = false;
  std::atomic<int64_t> held_bytes_ = 0;

  double wait_ms_ = 0;
  std::optional<ReadAheadControl> control_;  // if the size adapts
  ReadAheadSize size_;                       // how much of threads and slots is used
  std::optional<Clock::time_point> taken_;   // when the last batch was taken
  std::array<std::atomic<double>, kDataStages> stages_ms_{};
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
