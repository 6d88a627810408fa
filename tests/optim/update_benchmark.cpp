// How fast a server updates, beside how fast the machine copies: bytes read and written per second,
// interleaved, medians.
//
//   build/release/bin/update_benchmark [MILLIONS OF PARAMETERS]

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/ranges.h"
#include "device/device.h"
#include "optim/optimizer.h"

namespace {

using namespace lockstep;

constexpr int kRounds = 9;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Work>
double seconds(const Work& work) {
  const auto begin = Clock::now();
  work();
  return milliseconds_between(begin, Clock::now()) / 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t count = (argc > 1 ? std::atoll(argv[1]) : 16) * 1000000;
  std::vector<float> parameters(static_cast<size_t>(count), 1), gradients(parameters), mean(parameters),
      square(parameters);
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("benchmark");
  const optim::OptimizerOptions adam{.kind = optim::OptimizerKind::adamw};
  const optim::UpdateConstants constants{.learning_rate = 1e-3, .beta1_power = 0.9, .beta2_power = 0.999};
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int threads = 1; threads <= cores; threads *= 2) {
    std::vector<double> copies, updates;
    for (int round = 0; round < kRounds; ++round) {
      copies.push_back(seconds([&] {
        for_ranges(count, 1 << 20, threads, [&](int64_t begin, int64_t end) {
          std::memcpy(gradients.data() + begin, square.data() + begin,
                      static_cast<size_t>(4 * (end - begin)));
        });
      }));
      updates.push_back(seconds([&] {
        optim::update(adam,
                      {.parameters = parameters.data(),
                       .gradients = gradients.data(),
                       .state = {mean.data(), square.data()},
                       .count = count},
                      constants, *stream, threads);
      }));
    }
    // Four numbers are read and three written for each parameter; a copy reads one and writes one.
    const double copied = 8.0 * static_cast<double>(count) / median(copies) / 1e9,
                 updated = 28.0 * static_cast<double>(count) / median(updates) / 1e9;
    fmt::print("{} threads, {} million parameters: copy {:.1f} GB/s, AdamW {:.1f} GB/s: {:.0f} %\n", threads,
               count / 1000000, copied, updated, 100 * updated / copied);
  }
}
