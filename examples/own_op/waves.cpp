// A custom op, with parameters that learn: the activation "snake" of Ziyin, Hartwig and Ueda, "Neural
// networks fail to learn periodic functions and how to fix it" (2020), y = x + sin²(a x) / a.
//
//     ./waves waves.textproto               one process
//     mpirun -n 2 ./waves waves.textproto   two, to the same bits
//
// A further argument is a layout, such as pp=2. The config has the op by its name, as if lockstep had it.

#include <lockstep/custom_op.h>
#include <lockstep/train.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

/// a = frequency times a learned factor of each channel.
class Snake : public lockstep::CustomOp {
 public:
  Signature signature(const std::vector<lockstep::Shape>& inputs,
                      const Attributes& attributes) const override {
    lockstep::require(inputs.size() == 1 && inputs[0].rank() > 0, "snake: takes one input [..., channels]");
    lockstep::require(attributes.number("frequency") > 0, "snake: frequency must be positive");
    attributes.expect_only({"frequency"});
    return {.output = inputs[0],
            .parameters = {{.name = "factor", .shape = {inputs[0][-1]}, .initial = Initial::one}},
            .backward_needs_input = {true},
            .by_position = inputs[0].rank() > 1,
            .flops = 25 * static_cast<double>(inputs[0].count())};
  }

  void forward(const Call& call) const override {
    const float frequency = frequency_of(call);
    for (size_t i = 0; i < call.output.size(); ++i) {
      const float x = call.inputs[0][i], a = frequency * factor(call, i), s = std::sin(a * x);
      call.output[i] = x + s * s / a;
    }
  }

  void backward_input(const Call& call) const override {
    const float frequency = frequency_of(call);
    for (size_t i = 0; i < call.output_gradient.size(); ++i)
      call.input_gradients[0][i] =
          call.output_gradient[i] * (1 + std::sin(2 * frequency * factor(call, i) * call.inputs[0][i]));
  }

  void backward_parameters(const Call& call) const override {
    const float frequency = frequency_of(call);
    for (size_t i = 0; i < call.output_gradient.size(); ++i) {
      const float x = call.inputs[0][i], a = frequency * factor(call, i), s = std::sin(a * x);
      call.parameter_gradients[0][i % call.parameters[0].size()] +=
          call.output_gradient[i] * frequency * (x * std::sin(2 * a * x) - s * s / a) / a;
    }
  }

 private:
  static float frequency_of(const Call& call) {
    return static_cast<float>(call.attributes->number("frequency"));
  }
  static float factor(const Call& call, size_t i) {
    return call.parameters[0][i % call.parameters[0].size()];
  }
};

/// Points of a wave of three periods that rises.
lockstep::Samples draw(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> points, heights;
  for (int i = 0; i < count; ++i) {
    const float x = 2 * static_cast<float>(random() / 4294967296.0) - 1;
    points.push_back(x);
    heights.push_back(std::sin(9.42f * x) + 0.5f * x);
  }
  return lockstep::Samples::in_memory({{"point", {1}, points}, {"height", {1}, heights}});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return std::fprintf(stderr, "usage: waves CONFIG [LAYOUT]\n"), 2;
  lockstep::register_op("snake", std::make_shared<Snake>());  // once, however many jobs the program runs
  return lockstep::run_job([&](lockstep::Job& job) {
    lockstep::check_gradients("snake", {{4, 8}}, {{"frequency", 2}});

    lockstep::Config config = lockstep::Config::from_file(argv[1]);
    if (argc == 3) config.set_layout(argv[2]);
    lockstep::Training training(
        job, config, {.train_samples = draw(2048, 1), .eval_samples = draw(256, 2), .quiet = true});
    training.run();
    const auto summary = training.finish();
    if (job.rank() == 0)
      std::printf("%d processes: mean squared error %.5f, parameters %s\n", job.world_size(),
                  *summary.eval_loss, summary.parameters_hash.c_str());
  });
}
