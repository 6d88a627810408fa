#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "base/clock.h"
#include "prices.h"
#include "step/step_kernels.h"

namespace lockstep {

Prices::Prices(Bench& bench)
    : bench_(bench),
      gate_(make_gate(bench.device())),
      begin_(bench.device().create_event(true)),
      end_(bench.device().create_event(true)) {}

Prices::Round Prices::round(int calls, const std::function<void()>& call) {
  Stream& stream = bench_.stream();
  gate_->close(stream);
  stream.record(*begin_);
  const auto began = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double host_ms = milliseconds_between(began, Clock::now());
  stream.record(*end_);
  const bool gated = gate_->open();
  stream.synchronize();
  return {1e3 * host_ms / calls, 1e3 * end_->milliseconds_since(*begin_) / calls, gated};
}

void Prices::measure(Line& line, int calls, const std::function<void()>& call) {
  call();  // what is loaded by a first call would wait for the gate
  bench_.stream().synchronize();
  std::vector<double> host, stream;
  bool gated = true;
  for (int i = 0; i < (bench_.tiny() ? 1 : 5) && gated; ++i) {
    const Round measured = round(calls, call);
    host.push_back(measured.host_us);
    stream.push_back(measured.stream_us);
    gated = measured.gated;
  }
  const auto median = [](std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  line["host_us"] = median(host);
  line["stream_us"] = median(stream);
  line["gated"] = gated;
}

bool probe_launches(Bench& bench) {
  Prices prices(bench);
  Stream& stream = bench.stream();
  const int calls =
      bench.tiny() ? 4 : 100;  // of which each may enqueue four things: fewer than a queue takes
  bool worked = true;
  const auto price = [&](const char* name, const std::function<void()>& call) {
    worked &= print_measured({{"name", name}}, [&](Line& line) { prices.measure(line, calls, call); });
  };

  const auto kernels = make_step_kernels(DeviceKind::cuda);
  float* const to = bench.make({Shape({64})}).as<float>();
  const float* const from = bench.make({Shape({64})}).as<float>();
  const auto launch = [&] { kernels->add(to, from, 64, stream); };
  price("kernel of 64 sums", launch);

  const Buffer memory = bench.device().allocate_host(64);
  auto& word = *new (memory.data()) std::atomic<uint64_t>(0);
  uint64_t written = 0;
  const auto write = [&] { stream.write_word(word, ++written); };
  worked &= print_measured({{"name", "stream write"}}, [&](Line& line) {
    prices.measure(line, calls, write);
    line["works"] = word.load() == written;  // not everywhere within virtual machines
  });
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
  worked &= probe_cuda_launches(bench, prices);
  other->synchronize();
  bench.release();
  return worked;
}

}  // namespace lockstep
