#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// Images in files, one each. Either folders (below each a folder for each class) or lists (a path and a
/// class on each line) say what there is.
struct ImagesOptions {
  std::string train, eval;            ///< folders
  std::string train_list, eval_list;  ///< files with lines; their paths are relative to the data's directory
  double eval_fraction = 0;           ///< share of each class to evaluate on; then neither eval nor eval_list
  uint64_t split_seed = 1;            ///< decides which
  std::vector<std::string> classes;   ///< names by label; empty: those that are found, sorted
  int64_t channels = 3;               ///< 1: gray
  int64_t background = 255;           ///< behind transparent pixels, 0 (black) to 255
  bool scaled_decoding = true;        ///< JPEG: leave out detail that resizing would drop
  int64_t most_pixels = int64_t{1} << 27;  ///< larger images are damage
  bool operator==(const ImagesOptions&) const = default;
};

}  // namespace lockstep::data
