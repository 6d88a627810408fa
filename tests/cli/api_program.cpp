// What a program does with include/lockstep: one scenario, told by its first argument. The others are
// "layout=...", "out=DIR", or assignments to the config. Prints what api_test.cpp looks at; rank 0 does.

#include <lockstep/predict.h>
#include <lockstep/train.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <thread>

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

/// Samples that take their time, as those that are decoded do.
void starved(Job& job, const Arguments& arguments) {
  SampleSource slow = source(0, kSamples);
  slow.read = [read = slow.read](int64_t sample, std::span<std::byte* const> to) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    read(sample, to);
  };
  Training training(job, model(), arguments.config,
                    arguments.options(Samples::from(slow), in_memory(kSamples, kHeldBack)));
  training.run();
  finish(job, training);
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
  say_error(job, [&] { Samples::in_memory({{"token", {}, labels}}); });
  SampleSource nameless = source(0, 10);
  nameless.identity = "";
  say_error(job, [&] { Samples::from(nameless); });
  say_error(job, [] { Config::from_file("no/such.textproto"); });
}

/// Of a model whose stages share a parameter: read and replaced is first what one rank alone holds.
void tied(Job& job, const Arguments& arguments) {
  Config config = arguments.config;
  config.set("model", "{gpt {vocabulary: 11 context: 6 layers: 2 heads: 1 width: 8}}")
      .set("data", "{synthetic {samples: 240 eval_samples: 50 classes: 11}}");
  Training training(job, config, {.quiet = true});
  const auto names = training.parameters();
  const std::string first = names.front().name, last = names.back().name;
  training.step();
  const auto kept = training.parameter(last);
  training.step();
  training.set_parameter(last, kept);
  training.set_parameter(first, training.parameter(first));
  training.step();
  training.set_parameter(names[4].name, training.parameter(names[4].name));
  require(training.parameter(last) != kept, "it went on learning");
  training.step();
  training.parameter(names[4].name);
  training.run();
  finish(job, training);
}

/// The mean over the samples to evaluate on, which are no multiple of a batch: as the training tells it, and
/// by hand.
void mean_squares(Job& job, const Arguments& arguments) {
  const auto samples = [](int64_t first, int64_t count) {
    std::vector<float> points, targets;
    for (int64_t s = first; s < first + count; ++s) {
      for (int64_t i = 0; i < kWidth; ++i) points.push_back(position(s, i));
      targets.push_back(static_cast<float>(s % kClasses) + 2);
    }
    return Samples::in_memory({{"point", {kWidth}, points}, {"target", {1}, targets}});
  };
  ModelBuilder b;
  const auto point = b.input("point", {{kWidth}}), target = b.input("target", {{1}});
  const auto hidden = b.add("fc1", Linear{.units = 2}, {point});
  b.add("loss", MeanSquaredError{}, {b.add("fc2", Linear{.units = 1}, {hidden}), target});
  Training training(job, b.build(), arguments.config,
                    arguments.options(samples(0, kSamples), samples(kSamples, kHeldBack)));
  training.step();
  const auto w1 = training.parameter("fc1.weight"), b1 = training.parameter("fc1.bias"),
             w2 = training.parameter("fc2.weight"), b2 = training.parameter("fc2.bias");
  double sum = 0;
  for (int64_t s = kSamples; s < kSamples + kHeldBack; ++s) {
    double error = b2[0] - static_cast<double>(s % kClasses) - 2;
    for (size_t unit = 0; unit < 2; ++unit) {
      double value = b1[unit];
      for (int64_t i = 0; i < kWidth; ++i)
        value += w1[unit * kWidth + static_cast<size_t>(i)] * position(s, i);
      error += w2[unit] * value;
    }
    sum += error * error;
  }
  const auto evaluation = training.evaluate();
  require(std::abs(evaluation->loss - sum / kHeldBack) < 1e-5, "the loss is that computed by hand");
  require(!evaluation->accuracy, "this is no classifier");
  finish(job, training);
}

/// Likewise of labels under another name, next to numbers of another range.
void other_names(Job& job, const Arguments& arguments) {
  const auto samples = [](int64_t first, int64_t count) {
    std::vector<int32_t> words, authors, answers;
    for (int64_t s = first; s < first + count; ++s) {
      words.push_back(static_cast<int32_t>(s % 7));
      authors.push_back(static_cast<int32_t>(s % 100));
      answers.push_back(static_cast<int32_t>(s % kClasses));
    }
    return Samples::in_memory({{"word", {1}, words}, {"author", {1}, authors}, {"answer", {}, answers}});
  };
  const auto model_of = [](int64_t words) {
    ModelBuilder b;
    const auto word = b.input("word", {{1}, DType::int32}), author = b.input("author", {{1}, DType::int32}),
               answer = b.input("answer", {{}, DType::int32});
    const auto by_word = b.add("words", Embedding{.vocabulary = words, .width = 4}, {word});
    const auto by_author = b.add("authors", Embedding{.vocabulary = 100, .width = 4}, {author});
    const auto both = b.add("flat", Flatten{}, {b.add("sum", Add{}, {by_word, by_author})});
    b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc", Linear{.units = kClasses}, {both}), answer});
    return b.build();
  };
  const TrainingOptions options = arguments.options(samples(0, kSamples), samples(kSamples, kHeldBack));
  say_error(job, [&] { Training training(job, model_of(6), arguments.config, options); });
  Training training(job, model_of(7), arguments.config, options);
  training.step();
  // Whatever the sample, the third class is likely, which no padding is taken for.
  training.set_parameter("fc.weight", std::vector<float>(static_cast<size_t>(kClasses) * 4));
  training.set_parameter("fc.bias", std::vector<float>{0, 1, 3});
  const double all = std::log(1 + std::exp(1.0) + std::exp(3.0)), of_class[] = {all, all - 1, all - 3};
  double sum = 0, right = 0;
  for (int64_t s = kSamples; s < kSamples + kHeldBack; ++s) {
    sum += of_class[s % kClasses];
    right += s % kClasses == 2 ? 1 : 0;
  }
  const auto evaluation = training.evaluate();
  require(std::abs(evaluation->loss - sum / kHeldBack) < 1e-5, "the loss is that computed by hand");
  require(std::abs(*evaluation->accuracy - right / kHeldBack) < 1e-12, "and so are right answers");
  finish(job, training);
}

