#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.h"
#include "infer/evaluator.h"

namespace lockstep::infer {

/// What the model says of one sample. Valid until the next one.
struct Prediction {
  int64_t sample = 0;              ///< number in the data set
  std::span<const float> outputs;  ///< the loss's first input, such as logits
  std::optional<int32_t> label;    ///< the right class, if the data have one that counts
  std::span<const float> target;   ///< likewise, of losses that compare numbers; empty: not known
};

/// What a model says of every sample of a data set, batch by batch on the CPU. Not thread-safe.
class Predictor {
 public:
  Predictor(model::Graph graph, int threads);

  Evaluator& evaluator() { return evaluator_; }
  Shape output_shape() const;  ///< of one sample
  /// Whether outputs are logits of a class for the whole sample.
  bool tells_classes() const { return output_shape().rank() == 1 && has_cross_entropy(); }
  /// Whether outputs are logits of many classes for each sample, such as of the next token.
  bool tells_many_classes() const { return output_shape().rank() > 1 && has_cross_entropy(); }

  /// In the data set's order. Labels and targets are read if the data have them. Throws ConfigError if an
  /// input of the model is missing there or has another shape, DataError for a sample that cannot be read.
  void predict(const data::Dataset& dataset, const std::function<void(const Prediction&)>& visit);

 private:
  bool has_cross_entropy() const;
  /// The model inputs that are read: those of layers, and what the loss compares with if the data have it.
  std::vector<std::string> fields_in(const data::Dataset& dataset) const;

  Evaluator evaluator_;
};

/// The outputs of all samples, one after the other.
std::vector<float> outputs_of(Predictor& predictor, const data::Dataset& dataset);

/// Probabilities of classes: softmax in double precision. Throws DataError if a logit is no finite number.
std::vector<double> probabilities(std::span<const float> logits);
/// The class with the largest logit; of equal ones the first.
int64_t most_probable(std::span<const float> logits);

/// How often a class was taken for which, of samples with a known class.
struct Confusion {
  explicit Confusion(int64_t class_count)
      : classes(class_count), counts(static_cast<size_t>(class_count * class_count)) {}
  /// REQUIRES: both are in [0, classes).
  void add(int64_t right, int64_t predicted) { ++counts[static_cast<size_t>(right * classes + predicted)]; }
  int64_t count(int64_t right, int64_t predicted) const {
    return counts[static_cast<size_t>(right * classes + predicted)];
  }
  int64_t samples() const;
  int64_t correct() const;

  int64_t classes;
  std::vector<int64_t> counts;  ///< row by row: a row for each right class
};

}  // namespace lockstep::infer
