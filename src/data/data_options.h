#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/cifar_options.h"
#include "data/images/images_options.h"
#include "data/lines/line_options.h"
#include "data/records/records_options.h"
#include "data/tables/table_options.h"
#include "data/token_options.h"
#include "data/transforms/transform_options.h"

namespace lockstep::data {

class Dataset;
class FoundDamage;

enum class DataKind { idx, text, synthetic, own, images, cifar, tokens, table, lines, records };

/// What happens if a sample cannot be read: the run ends, or it goes on without the sample.
enum class DamagePolicy { fail, skip };

/// Which samples: [begin, end) of the files, in file order. -1: to the end.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = -1;
  bool operator==(const SampleRange&) const = default;
};

/// Texts of files that say how raw data become numbers, by their names. Checkpoints keep them.
using Encodings = std::map<std::string, std::string>;

struct DataOptions {
  DataKind kind = DataKind::synthetic;
  std::string directory;  ///< --data-dir; file names below are relative to it
  /// Where files are that are not in `directory`: it was moved with the run. Nothing: nowhere else.
  std::optional<std::string> other_directory;
  bool shuffle = true;
  Encodings encodings;  ///< of the model that is evaluated; empty: the data's own
  bool trains = true;   ///< if false, training data is not opened, and need not exist
  /// Of images, tables and texts that are evaluated, what is to be predicted may be missing.
  bool may_lack_truth = false;

  // idx: images and labels in IDX files, gzip or not; pixels become (value / 255 - mean) / deviation. Without
  // evaluation files there is no evaluation.
  std::string train_images, train_labels, eval_images, eval_labels;
  SampleRange train_range, eval_range;
  std::string eval_list;           ///< instead of files: lists numbers of training samples to evaluate on
  double eval_fraction = 0;        ///< or the share of each class of them
  uint64_t split_seed = 1;         ///< decides which
  int64_t idx_classes = 0;         ///< labels lie below; 0: any
  double mean = 0, deviation = 1;  ///< applied after `transforms`
  int64_t label_offset = 0;        ///< the label that the files have for class 0
  bool transposed = false;         ///< files hold columns where others hold rows

  // text: one file of characters; the vocabulary is its sorted set of bytes, or the model's tokens.
  std::string text_file;
  int64_t context = 0;          ///< tokens per sample
  double train_fraction = 0.9;  ///< the first part trains, the rest evaluates; 1: no evaluation

  TokenOptions tokens;
  TableOptions table;
  LineOptions lines;

  // synthetic: `samples` learnable samples made from the seed (see data/synthetic.h).
  int64_t samples = 0, eval_samples = 0;
  int64_t classes = 0;
  std::string shape;  ///< "28,28,1"
  uint64_t seed = 1;

  // own: samples of the program that trains; a config knows only their number.
  std::shared_ptr<const Dataset> own_train, own_eval;

  ImagesOptions images;
  CifarOptions cifar;
  RecordsOptions records;
  DamagePolicy on_damage = DamagePolicy::fail;  ///< of samples
  int64_t most_inflated_bytes = 0;              ///< that a gzip file may become; 0: default_most_inflated()
  /// Asked again and again while files are opened; if it returns true, StopRequested is thrown. May be null.
  bool (*stop_requested)() = nullptr;
  std::shared_ptr<FoundDamage> found;  ///< lists what is left out when files are opened; may be null
  std::string cache_directory;         ///< keeps image files that have been read; "": nothing does
  int64_t cache_bytes = 0;             ///< that the files there may take
  /// What happens to images, in this order. Random ones are for training alone.
  std::vector<TransformOptions> transforms, eval_transforms;
  bool transforms_on_gpu =
      false;  ///< what is behind cutting out and resizing; of images in files and records

  bool threads_adapt = false;  ///< then how many threads read, and how far ahead, is found out
  int prefetch_threads = 1;
  int prefetch_depth = 4;  ///< micro-batches held ready
  bool operator==(const DataOptions&) const = default;
};

}  // namespace lockstep::data
