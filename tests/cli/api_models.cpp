// Scenarios of api_program: models whose results can be computed by hand, and models of checkpoints.

#include <algorithm>
#include <cmath>

#include "api_program.h"

namespace {

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

}  // namespace

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

/// Images of the program's own, with the config's transforms.
void transformed(Job& job, const Arguments& arguments) {
  const auto images = [](int64_t first, int64_t count) {
    std::vector<float> pixels;
    std::vector<int32_t> labels;
    for (int64_t s = first; s < first + count; ++s) {
      for (int64_t i = 0; i < 16; ++i) pixels.push_back(position(s, i % kWidth) / 2);
      labels.push_back(static_cast<int32_t>(s % kClasses));
    }
    return Samples::in_memory({{"image", {4, 4, 1}, pixels}, {"label", {}, labels}});
  };
  ModelBuilder b;
  const auto image = b.input("image", {{4, 4, 1}});
  const auto label = b.input("label", {{}, DType::int32});
  const auto hidden = b.add("fc1", Linear{.units = 8}, {b.add("flat", Flatten{}, {image})});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("fc2", Linear{.units = kClasses}, {hidden}), label});
  Training training(job, b.build(), arguments.config,
                    arguments.options(images(0, kSamples), images(kSamples, kHeldBack)));
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
