#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "base/clock.h"
#include "prices.h"
#include "run/step_kernels.h"

namespace lockstep::ops {

Prices::Prices(Bench& bench)
    : bench_(bench),
      gate_(make_gate(bench.device())),
      begin_(bench.device().create_event(true)),
      end_(bench.device().create_event(true)) {}

std::vector<Prices::Round> Prices::rounds(int calls, const std::function<void()>& call, bool gated) {
  device::Stream& stream = bench_.stream();
  std::vector<Round> all;
  for (int i = 0; i < (bench_.tiny() ? 1 : 5); ++i) {
    if (gated) gate_->close(stream);
    stream.record(*begin_);
    const auto began = Clock::now();
    for (int j = 0; j < calls; ++j) call();
    const double host_ms = milliseconds_between(began, Clock::now());
    stream.record(*end_);
    const bool in_time = !gated || gate_->open();
    stream.synchronize();
    if (!in_time) return {};
    all.push_back({1e3 * host_ms / calls, 1e3 * end_->milliseconds_since(*begin_) / calls});
  }
  return all;
}

void Prices::measure(Line& line, int calls, const std::function<void()>& call) {
  call();  // what is loaded by a first call would wait for the gate
  bench_.stream().synchronize();
  std::vector<Round> all = rounds(calls, call, true);
  line["gated"] = !all.empty();
  if (all.empty()) all = rounds(calls, call, false);
  const auto median = [&](double Round::*field) {
    std::sort(all.begin(), all.end(), [&](const Round& a, const Round& b) { return a.*field < b.*field; });
    return all[all.size() / 2].*field;
  };
  line["host_us"] = median(&Round::host_us);
  line["stream_us"] = median(&Round::stream_us);
}

bool probe_launches(Bench& bench) {
  Prices prices(bench);
  device::Stream& stream = bench.stream();
  const int calls = bench.tiny() ? 4 : 100;  // each may enqueue four things: fewer than a queue takes
  bool worked = true;
  const auto price = [&](const char* name, const std::function<void()>& call) {
    worked &= print_measured({{"name", name}}, [&](Line& line) { prices.measure(line, calls, call); });
  };

  const auto kernels = run::make_step_kernels(device::DeviceKind::cuda);
  float* const to = bench.make({Shape({64})}).as<float>();
  const float* const from = bench.make({Shape({64})}).as<float>();
  const auto launch = [&] { kernels->add(to, from, DType::float32, 64, stream); };
  price("kernel of 64 sums", launch);

  const device::Buffer memory = bench.device().allocate_host(64);
  auto& word = *new (memory.data()) std::atomic<uint64_t>(0);
  uint64_t written = 0;
  const auto write = [&] { stream.write_word(word, ++written); };
  // Not everywhere within virtual machines; that they do not work is an answer, and no failure.
  static std::atomic<uint64_t> tried;  // outlives the device
  const std::string why_no_writes = bench.device().share_host_memory(&tried, sizeof tried);
  worked &= print_measured({{"name", "stream write"}}, [&](Line& line) {
    if (!why_no_writes.empty()) {
      line["works"] = false;
      line["why"] = why_no_writes;
      return;
    }
    prices.measure(line, calls, write);
    line["works"] = word.load() == written;
  });
  if (why_no_writes.empty())
    price("kernel of 64 sums, stream write", [&] {
      launch();
      write();
    });

  const auto other = bench.device().create_stream("other");
  const auto event = bench.device().create_event(), back = bench.device().create_event();
  price("event recorded", [&] { stream.record(*event); });
  price("to another stream and back by events", [&] {
    stream.record(*event);
    other->wait(*event);
    other->record(*back);
    stream.wait(*back);
  });
  worked &= probe_cuda_launches(bench, prices, why_no_writes.empty());
  other->synchronize();
  bench.release();
  return worked;
}

}  // namespace lockstep::ops
