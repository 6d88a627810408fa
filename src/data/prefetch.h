#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/batch_reader.h"

namespace lockstep::data {

struct PrefetchOptions {
  int threads = 1;  ///< 0: everything is read by take() itself
  int depth = 4;    ///< micro-batches held ready, at least 1
  std::vector<std::string>
      fields;  ///< which fields take() fills, in this order; empty: all, in the data set's
  DType float_type = DType::float32;  ///< in which fields of float32 are delivered
};

/// Reads micro-batches ahead of the trainer, on threads of its own. Which comes after which is told by
/// `next`; where the trainer asks for another than was predicted (after a resume, or to replay a step), what
/// was read ahead is discarded, take() reads by itself, and prediction goes on from there. Nothing is
/// allocated per batch once every slot has held the largest one.
///
/// Thread-safety: one thread calls start() and take(). `next` is called by any thread, one call at a time.
/// Ownership: borrows the data set, which must outlive this.
class Prefetcher {
 public:
  using Next = std::function<SampleSpan(SampleSpan)>;

  /// REQUIRES: `next` is a pure function that does not throw.
  Prefetcher(const Dataset& dataset, SampleOrder order, Next next, const PrefetchOptions& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Says that take() will ask for `first`, so that reading begins before it does. Discards what was read
  /// ahead.
  void start(SampleSpan first);
  /// Fills `fields`, each of shape [span.count, ...]. Rethrows what reading this very span threw; the next
  /// call works again. Throws ConfigError for tensors that do not fit.
  void take(SampleSpan span, std::span<const Tensor> fields);

  /// Time that take() spent waiting or reading by itself, since construction. Called by the thread that
  /// takes.
  double data_wait_ms() const { return wait_ms_; }
  /// What it has allocated for batches so far. Safe from any thread.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  enum class State { free, filling, ready };
  struct Slot {
    State state = State::free;
    SampleSpan span;
    std::vector<std::vector<std::byte>> storage;  // per field
    std::vector<std::byte*> batches;              // into storage
    std::vector<std::byte> scratch;
    std::exception_ptr error;
  };

  void work();
  bool can_claim() const;
  void fill(Slot& slot, uint64_t generation);
  void predict_from(SampleSpan first);
  void discard();

  const BatchReader reader_;
  const Next next_;
  std::vector<std::byte> scratch_;  // of the thread that takes

  std::mutex mutex_;  // guards everything down to the threads, save the contents of a slot that is filling
  std::condition_variable work_available_, slot_ready_;
  std::vector<Slot> slots_;  // a ring: batch number n lies in slot n mod depth
  uint64_t head_ = 0;        // number of the batch that take() expects
  uint64_t tail_ = 0;  // number of the next batch to be claimed by a thread; head_ <= tail_ <= head_ + depth
  SampleSpan upcoming_;      // span of batch tail_
  bool predicting_ = false;  // upcoming_ means something
  std::atomic<uint64_t> generation_{
      0};  // rises when batches are discarded; tells a thread that its work is stale
  bool stopping_ = false;
  std::atomic<int64_t> held_bytes_ = 0;

  double wait_ms_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::data
