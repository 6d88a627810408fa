// What a program does with include/lockstep: one scenario, told by its first argument. The others are
// "layout=...", "out=DIR", or assignments to the config. Prints what api_test.cpp looks at; rank 0 does.

#include <lockstep/train.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <stdexcept>

namespace {

using namespace lockstep;

constexpr int kSamples = 240, kHeldBack = 50, kWidth = 6, kClasses = 3;

float position(int64_t sample, int64_t i) {
  const auto mixed = static_cast<uint32_t>(sample * kWidth + i) * 2654435761u;
  const auto noise = static_cast<float>(mixed >> 8) / 16777216.0f;
  return noise + (i == sample % kClasses ? 1.0f : 0.0f);
}

Samples in_memory(int64_t first, int64_t count) {
  std::vector<float> points;
  std::vector<int32_t> labels;
  for (int64_t s = first; s < first + count; ++s) {
    for (int64_t i = 0; i < kWidth; ++i) points.push_back(position(s, i));
    labels.push_back(static_cast<int32_t>(s % kClasses));
  }
  return Samples::in_memory({{"point", {kWidth}, std::move(points)}, {"label", {}, std::move(labels)}});
}

SampleSource source(int64_t first, int64_t count) {
  return {.fields = {{"point", {{kWidth}}}, {"label", {{}, DType::int32}}},
          .count = count,
          .classes = kClasses,
          .read =
              [first](int64_t sample, std::span<std::byte* const> to) {
                if (to[0] != nullptr)
                  for (int64_t i = 0; i < kWidth; ++i)
                    reinterpret_cast<float*>(to[0])[i] = position(first + sample, i);
                if (to[1] != nullptr)
                  *reinterpret_cast<int32_t*>(to[1]) = static_cast<int32_t>((first + sample) % kClasses);
              },
          .identity = "points of api_program, version 1"};
}

ModelSpec model() {
  ModelBuilder b;
  const auto point = b.input("point", {{kWidth}});
  const auto label = b.input("label", {{}, DType::int32});
  const auto normed = b.add("norm", BatchNorm{}, {b.add("fc1", Linear{.units = 8}, {point})});
  const auto hidden = b.add("relu", Relu{}, {normed});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc2", Linear{.units = kClasses}, {hidden}), label});
  return b.build();
}

struct Arguments {
  Config config{
      "trainer { global_batch: 24 virtual_replicas: 4 steps: 20 eval_every_steps: 8 }\n"
      "parallel { reduction: REPRODUCIBLE }\n"};
  std::string out;

  Arguments(int argc, char** argv) {
    config.set("optimizer.learning_rate", 0.05)
        .set("optimizer.sgd.momentum", 0.9)
        .set("metrics.progress", false);
    for (int i = 2; i < argc; ++i) {
      const std::string word = argv[i];
      const std::string name = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
      if (name == "layout")
        config.set_layout(value);
      else if (name == "out")
        out = value;
      else
        config.set(name, value);
    }
  }
  TrainingOptions options(const Samples& train, const Samples& eval) const {
    return {.train_samples = train, .eval_samples = eval, .output_directory = out, .quiet = true};
  }
  TrainingOptions options() const { return options(in_memory(0, kSamples), in_memory(kSamples, kHeldBack)); }
};

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

template <class Action>
void say_error(const Job& job, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    if (job.rank() == 0) std::printf("error %d: %s\n", static_cast<int>(error.code()), error.what());
    return;
  }
  throw std::runtime_error("there should have been an error");
}

std::map<std::string, std::vector<float>> all_parameters(Training& training) {
  std::map<std::string, std::vector<float>> all;
  for (const auto& [name, shape] : training.parameters()) {
    all[name] = training.parameter(name);
    require(static_cast<int64_t>(all[name].size()) == shape.count(),
            "a parameter has as many values as its shape");
  }
  return all;
}

void finish(const Job& job, Training& training) {
  const TrainingSummary summary = training.finish();
  require(!training.step(), "after the end there are no steps");
  if (job.rank() == 0)
    std::printf("%lld steps, %g epochs, loss %.9g, on evaluation %.9g, stopped %d, hash %s\n",
                static_cast<long long>(summary.steps), summary.epochs, summary.train_loss,
                summary.eval_loss.value_or(-1), summary.stopped, summary.parameters_hash.c_str());
}

/// All steps, by memory or by a callback, step by step or in one go.
void train(Job& job, const Arguments& arguments, bool by_callback) {
  std::atomic<int> told = 0;
  TrainingOptions options = by_callback ? arguments.options(Samples::from(source(0, kSamples)),
                                                            Samples::from(source(kSamples, kHeldBack)))
                                        : arguments.options();
  options.on_step = [&](const TrainingStep&) { ++told; };
  Training training(job, model(), arguments.config, options);
  require(!training.last_step(), "nothing has happened yet");
  if (by_callback) {
    training.run();
  } else {
    while (training.step())
      require(training.last_step()->step == training.steps(), "the last step is the last");
  }
  require(training.steps() == training.total_steps(), "all steps are made");
  finish(job, training);
  if (job.rank() == 0) std::printf("told of %d steps\n", told.load());
}

