#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/damage_log.h"

namespace lockstep::data {

/// A text and its class.
struct LabelledText {
  std::string label, text;
  RowPlace place;
};

/// Lines "class<tab>text" of a file, compressed by gzip or not. Damaged are lines without a tab, without a
/// class or a text, and what is no UTF-8. Throws what DamageLog::note() throws.
void read_lines(const std::string& path, DamageLog& damage, std::vector<LabelledText>& texts);

/// The files below a folder's folders, which are classes; both in the order of their names. Damaged are files
/// that are empty or no UTF-8, and classes without a file.
void read_text_folder(const std::string& folder, DamageLog& damage, std::vector<LabelledText>& texts);

}  // namespace lockstep::data
