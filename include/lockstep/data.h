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

/// One component of all samples, in memory: what the model input of the same name is fed with.
struct FieldValues {
  std::string name;                                               ///< "image", "tokens", "label"
  Shape shape;                                                    ///< of one sample
  std::variant<std::vector<float>, std::vector<int32_t>> values;  ///< sample after sample
};

/// Samples that a program makes when they are asked for.
struct SampleSource {
  std::vector<ModelInput> fields;
  int64_t count = 0;       ///< samples
  int64_t classes = 0;     ///< the field "label" lies in [0, classes), or is negative and counts for nothing
  int64_t vocabulary = 0;  ///< all other fields of int32 lie in [0, vocabulary)
  /// Writes sample `sample` (from 0): destinations[i] takes field i, whole; null where nobody reads it.
  /// Called from several threads at once. The same sample is always the same; each rank reads its own share.
  std::function<void(int64_t sample, std::span<std::byte* const> destinations)> read;
  /// Says which samples these are, so that a checkpoint is not resumed with others: a name and a version.
  std::string identity;
};

/// Samples of the program itself, for TrainingOptions; cheap to copy. Every rank has all of them, as ranks
/// have a file: which of them a rank reads is the training's affair.
class Samples {
 public:
  /// None.
  Samples() = default;
  /// Takes the values. Throws ConfigError where a field's values are no multiple of its shape, where fields
  /// have different numbers of samples, or where there are none or more than 16 fields, DataError for values
  /// of int32 below 0 in other fields than "label".
  static Samples in_memory(std::vector<FieldValues> fields);
  /// Throws ConfigError where something is missing, or for more than 16 fields. Values of int32 fields are
  /// checked when they are read: DataError, naming field and sample.
  static Samples from(SampleSource source);

  int64_t count() const;  ///< 0 where there are none

 private:
  struct Content;
  friend struct SamplesAccess;
  std::shared_ptr<const Content> content_;
};

}  // namespace lockstep
#pragma GCC visibility pop