/// Parameters come out as they were put in, wherever they lie, and count from then on.
void parameters(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  training.step();
  training.step();
  auto before = all_parameters(training);
  std::vector<float> zeros(static_cast<size_t>(kClasses * 8), 0.0f);
  training.set_parameter("fc2.weight", job.rank() == 0 ? zeros : std::vector<float>{});
  training.set_parameter("fc2.bias", std::vector<float>(kClasses, 0.5f));
  require(training.parameter("fc2.weight") == zeros, "zeros were written");
  require(training.parameter("fc1.weight") == before["fc1.weight"], "nothing else was");
  const auto even = training.evaluate();
  require(std::abs(even->loss - std::log(3.0)) < 1e-6, "equal logits have the loss of guessing");
  require(even->accuracy.has_value(), "this is a classifier");
  for (const auto& [name, values] : before) training.set_parameter(name, values);
  require(all_parameters(training) == before, "everything is as before");
  training.run();
  finish(job, training);
  const auto after = training.evaluate();  // also at the end
  const auto learned = all_parameters(training);
  require(learned != before, "it went on learning");
  if (job.rank() == 0)
    std::printf("again %.9g, first weight %.9g\n", after->loss, learned.at("fc1.weight")[0]);
}

/// What one training has learned, the next one begins with; one after the other in one process.
void transfer(Job& job, const Arguments& arguments) {
  std::map<std::string, std::vector<float>> learned;
  std::optional<Evaluation> evaluated;
  {
    Training first(job, model(), arguments.config, arguments.options());
    say_error(job, [&] { Training second(job, model(), arguments.config, arguments.options()); });
    first.run();
    learned = all_parameters(first);
    evaluated = first.evaluate();
  }
  Config other = arguments.config;
  other.set("trainer.seed", 7);
  Training second(job, model(), other, arguments.options());
  require(second.evaluate()->loss != evaluated->loss, "another seed, other parameters");
  for (const auto& [name, values] : learned) second.set_parameter(name, values);
  require(second.evaluate()->loss == evaluated->loss, "the same parameters have the same loss");
  if (job.rank() == 0) std::printf("the same loss\n");
}

/// An end of the caller's own: the training is over, and complete.
void early(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  while (training.steps() < 10) training.step();
  finish(job, training);
}

/// Saved after ten steps and gone on with.
void save(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  while (training.steps() < 10 && training.step()) {
  }
  training.save();
  finish(job, training);
}

void errors(Job& job, const Arguments& arguments) {
  {
    Config alone = arguments.config;
    alone.set("trainer.eval_every_steps", 0);
    Training training(job, model(), alone, arguments.options(in_memory(0, kSamples), {}));
    say_error(job, [&] { training.parameter("fc1.wieght"); });
    say_error(job, [&] { training.set_parameter("fc2.bias", std::vector<float>(4)); });
    say_error(job, [&] { training.evaluate(); });
    say_error(job, [&] { training.save(); });
    require(training.step(), "none of that ends a training");
    finish(job, training);
    say_error(job, [&] { training.finish(); });
  }
  const auto begin = [&](const Config& config, const TrainingOptions& options) {
    say_error(job, [&] { Training training(job, model(), config, options); });
  };
  Config synthetic = arguments.config;
  synthetic.set("data.synthetic.samples", 100).set("data.synthetic.classes", 3);
  begin(synthetic, arguments.options());
  begin(arguments.config, arguments.options({}, in_memory(0, 10)));
  begin(arguments.config, {});
  begin(Config("trainer {"), arguments.options());
  begin(Config("model { mlp { image: [2] classes: 3 } }"), arguments.options());
  // Labels beyond the model's classes, in memory.
  std::vector<int32_t> labels(10, 0);
  labels[4] = 3;
  const Samples wrong =
      Samples::in_memory({{"point", {kWidth}, std::vector<float>(10 * kWidth)}, {"label", {}, labels}});
  begin(arguments.config, arguments.options(wrong, wrong));
  begin(arguments.config, arguments.options(in_memory(0, kSamples), {}));
  say_error(job, [&] { Samples::in_memory({{"point", {kWidth}, std::vector<float>(7)}}); });
  say_error(job, [&] {
    Samples::in_memory({{"point", {kWidth}, std::vector<float>(12)}, {"label", {}, std::vector<int32_t>{1}}});
  });
  labels[4] = -2;
  say_error(job, [&] { Samples::in_memory({{"label", {}, labels}}); });
  SampleSource nameless = source(0, 10);
  nameless.identity = "";
  say_error(job, [&] { Samples::from(nameless); });
  say_error(job, [] { Config::from_file("no/such.textproto"); });
}

/// A label out of its range is found where it is read: of one process an error of a step, of several the
/// job's end.
void damaged(Job& job, const Arguments& arguments) {
  SampleSource wrong = source(0, kSamples);
  wrong.read = [read = wrong.read](int64_t sample, std::span<std::byte* const> to) {
    read(sample, to);
    const int32_t label = 17;
    if (to[1] != nullptr && sample == 33) std::memcpy(to[1], &label, sizeof label);
  };
  Config alone = arguments.config;
  alone.set("trainer.eval_every_steps", 0);
  Training training(job, model(), alone, arguments.options(Samples::from(wrong), {}));
  try {
    training.run();
  } catch (const Error& error) {
    std::printf("error %d: %s\n", static_cast<int>(error.code()), error.what());
  }
  say_error(job, [&] { training.step(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string scenario = argv[1];
  return run_job([&](Job& job) {
    const Arguments arguments(argc, argv);
    if (scenario == "train") return train(job, arguments, false);
    if (scenario == "callback") return train(job, arguments, true);
    if (scenario == "parameters") return parameters(job, arguments);
    if (scenario == "transfer") return transfer(job, arguments);
    if (scenario == "early") return early(job, arguments);
    if (scenario == "save") return save(job, arguments);
    if (scenario == "errors") return errors(job, arguments);
    if (scenario == "damaged") return damaged(job, arguments);
    throw std::runtime_error("no such scenario");
  });
}
