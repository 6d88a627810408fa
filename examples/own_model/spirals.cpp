// Your own model, samples and training loop: which of three spirals does a point lie on?
//
//     ./spirals weights.txt                 one process
//     mpirun -n 2 ./spirals weights.txt     two, to the same bits
//
// Trains until 98 in a hundred of the points that are held back are right, or ten evaluations in a row bring
// nothing; writes what was learned to a file, and asks the model about points whose spiral it is not told.

#include <lockstep/train.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>
#include <vector>

namespace {

constexpr int kSpirals = 3, kHidden = 32;

struct Points {
  std::vector<float> positions;  // x, y of each
  std::vector<int32_t> spirals;
};

Points draw(int count, unsigned seed) {
  std::mt19937 random(seed);
  const auto uniform = [&] { return static_cast<float>(random() / 4294967296.0); };
  Points points;
  for (int i = 0; i < count; ++i) {
    const float way = uniform(), noise = 0.3f * (uniform() - 0.5f);
    const float angle = 4 * way + 2.0944f * static_cast<float>(i % kSpirals) + noise;
    points.positions.insert(points.positions.end(), {2 * way * std::cos(angle), 2 * way * std::sin(angle)});
    points.spirals.push_back(i % kSpirals);
  }
  return points;
}

lockstep::Samples samples(const Points& points) {
  return lockstep::Samples::in_memory({{"point", {2}, points.positions}, {"label", {}, points.spirals}});
}

lockstep::ModelSpec model() {
  using namespace lockstep;
  ModelBuilder b;
  const auto point = b.input("point", {{2}});
  const auto label = b.input("label", {{}, DType::int32});
  const auto hidden = b.add("bent", Relu{}, {b.add("hidden", Linear{.units = kHidden}, {point})});
  const auto more = b.add("bent2", Relu{}, {b.add("hidden2", Linear{.units = kHidden}, {hidden})});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("out", Linear{.units = kSpirals}, {more}), label});
  return b.build();
}

lockstep::Config config() {
  lockstep::Config config(
      "trainer { global_batch: 60 epochs: 100 eval_at_end: false } parallel { reduction: REPRODUCIBLE }");
  config.set("optimizer.learning_rate", 0.01)
      .set("optimizer.adam.beta2", 0.99)
      .set("trainer.virtual_replicas", 4);
  return config;
}

// How many of the points the model places rightly, from a number for each point and spiral.
int count_right(const std::vector<float>& outputs, const std::vector<int32_t>& spirals) {
  int right = 0;
  for (size_t i = 0; i < spirals.size(); ++i) {
    const auto row = outputs.begin() + static_cast<std::ptrdiff_t>(i) * kSpirals;
    right += std::max_element(row, row + kSpirals) - row == spirals[i];
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: spirals FILE\n"), 2;
  return lockstep::run_job([&](lockstep::Job& job) {
    const Points known = draw(3000, 1), held_back = draw(600, 2);
    lockstep::Training training(
        job, model(), config(),
        {.train_samples = samples(known), .eval_samples = samples(held_back), .quiet = true});

    double best = 0;
    for (int without = 0; without < 10 && best < 0.98 && training.step();) {
      if (training.steps() % 50 != 0) continue;
      const auto evaluation = training.evaluate();
      if (!evaluation) break;  // somebody asked to stop
      if (job.rank() == 0)
        std::printf("step %4lld: loss %.3f, on points held back %.3f, %.1f %% of them right\n",
                    static_cast<long long>(training.steps()), training.last_step()->loss, evaluation->loss,
                    100 * *evaluation->accuracy);
      without = *evaluation->accuracy > best ? 0 : without + 1;
      best = std::max(best, *evaluation->accuracy);
    }
    const auto summary = training.finish();

    // Points alone: nobody knows their spirals. lockstep/predict.h does the same with a checkpoint.
    const auto outputs =
        training.predict(lockstep::Samples::in_memory({{"point", {2}, held_back.positions}}));
    std::vector<std::vector<float>> learned;  // weight and bias of each layer, on every rank
    for (const auto& parameter : training.parameters()) learned.push_back(training.parameter(parameter.name));
    if (job.rank() != 0) return;
    std::ofstream file(argv[1]);
    file.precision(9);  // from which the same float32 is read again
    for (size_t i = 0; i < learned.size(); ++i) {
      file << training.parameters()[i].name << ' ' << training.parameters()[i].shape.to_string() << '\n';
      for (const float value : learned[i]) file << value << '\n';
    }
    std::printf(
        "%d processes, %lld steps: %.1f %% of predictions right, parameters %s\n", job.world_size(),
        static_cast<long long>(summary.steps),
        100.0 * count_right(outputs, held_back.spirals) / static_cast<double>(held_back.spirals.size()),
        summary.parameters_hash.c_str());
  });
}
