#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// Least, median and largest of some numbers.
struct Spread {
  int64_t least = 0, median = 0, largest = 0;
  bool operator==(const Spread&) const = default;
};

/// What one part of the data holds.
struct PartSummary {
  std::string description;
  int64_t samples = 0;
  uint64_t identity = 0;
  /// Samples by label, -1 among them; of data with one label for each sample.
  std::map<int64_t, int64_t> labels;
  std::optional<Spread> heights, widths;  ///< of images where they come from
  std::optional<Spread> lengths;          ///< of sequences: labels that count
  Damage damage;
};

/// Samples that are equal, but for their labels.
struct DuplicateSummary {
  int64_t within_training = 0;  ///< training samples that an earlier one equals
  int64_t in_evaluation = 0;    ///< evaluation samples that a training sample equals
  std::vector<std::pair<std::string, std::string>> examples;  ///< a few of the latter: training, evaluation
};

struct DataSummary {
  std::vector<std::string> class_names;
  std::optional<PartSummary> train, eval;
  /// Of data whose samples are each a thing of its own: an image, a row, a text. Nothing if none were looked
  /// for: not of windows of tokens, which overlap, or begin elsewhere in equal texts.
  std::optional<DuplicateSummary> duplicates;
};

/// Reads all labels and, with `contents`, all samples. Of sequences no more than 10,000 are looked at, evenly
/// spread.
DataSummary summarize(const DatasetPair& data, bool contents);

}  // namespace lockstep::data
