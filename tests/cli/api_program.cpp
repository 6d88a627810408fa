// What a program does with include/lockstep: one scenario, told by its first argument. The others are
// "layout=...", "out=DIR", or assignments to the config. Prints what api_test.cpp looks at; rank 0 does.

#include "api_program.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

namespace {

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
    if (scenario == "transformed") return transformed(job, arguments);
    if (scenario == "predict") return predict(job, arguments);
    if (scenario == "stopped") return stopped(job, arguments);
    if (scenario == "unsaved") return unsaved(job, arguments);
    if (scenario == "damaged") return damaged(job, arguments);
    throw std::runtime_error("no such scenario");
  });
}
