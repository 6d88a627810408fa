#pragma once

#include <lockstep/predict.h>
#include <lockstep/train.h>

#include <cstdio>
#include <map>
#include <stdexcept>

// What scenarios of api_program share: samples, a model, and what they print.

using namespace lockstep;

constexpr int kSamples = 240, kHeldBack = 50, kWidth = 6, kClasses = 3;

inline float position(int64_t sample, int64_t i) {
  const auto mixed = static_cast<uint32_t>(sample * kWidth + i) * 2654435761u;
  const auto noise = static_cast<float>(mixed >> 8) / 16777216.0f;
  return noise + (i == sample % kClasses ? 1.0f : 0.0f);
}

inline Samples in_memory(int64_t first, int64_t count) {
  std::vector<float> points;
  std::vector<int32_t> labels;
  for (int64_t s = first; s < first + count; ++s) {
    for (int64_t i = 0; i < kWidth; ++i) points.push_back(position(s, i));
    labels.push_back(static_cast<int32_t>(s % kClasses));
  }
  return Samples::in_memory({{"point", {kWidth}, std::move(points)}, {"label", {}, std::move(labels)}});
}

inline SampleSource source(int64_t first, int64_t count) {
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

inline ModelSpec model() {
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

inline void require(bool condition, const char* what) {
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

inline std::map<std::string, std::vector<float>> all_parameters(Training& training) {
  std::map<std::string, std::vector<float>> all;
  for (const auto& [name, shape] : training.parameters()) {
    all[name] = training.parameter(name);
    require(static_cast<int64_t>(all[name].size()) == shape.count(),
            "a parameter has as many values as its shape");
  }
  return all;
}

inline void finish(const Job& job, Training& training) {
  const TrainingSummary summary = training.finish();
  require(!training.step(), "after the end there are no steps");
  if (job.rank() == 0)
    std::printf("%lld steps, %g epochs, loss %.9g, on evaluation %.9g, stopped %d, hash %s\n",
                static_cast<long long>(summary.steps), summary.epochs, summary.train_loss,
                summary.eval_loss.value_or(-1), summary.stopped, summary.parameters_hash.c_str());
}

// api_models.cpp: of models and samples of their own, and of checkpoints.
void tied(Job& job, const Arguments& arguments);
void mean_squares(Job& job, const Arguments& arguments);
void other_names(Job& job, const Arguments& arguments);
void transformed(Job& job, const Arguments& arguments);
void predict(Job& job, const Arguments& arguments);
/// Both return an exit code.
int open_model(const std::string& path);
int write_text(const std::string& path);