void say_outputs(const std::vector<float>& outputs) {
  require(outputs.size() == kHeldBack * kClasses, "there are logits of each class");
  int right = 0;
  for (size_t s = 0; s < kHeldBack; ++s) {
    const auto row = outputs.begin() + static_cast<std::ptrdiff_t>(s) * kClasses;
    right += std::max_element(row, row + kClasses) - row == static_cast<int64_t>(s + kSamples) % kClasses;
  }
  double sum = 0;
  for (const float share : probabilities(outputs, kClasses)) sum += share;
  require(std::abs(sum - kHeldBack) < 1e-4, "probabilities of a sample make 1");
  std::printf("right %.9g, first %.9g, last %.9g\n", static_cast<double>(right) / kHeldBack, outputs.front(),
              outputs.back());
}

/// Samples without what is to be predicted.
Samples questions() {
  std::vector<float> points;
  for (int64_t s = kSamples; s < kSamples + kHeldBack; ++s)
    for (int64_t i = 0; i < kWidth; ++i) points.push_back(position(s, i));
  return Samples::in_memory({{"point", {kWidth}, points}});
}

/// What the model says while it trains, in any layout.
void predict(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  const auto untrained = training.predict(questions());
  training.run();
  const auto outputs = training.predict(questions());
  require(outputs != untrained, "it has learned");
  require(training.predict(in_memory(kSamples, kHeldBack)) == outputs, "answers do not count");
  const double accuracy = *training.evaluate()->accuracy;
  finish(job, training);
  if (job.rank() != 0) return;
  std::printf("evaluated %.9g\n", accuracy);
  say_outputs(outputs);
}

/// The same from a checkpoint, in a process that is no job.
int open_model(const std::string& path) try {
  Model opened = Model::open(path, 1), model = std::move(opened);
  require(model.inputs().size() == 1 && model.inputs()[0].name == "point", "it needs the point alone");
  require(model.output_shape() == Shape{kClasses}, "it tells three classes");
  say_outputs(model.outputs(questions()));
  try {
    model.outputs(Samples::in_memory({{"pint", {kWidth}, std::vector<float>(kWidth)}}));
  } catch (const ConfigError& error) {
    std::printf("error: %s\n", error.what());
  }
  try {
    model.write("a");
  } catch (const ConfigError& error) {
    std::printf("error: %s\n", error.what());
  }
  return 0;
} catch (const Error& error) {
  std::printf("error: %s\n", error.what());
  return static_cast<int>(error.code());
}

/// What a language model of a checkpoint writes.
int write_text(const std::string& path) {
  std::string pieces;
  const std::string text = Model::open(path).write(
      "ab", {.tokens = 20, .seed = 1, .on_piece = [&](const std::string& piece) { pieces += piece; }});
  require(pieces == text, "it is passed on");
  std::printf("%s\n", text.c_str());
  return 0;
}

/// Stopped by a signal, and nobody calls finish().
void stopped(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  std::raise(SIGPIPE);  // means nothing while run_job runs
  while (training.step())
    if (training.steps() == 3 && job.rank() == 0) std::raise(SIGUSR1);
  if (job.rank() == 0)
    std::printf("after %lld of %lld steps\n", static_cast<long long>(training.steps()),
                static_cast<long long>(training.total_steps()));
}

/// Saved where nothing can be written, and nobody calls finish().
void unsaved(Job& job, const Arguments& arguments) {
  Training training(job, model(), arguments.config, arguments.options());
  training.step();
  if (job.rank() == 0) std::ofstream(arguments.out + "/checkpoints") << "no folder";
  training.save();
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
  if (scenario == "model" && argc == 3) return open_model(argv[2]);
  if (scenario == "write" && argc == 3) return write_text(argv[2]);
  return run_job([&](Job& job) {
    const Arguments arguments(argc, argv);
    if (scenario == "train") return train(job, arguments, false);
    if (scenario == "callback") return train(job, arguments, true);
    if (scenario == "starved") return starved(job, arguments);
    if (scenario == "parameters") return parameters(job, arguments);
    if (scenario == "transfer") return transfer(job, arguments);
    if (scenario == "early") return early(job, arguments);
    if (scenario == "save") return save(job, arguments);
    if (scenario == "errors") return errors(job, arguments);
    if (scenario == "tied") return tied(job, arguments);
    if (scenario == "mean_squares") return mean_squares(job, arguments);
    if (scenario == "other_names") return other_names(job, arguments);
    if (scenario == "predict") return predict(job, arguments);
    if (scenario == "stopped") return stopped(job, arguments);
    if (scenario == "unsaved") return unsaved(job, arguments);
    if (scenario == "damaged") return damaged(job, arguments);
    throw std::runtime_error("no such scenario");
  });
}
