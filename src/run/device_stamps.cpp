#include "run/device_stamps.h"

#include <algorithm>
#include <chrono>

#include "base/index.h"

namespace lockstep::run {
namespace {

/// The shortest of so many comparisons counts: it was disturbed least.
constexpr int kComparisons = 16;
/// Sampled are the iteration after so many, which warm up, and every so-many-th after it: two events around
/// each of a model's kernels take the host some percent of a short step.
constexpr int64_t kWarmUp = 5, kSampledEvery = 50;

}  // namespace

DeviceStamps::DeviceStamps(device::Device& device, const program::Program& program,
                           const std::vector<Action>& actions, const Options& options)
    : device_(device), program_(program), actions_(actions), options_(options) {
  sampled_.nodes_ms.resize(options.nodes);
}

bool DeviceStamps::is_sampled(int64_t begun) const {
  return options_.samples && begun % kSampledEvery == kWarmUp;
}

void DeviceStamps::begin_iteration(int place, const StepInputs& inputs) {
  Place& of = nth(places_, place);
  of.for_recorder = options_.recorder != nullptr && options_.recorder->wants(inputs.iteration);
  of.records = is_sampled(begun_++) || of.for_recorder;
  of.inputs = inputs;
  if (!of.records) return;
  make_room(of);
  if (!of.for_recorder || compared_) return;
  begin_clock();
  begin_ = compare();
  compared_ = true;
}

DeviceStamps::Timed DeviceStamps::make_events() {
  return {device_.create_event(true), device_.create_event(true)};
}

/// Events cost a call each to make: those of an iteration's place stay.
void DeviceStamps::make_room(Place& place) {
  if (!place.instructions.empty()) return;
  for (const Action& action : actions_) {
    place.instructions.push_back(make_events());
    auto& parts = place.parts.emplace_back();
    auto& host_parts = place.host_parts.emplace_back();
    if (device_.shares_host_memory()) host_parts.resize(action.parts.size());
    for (size_t part = 0; part < action.parts.size() && !device_.shares_host_memory(); ++part)
      parts.push_back(make_events());
  }
}

void DeviceStamps::begin_clock() {
  stream_ = device_.create_stream("clock");
  origin_ = device_.create_event(true);
  probe_ = device_.create_event(true);
  stream_->record(*origin_);
  origin_->synchronize();
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
  if (records(place)) stream.record(*nth(nth(places_, place).instructions, instruction).begin);
}

void DeviceStamps::after(int place, int instruction, device::Stream& stream) {
  if (records(place)) stream.record(*nth(nth(places_, place).instructions, instruction).end);
}

void DeviceStamps::part_begins(int place, int instruction, size_t part, device::Stream& stream) {
  if (records(place)) stream.record(*nth(nth(nth(places_, place).parts, instruction), part).begin);
}

void DeviceStamps::part_ends(int place, int instruction, size_t part, device::Stream& stream) {
  if (records(place)) stream.record(*nth(nth(nth(places_, place).parts, instruction), part).end);
}

void DeviceStamps::part_took(int place, int instruction, size_t part, Clock::time_point begin,
                             Clock::time_point end) {
  if (records(place)) nth(nth(nth(places_, place).host_parts, instruction), part) = {begin, end};
}

DeviceStamps::Times DeviceStamps::times_of(const Timed& timed) const {
  return {timed.begin->milliseconds_since(*origin_), timed.end->milliseconds_since(*origin_)};
}

/// A GPU tells floats: far from origin_ their differences say little.
double DeviceStamps::duration_of(const Timed& timed) { return timed.end->milliseconds_since(*timed.begin); }

void DeviceStamps::collect(int place) {
  Place& of = nth(places_, place);
  if (!of.records) return;
  ++sampled_.iterations;
  for (int i = 0; i < static_cast<int>(of.instructions.size()); ++i) {
    if (!runs(program_.instruction(i), of.inputs)) continue;
    const Timed& timed = nth(of.instructions, i);
    count(i, duration_of(timed));
    if (of.for_recorder)
      collected_.push_back({{.instruction = i, .iteration = of.inputs.iteration, .begin = {}, .end = {}},
                            times_of(timed),
                            false});
    collect_parts(of, i);
  }
  of.records = false;
}

/// Of an instruction that runs no kernels of ops.
void DeviceStamps::count(int instruction, double milliseconds) {
  const program::Instruction& of = program_.instruction(instruction);
  const bool computes = program_.lane(of.lane).kind == program::LaneKind::compute;
  if (computes && nth(actions_, instruction).parts.empty()) nth(sampled_.kinds_ms, of.kind) += milliseconds;
}

void DeviceStamps::collect_parts(const Place& place, int instruction) {
  const auto& parts = nth(actions_, instruction).parts;
  for (size_t part = 0; part < parts.size(); ++part) {
    Collected one{{.kind = StampKind::kernel,
                   .phase = parts[part].phase,
                   .instruction = instruction,
                   .node = parts[part].node,
                   .iteration = place.inputs.iteration,
                   .begin = {},
                   .end = {}},
                  {},
                  device_.shares_host_memory()};
    if (one.has_host_times) {
      const HostTimes& times = nth(nth(place.host_parts, instruction), part);
      one.stamp.begin = times.begin;
      one.stamp.end = times.end;
      count_part(parts[part], milliseconds_between(times.begin, times.end));
    } else {
      const Timed& timed = nth(nth(place.parts, instruction), part);
      count_part(parts[part], duration_of(timed));
      if (place.for_recorder) one.times = times_of(timed);
    }
    if (place.for_recorder) collected_.push_back(one);
  }
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
  for (Collected& each : collected_) {
    if (!each.has_host_times) {
      each.stamp.begin = on_host(each.times.begin_ms);
      each.stamp.end = on_host(each.times.end_ms);
    }
    options_.recorder->add(each.stamp);
  }
  options_.recorder->set_device_error_ms(std::max(begin_.error_ms, end.error_ms));
  collected_.clear();
}

void start_timed(DeviceStamps* stamps, int place, int instruction, const Action& action,
                 device::Stream& stream, const StepInputs& inputs, const std::function<void()>& given) {
  if (stamps == nullptr || action.parts.empty() || !stamps->records(place))
    return action.start(stream, inputs, given);
  size_t part = 0;
  stamps->part_begins(place, instruction, part, stream);
  action.start(stream, inputs, [&] {
    stamps->part_ends(place, instruction, part, stream);
    given();
    given();  // events are commands, too
    if (++part < action.parts.size()) stamps->part_begins(place, instruction, part, stream);
  });
}

void start_on_thread(DeviceStamps* stamps, int place, int instruction, const Action& action,
                     device::Stream& stream, const StepInputs& inputs) {
  if (stamps == nullptr || action.parts.empty() || !stamps->records(place))
    return action.start(stream, inputs, [] {});
  size_t part = 0;
  auto begin = Clock::now();
  action.start(stream, inputs, [&] {
    const auto end = Clock::now();
    stamps->part_took(place, instruction, part++, begin, end);
    begin = end;
  });
}

}  // namespace lockstep::run
