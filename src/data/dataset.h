#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/data_options.h"
#include "data/found_damage.h"
#include "data/sample_key.h"
#include "lockstep/tensor.h"
#include "pixels/packed_sample.h"

namespace lockstep::data {

/// One field of every sample. It feeds the model input of the same name.
struct Field {
  std::string name;  ///< "image", "tokens", "label"
  TensorSpec spec;   ///< of one sample, without the batch
  bool operator==(const Field&) const = default;
};

/// The field whose negative values a loss ignores, and which is padded with -1.
inline constexpr std::string_view kLabelField = "label";

/// The field of numbers to be predicted.
inline constexpr std::string_view kTargetField = "target";

/// The field that says with which class, and with how much of it, a label is mixed: int32 [..., 2], as
/// softmax_cross_entropy takes it.
inline constexpr std::string_view kLabelMixField = "label_mix";

/// The field that says which document of its sample a token belongs to: int32, of the shape of the tokens.
inline constexpr std::string_view kDocumentsField = "documents";

/// The most fields of a data set, so that reading a sample needs no allocation.
inline constexpr size_t kMostFields = 16;

/// The largest value of a field that counts.
struct LargestValue {
  int64_t value = -1;  ///< -1: there is none
  std::string place;   ///< "label 9 of sample 3 in FILE"; "" if it is in no file
};

/// Samples that could not be read, with `on_damage: SKIP`.
struct Damage {
  int64_t left_out = 0;  ///< how many were found when the data set was opened, and are no samples of it
  std::vector<int64_t> replaced;  ///< those that this process found when it read them, ascending
  bool operator==(const Damage&) const = default;
};

/// The field that packed samples have in place of floats, and how they lie in memory.
struct PackedImages {
  size_t field = 0;
  pixels::PackedLayout layout;
  bool operator==(const PackedImages&) const = default;
};

/// Samples in a fixed order. Immutable: every method may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual const std::vector<Field>& fields() const = 0;
  virtual int64_t size() const = 0;     ///< samples, at least 1
  virtual int64_t classes() const = 0;  ///< labels lie in [0, classes), or are negative (ignored)
  /// Whole numbers of a field, such as tokens, lie in [0, vocabulary).
  virtual int64_t vocabulary(std::string_view /*field*/) const { return classes(); }
  /// What made numbers of raw data, and evaluation must do likewise: "tokenizer.json" of texts.
  virtual Encodings encodings() const { return {}; }
  /// The largest value of a field of whole numbers; `ignored` does not count.
  virtual LargestValue largest(std::string_view field, int64_t ignored) const {
    const int64_t last = vocabulary(field) - 1;
    return {.value = last == ignored ? last - 1 : last, .place = ""};
  }
  /// Writes one sample: destinations[i] takes the bytes of field i; null skips that field. What is random
  /// about it is drawn from the key alone. REQUIRES: 0 <= key.sample < size(), one destination per field.
  virtual void read(const SampleKey& key, std::span<std::byte* const> destinations) const = 0;
  /// Says that a thread will soon read this sample. It need not, and nothing depends on it.
  virtual void expect(const SampleKey& /*key*/) const {}
  /// How samples are packed: an image as bytes, with what is still to be done to it. Nothing if they cannot
  /// be. Throws ConfigError, which names the transform that GPUs cannot do.
  virtual std::optional<PackedImages> packed() const { return {}; }
  /// The same as read() for all fields but the image, which is packed into the parts that `packed` has of
  /// packed()'s layout. REQUIRES: packed() is something. destinations[packed()->field] is not used.
  virtual void read_packed(const SampleKey& key, std::span<std::byte* const> destinations,
                           const pixels::PackedSample& packed) const;
  /// Hash of the samples themselves: the same content read from another path, gzip or not, has the same one.
  virtual uint64_t identity() const = 0;
  virtual std::string description() const = 0;  ///< one line for people: what, how many, from where
  /// By label; empty if classes have no names.
  virtual std::vector<std::string> class_names() const { return {}; }
  /// From where a sample is, such as its file; "" if there is nothing to say.
  virtual std::string sample_name(int64_t /*sample*/) const { return ""; }
  virtual Damage damage() const { return {}; }
  /// Height and width that an image has where it comes from; nothing if all have the field's.
  virtual std::optional<std::pair<int64_t, int64_t>> stored_size(int64_t /*sample*/) const { return {}; }
  /// Looks at all of a sample, also at what read() needs not look at; nothing if it is whole.
  virtual std::optional<SampleDamage> find_damage(int64_t sample) const;
  /// Of a sample without what is to be predicted ("label", "target") and before anything random: equal
  /// samples have equal hashes. Reads all of it.
  virtual uint64_t content_hash(int64_t sample) const;
};

struct DatasetPair {
  std::shared_ptr<const Dataset> train, eval;  ///< null: nothing to evaluate on, or to train on
};

/// Opens the data of the options and checks all of it. Throws ConfigError for options that make no sense,
/// DataError for malformed files, IoError for files that cannot be read.
DatasetPair open_datasets(const DataOptions& options);

}  // namespace lockstep::data
