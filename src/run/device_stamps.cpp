#include "run/device_stamps.h"

#include <algorithm>
#include <chrono>

#include "base/index.h"

namespace lockstep::run {
namespace {

/// The shortest of so many comparisons counts: it was disturbed least.
constexpr int kComparisons = 16;

}  // namespace

DeviceStamps::DeviceStamps(device::Device& device, StampRecorder& recorder, size_t instructions)
    : device_(device), recorder_(recorder) {
  for (auto& timed : timed_) timed.resize(instructions);
}

void DeviceStamps::begin_iteration(int place, uint64_t iteration) {
  nth(records_, place) = recorder_.wants(iteration);
  nth(iterations_, place) = iteration;
  if (!nth(records_, place) || compared_) return;
  stream_ = device_.create_stream("clock");
  origin_ = device_.create_event(true);
  probe_ = device_.create_event(true);
  for (auto& set : timed_)
    for (Timed& timed : set) timed = {device_.create_event(true), device_.create_event(true)};
  stream_->record(*origin_);
  origin_->synchronize();
  begin_ = compare();
  compared_ = true;
}

DeviceStamps::Comparison DeviceStamps::compare() {
  Comparison best;
  for (int i = 0; i < kComparisons; ++i) {
    const auto before = Clock::now();
    stream_->record(*probe_);
    probe_->synchronize();
    const auto after = Clock::now();
    const double error_ms = milliseconds_between(before, after) / 2;
    if (i == 0 || error_ms < best.error_ms)
      best = {.device_ms = probe_->milliseconds_since(*origin_),
              .error_ms = error_ms,
              .host = before + (after - before) / 2};
  }
  return best;
}

void DeviceStamps::before(int place, int instruction, device::Stream& stream) {
  if (nth(records_, place)) stream.record(*nth(nth(timed_, place), instruction).begin);
}

void DeviceStamps::after(int place, int instruction, device::Stream& stream) {
  if (nth(records_, place)) stream.record(*nth(nth(timed_, place), instruction).end);
}

void DeviceStamps::collect(int place) {
  if (!nth(records_, place)) return;
  const auto& timed = nth(timed_, place);
  for (size_t i = 0; i < timed.size(); ++i)
    collected_.push_back({static_cast<int>(i), nth(iterations_, place),
                          timed[i].begin->milliseconds_since(*origin_),
                          timed[i].end->milliseconds_since(*origin_)});
  nth(records_, place) = false;
}

void DeviceStamps::settle() {
  if (collected_.empty()) return;
  const Comparison end = compare();
  const double passed = end.device_ms - begin_.device_ms;
  const double rate = passed > 0 ? milliseconds_between(begin_.host, end.host) / passed : 1;
  const auto on_host = [&](double device_ms) {
    return begin_.host +
           std::chrono::duration_cast<Clock::duration>(
               std::chrono::duration<double, std::milli>((device_ms - begin_.device_ms) * rate));
  };
  for (const Collected& each : collected_)
    recorder_.add({.instruction = each.instruction,
                   .iteration = each.iteration,
                   .begin = on_host(each.begin_ms),
                   .end = on_host(each.end_ms)});
  recorder_.set_device_error_ms(std::max(begin_.error_ms, end.error_ms));
  collected_.clear();
}

}  // namespace lockstep::run
