#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/model.h"

#pragma GCC visibility push(default)
namespace lockstep {

/// One field of all samples, in memory. It feeds the model input of the same name.
struct FieldValues {
  std::string name;                                               ///< "image", "tokens", "label"
  Shape shape;                                                    ///< shape of one sample
  std::variant<std::vector<float>, std::vector<int32_t>> values;  ///< sample after sample
};

/// Samples that a program computes on demand.
struct SampleSource {
  std::vector<ModelInput> fields;
  int64_t count = 0;       ///< number of samples
  int64_t classes = 0;     ///< values of the field "label" are in [0, classes), or negative, which is ignored
  int64_t vocabulary = 0;  ///< values of all other int32 fields are in [0, vocabulary)
  /// Writes sample number `sample`, from 0: field i goes to destinations[i], which is null if nobody reads
  /// it. Called from several threads at once; each rank reads its share. REQUIRES: the same number always
  /// gives the same sample.
  std::function<void(int64_t sample, std::span<std::byte* const> destinations)> read;
  /// Identifies the samples, such as a name and a version, so that a checkpoint is not resumed with others.
  std::string identity;
};

/// The program's own samples, for TrainingOptions; cheap to copy. Every rank passes all samples; the training
/// decides which of them the rank reads.
class Samples {
 public:
  /// No samples.
  Samples() = default;
  /// Takes the values. Throws ConfigError if there are no fields or more than 16, if the number of a field's
  /// values is no multiple of its shape, or if fields have different numbers of samples. Throws DataError for
  /// negative int32 values in fields other than "label" and "documents".
  static Samples in_memory(std::vector<FieldValues> fields);
  /// Throws ConfigError if something is missing, or for more than 16 fields. int32 values are checked when
  /// they are read; the DataError names field and sample.
  static Samples from(SampleSource source);

  int64_t count() const;  ///< number of samples

 private:
  struct Content;
  friend struct SamplesAccess;
  std::shared_ptr<const Content> content_;
};

}  // namespace lockstep
#pragma GCC visibility pop
