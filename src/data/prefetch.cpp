#include "data/prefetch.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/ensure.h"
#include "lockstep/error.h"

namespace lockstep::data {

Prefetcher::Prefetcher(const Dataset& dataset, SampleOrder order, Next next, const PrefetchOptions& options)
    : reader_(dataset, order, options.fields, options.float_type, options.packed),
      next_(std::move(next)),
      scratch_(static_cast<size_t>(reader_.scratch_bytes())),
      allocate_(options.allocate),
      most_samples_(options.most_samples),
      taken_batches_(reader_.field_count()) {
  require(
      options.threads >= 0 && options.depth >= 1,
      fmt::format(
          "data: expected prefetch_threads of at least 0 and prefetch_depth of at least 1, found {} and {}",
          options.threads, options.depth));
  if (allocate_) {
    std::vector<int64_t> field_bytes;
    for (size_t i = 0; i < reader_.field_count(); ++i)
      field_bytes.push_back(most_samples_ * reader_.sample_bytes(i));
    places_ = tensor::batch_places(field_bytes);
  }
  slots_.resize(static_cast<size_t>(options.depth));
  for (auto& slot : slots_) {
    slot.storage.resize(reader_.field_count());
    slot.batches.resize(reader_.field_count());
    slot.scratch.resize(scratch_.size());
  }
  spare_.reserve(slots_.size());
  held_bytes_ = (options.depth + 1) * reader_.scratch_bytes();
  size_ = {options.threads, options.depth};
  if (options.adapts) {
    control_.emplace(options.threads, options.depth);
    size_ = control_->size();
  }
  threads_.reserve(static_cast<size_t>(options.threads));
  for (int i = 0; i < size_.threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ++generation_;  // whoever is reading stops before the next sample
  }
  work_available_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Prefetcher::start(SampleSpan first) {
  {
    const std::lock_guard lock(mutex_);
    discard();
    make_buffers();
    predict_from(first);
  }
  work_available_.notify_all();
}

/// As many as are read ahead now. REQUIRES: the mutex is held, by the thread that takes.
void Prefetcher::make_buffers() {
  if (!allocate_ || size_.threads == 0) return;
  for (; made_ < size_.depth; ++made_) spare_.push_back(allocate_(places_.size_bytes));
}

/// REQUIRES: the mutex is held, and nobody uses the slot.
void Prefetcher::set_free(Slot& slot) {
  slot.state = State::free;
  slot.error = nullptr;
  if (allocate_) spare_.push_back(std::move(slot.buffer));
}

void Prefetcher::take(SampleSpan span, std::span<const Tensor> fields) {
  reader_.check(span, fields);
  deliver(
      span,
      [&](Slot& slot) {
        for (size_t i = 0; i < fields.size() && span.count > 0; ++i)
          std::memcpy(fields[i].data, slot.batches[i],
                      static_cast<size_t>(span.count * reader_.sample_bytes(i)));
      },
      [&] { reader_.read(span, fields, scratch_); });
}

void Prefetcher::exchange(SampleSpan span, device::Buffer& buffer) {
  ensure(allocate_ && span.count <= most_samples_ && buffer.size_bytes() == places_.size_bytes,
         "batches are exchanged that do not fit each other");
  deliver(
      span, [&](Slot& slot) { std::swap(slot.buffer, buffer); },
      [&] {
        point_into(buffer, taken_batches_);
        reader_.read(span, taken_batches_, scratch_, [] { return false; });
      });
}

/// `receive` takes what a thread has read ahead. If none has, `read` reads it.
template <class Receive, class Read>
void Prefetcher::deliver(SampleSpan span, const Receive& receive, const Read& read) {
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[head_ % slots_.size()];
  if (predicting_ && head_ < tail_ && slot.span == span) {
    slot_ready_.wait(lock, [&] { return slot.state == State::ready; });
    lock.unlock();  // threads leave the slot alone until it is free
    const double waited_ms = milliseconds_between(begin, Clock::now());
    wait_ms_ += waited_ms;
    const std::exception_ptr error = std::exchange(slot.error, nullptr);
    if (!error) receive(slot);
    lock.lock();
    set_free(slot);
    ++head_;
    if (control_) adapt(waited_ms);
    lock.unlock();
    notify_work();
    if (error) std::rethrow_exception(error);
    return;
  }
  // No thread has begun to read this one: read it here, and let them go on after it.
  make_buffers();
  if (predicting_ && head_ == tail_ && upcoming_ == span) {
    upcoming_ = next_(span);
    ++head_;
    ++tail_;
  } else {
    discard();
    predict_from(next_(span));
  }
  lock.unlock();
  work_available_.notify_all();
  const StageTimes before = stage_times_of_thread();
  {
    const StageTimer timer(DataStage::read);
    read();
  }
  add_stages(before);
  const double waited_ms = milliseconds_between(begin, Clock::now());
  wait_ms_ += waited_ms;
  if (!control_) return;
  lock.lock();
  adapt(waited_ms);
  lock.unlock();
  notify_work();
}

StageTimes Prefetcher::stage_times() const {
  StageTimes times{};
  for (size_t i = 0; i < times.size(); ++i) times[i] = stages_ms_[i];
  return times;
}

void Prefetcher::add_stages(const StageTimes& before) {
  const StageTimes now = stage_times_of_thread();
  for (size_t i = 0; i < now.size(); ++i) stages_ms_[i] += now[i] - before[i];
}

/// Which of the threads wakes up is not known, and one that rests would leave the work alone.
void Prefetcher::notify_work() {
  if (control_)
    work_available_.notify_all();
  else
    work_available_.notify_one();
}

/// Threads begin when they are first needed. REQUIRES: the mutex is held.
void Prefetcher::adapt(double waited_ms) {
  const auto now = Clock::now();
  const auto before = std::exchange(taken_, now);
  if (!before) return;
  int ready = 0;
  for (uint64_t batch = head_; batch < tail_; ++batch)
    ready += slots_[batch % slots_.size()].state == State::ready;
  size_ = control_->note(waited_ms, milliseconds_between(*before, now), ready);
  make_buffers();
  while (static_cast<int>(threads_.size()) < size_.threads)
    threads_.emplace_back([this, i = static_cast<int>(threads_.size())] { work(i); });
}

void Prefetcher::predict_from(SampleSpan first) {
  upcoming_ = first;
  predicting_ = true;
}

/// Slots being filled come free when their threads notice; until then no thread claims them.
void Prefetcher::discard() {
  ++generation_;
  for (auto& slot : slots_) {
    if (slot.state == State::ready) set_free(slot);
  }
  head_ = tail_;
}

bool Prefetcher::can_claim() const {
  return predicting_ && tail_ - head_ < static_cast<uint64_t>(size_.depth) &&
         slots_[tail_ % slots_.size()].state == State::free && (!allocate_ || !spare_.empty());
}

void Prefetcher::work(int thread) {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_available_.wait(lock, [&] { return stopping_ || (thread < size_.threads && can_claim()); });
    if (stopping_) return;
    Slot& slot = slots_[tail_ % slots_.size()];
    slot.span = upcoming_;
    slot.state = State::filling;
    if (allocate_) {
      slot.buffer = std::move(spare_.back());
      spare_.pop_back();
    }
    upcoming_ = next_(upcoming_);
    ++tail_;
    const uint64_t generation = generation_;
    lock.unlock();
    fill(slot, generation);
    lock.lock();
    if (generation == generation_) {
      slot.state = State::ready;
      slot_ready_.notify_one();
    } else {
      set_free(slot);
      work_available_.notify_all();  // somebody may wait for just this slot, or its memory
    }
  }
}

void Prefetcher::point_into(const device::Buffer& buffer, std::vector<std::byte*>& batches) const {
  for (size_t i = 0; i < batches.size(); ++i) batches[i] = buffer.data() + places_.offsets[i];
}

/// Memory is not cleared: all of it is written, by samples or as padding.
void Prefetcher::make_room(Slot& slot) {
  if (allocate_) {
    ensure(slot.span.count <= most_samples_, "a batch has more samples than were planned");
    return point_into(slot.buffer, slot.batches);
  }
  for (size_t i = 0; i < slot.storage.size(); ++i) {
    auto& [bytes, capacity] = slot.storage[i];
    const int64_t size = slot.span.count * reader_.sample_bytes(i);
    if (size > capacity) {
      bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(size));
      held_bytes_ += size - capacity;
      capacity = size;
    }
    slot.batches[i] = bytes.get();
  }
}

void Prefetcher::fill(Slot& slot, uint64_t generation) {
  const StageTimes before = stage_times_of_thread();
  try {
    const StageTimer timer(DataStage::read);
    make_room(slot);
    reader_.read(slot.span, slot.batches, slot.scratch,
                 [&] { return generation_.load(std::memory_order_relaxed) != generation; });
  } catch (...) {
    slot.error = std::current_exception();
  }
  add_stages(before);
}

}  // namespace lockstep::data
