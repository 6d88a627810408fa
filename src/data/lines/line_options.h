#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::data {

/// Options of the kind `lines`: texts, each of a class.
struct LineOptions {
  std::vector<std::string> files;       ///< names or patterns; on each line a class, a tab, and a text
  std::vector<std::string> eval_files;  ///< of these, or further ones: they evaluate
  std::string folder, eval_folder;      ///< instead: a folder for each class, with a file for each text
  std::string eval_list;     ///< a file that lists texts, by number or path below the folder; "": none
  double eval_fraction = 0;  ///< share of each class to evaluate on
  uint64_t split_seed = 1;   ///< decides which
  int64_t length = 0;        ///< tokens that a text is cut or padded to
  std::string tokenizer;     ///< file; "": tokens are bytes
  bool operator==(const LineOptions&) const = default;
};

}  // namespace lockstep::data
