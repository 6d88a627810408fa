#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "data/damage_log.h"

namespace lockstep::data {

/// A text and its class.
struct LabelledText {
  std::string label, text;  ///< label "": no class is known
  RowPlace place;
  std::string name;  ///< as lists have it: "cats/a.txt" of a folder; of files its number, from 0 through all
};

/// What is read, besides where it is.
struct TextReading {
  bool may_lack_labels = false;
  int64_t most_inflated = 0;        ///< of a gzip file; see ByteSource
  int64_t numbered = 0;             ///< texts of files that were numbered before, damaged ones too
  std::set<std::string> damaged{};  ///< names of texts that are left out
};

/// Lines "class<tab>text" of a file, compressed by gzip or not. Damaged are lines without a tab, without a
/// class or a text, and what is no UTF-8. If labels may lack, a line may be a text alone. Throws what
/// DamageLog::note() and ByteSource throw.
void read_lines(const std::string& path, TextReading& reading, DamageLog& damage,
                std::vector<LabelledText>& texts);

/// The files below a folder's folders, which are classes; both in the order of their names. Damaged are files
/// that are empty or no UTF-8, and classes without a file. If labels may lack, files directly in the folder
/// have none.
void read_text_folder(const std::string& folder, TextReading& reading, DamageLog& damage,
                      std::vector<LabelledText>& texts);

}  // namespace lockstep::data
