// What numbers drawn at once gain over numbers drawn one by one: first parameters and synthetic samples. The
// ways take turns, and medians are compared, so that what else the machine does meets all alike.
//   drawing_benchmark [MILLIONS]   normals, 124 unless told; as many floats of memory

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/philox.h"
#include "data/batch_reader.h"
#include "train/start/launch_facts.h"
#include "train/worker/initialize.h"

namespace {

using namespace lockstep;

using Ways = std::vector<std::function<void()>>;

/// Medians over turns.
struct Time {
  double ms;
  double processor_ms;  // of all threads together: what counts where others keep the cores busy
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double processor_ms() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// Of each way, after one turn that warms caches and maps pages.
std::vector<Time> measure(int turns, const Ways& ways) {
  std::vector<std::vector<double>> ms(ways.size()), processor(ways.size());
  for (int turn = 0; turn <= turns; ++turn)
    for (size_t way = 0; way < ways.size(); ++way) {
      const double processor_begin = processor_ms();
      const auto begin = Clock::now();
      ways[way]();
      if (turn == 0) continue;
      ms[way].push_back(milliseconds_between(begin, Clock::now()));
      processor[way].push_back(processor_ms() - processor_begin);
    }
  std::vector<Time> times;
  for (size_t way = 0; way < ways.size(); ++way) times.push_back({median(ms[way]), median(processor[way])});
  return times;
}

void measure_parameters(int64_t count, int threads) {
  model::Parameter parameter;
  parameter.name = "parameter";
  parameter.spec.shape = Shape{count};
  parameter.spec.init = {ops::Initializer::Kind::normal, 0.02f};
  std::vector<float> values(static_cast<size_t>(count));
  const uint64_t key = hash_combine(1, hash64(parameter.name));
  const auto one_by_one = [&] {
    for (int64_t i = 0; i < count; ++i)
      values[static_cast<size_t>(i)] = static_cast<float>(
          0.02f * philox_normal(key, RandomPurpose::initialization, 0, static_cast<uint64_t>(i)));
  };
  const auto drawn_on = [&](int on) {
    return [&, on] { train::initialize_parameter(parameter, 1, tensor::Part::range(0, count), values, on); };
  };
  const auto times = measure(3, {one_by_one, drawn_on(1), drawn_on(threads)});
  fmt::print("{} million normals:\n", count / 1'000'000);
  const auto show = [&](const char* way, int on, const Time& time) {
    fmt::print(
        "  {}, {} thread{}: {:.0f} ms ({:.1f} times as fast), {:.0f} ms of processors ({:.1f} times)\n", way,
        on, on == 1 ? "" : "s", time.ms, times[0].ms / time.ms, time.processor_ms,
        times[0].processor_ms / time.processor_ms);
  };
  show("one by one", 1, times[0]);
  show("at once", 1, times[1]);
  show("at once", threads, times[2]);
}

/// `blocks`: of random numbers that a sample took when each was drawn by itself.
void measure_samples(const char* what, data::DataOptions options, int64_t samples, int64_t blocks) {
  options.kind = data::DataKind::synthetic;
  options.samples = 60000;
  options.eval_samples = 1;
  const auto data = data::open_datasets(options);
  const data::BatchReader reader(*data.train, data::SampleOrder(1, options.samples, true), {});
  std::vector<std::vector<std::byte>> storage;
  std::vector<std::byte*> batches;
  for (size_t field = 0; field < reader.field_count(); ++field) {
    storage.emplace_back(static_cast<size_t>(samples * reader.sample_bytes(field)));
    batches.push_back(storage.back().data());
  }
  int64_t position = 0;
  const auto batch = [&] {
    reader.read({position, samples}, batches, {}, [] { return false; });
    position += samples;
  };
  volatile uint32_t sum = 0;  // so that the loop is neither left out nor vectorised
  const auto blocks_one_by_one = [&] {
    for (int64_t i = 0; i < samples * blocks; ++i)
      sum = sum + Philox::generate({{static_cast<uint32_t>(i), 0, 0, 4}}, 1).word[0];
  };
  const auto times = measure(1001, {batch, blocks_one_by_one});
  fmt::print("{} {}: {:.1f} us; its random numbers, block by block: {:.1f} us\n", samples, what,
             1000 * times[0].ms, 1000 * times[1].ms);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t millions = argc > 1 ? std::atoll(argv[1]) : 124;
  measure_parameters(millions * 1'000'000, train::idle_threads(train::launch_facts(1, 1)));
  data::DataOptions images;
  images.classes = 10;
  images.shape = "28,28,1";
  measure_samples("images of 28 x 28", images, 64, 2 * 784 / 4);
  data::DataOptions tokens;
  tokens.classes = 65;
  tokens.context = 256;
  measure_samples("texts of 256 tokens", tokens, 64, 257);
}
