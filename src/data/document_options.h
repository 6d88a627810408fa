#pragma once

#include <cstdint>
#include <string>

namespace lockstep::data {

/// Whether samples of tokens say which document each position belongs to, and how documents are told apart.
struct DocumentOptions {
  bool are_read = false;              ///< there is a field "documents" (data/documents.h)
  int64_t end_of_text = -1;           ///< of files of tokens: what begins a document; -1: the tokenizer's
  std::string end_of_text_character;  ///< of a text: likewise; "": it is one document
  bool operator==(const DocumentOptions&) const = default;
};

}  // namespace lockstep::data
