#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data.h"
#include "lockstep/error.h"
#include "lockstep/tensor.h"

/// Computes with a trained model, without training:
///
///     lockstep::Model model = lockstep::Model::open("runs/digits");
///     const std::vector<float> logits = model.outputs(my_samples());

#pragma GCC visibility push(default)
namespace lockstep {

/// What is to be written by a language model.
struct WritingWishes {
  int64_t tokens = 200;  ///< at most, after the prompt
  double temperature =
      1;              ///< below 1: safer text, above 1: more surprising; 0: always the most probable token
  int64_t top_k = 0;  ///< only the k most probable tokens are chosen from; 0: all
  double top_p = 1;   ///< only the most probable tokens that together have this probability
  uint64_t seed = 0;  ///< the same seed writes the same text
  std::function<void(const std::string& piece)> on_piece = {};  ///< gets the text while it is written
};

/// Which of a checkpoint's numbers are the model's weights.
enum class ModelWeights {
  as_evaluated,  ///< moving averages if the training evaluated these (`optimizer.ema.evaluate`)
  parameters,
  averages,
};

/// The model of a checkpoint, on this process's CPU, in float32. It needs neither run_job() nor MPI. Errors
/// are those of lockstep/error.h. Move-only; not thread-safe.
class Model {
 public:
  /// Opens a run's folder (its newest checkpoint), a checkpoint, or "RUN/best". `threads` 0: all cores; no
  /// bit depends on them. Throws ConfigError if the run has kept no config, or no averages that are asked
  /// for, CheckpointError for a checkpoint that is missing or damaged.
  static Model open(const std::string& checkpoint, int threads = 0,
                    ModelWeights weights = ModelWeights::as_evaluated);
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  int64_t step() const;                           ///< complete steps of the training
  const std::vector<ModelInput>& inputs() const;  ///< what outputs() needs of a sample
  const Shape& output_shape() const;              ///< of one sample
  const std::vector<std::string>& classes()
      const;  ///< names by label; empty if they have none, or are not known

  /// What the model's loss would compare with the truth, for each sample: logits [count, classes], or
  /// predictions. Row after row. The transforms of the run's config do not change the samples. Throws
  /// ConfigError if `samples` lack an input or have it in another shape.
  std::vector<float> outputs(const Samples& samples);
  /// Text that continues `prompt`, without it. Throws ConfigError if the model cannot write, the training's
  /// data were no text, or options make no sense; DataError if no token stands for a part of the prompt.
  std::string write(const std::string& prompt, const WritingWishes& wishes = {});

 private:
  struct Parts;
  explicit Model(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Softmax over each row of `width` logits: probabilities of classes.
std::vector<float> probabilities(const std::vector<float>& logits, int64_t width);

}  // namespace lockstep
#pragma GCC visibility pop
