#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/data_options.h"
#include "data/dataset.h"
#include "tokenizer/tokenizer.h"

namespace lockstep::data {

/// The samples of a data set that has the int32 fields "tokens" and "label" of one shape [context], with a
/// further field "documents" of that shape and type: how many tokens `end_of_text` a sample has up to each
/// position. So this token is the first of a document, as `lockstep data tokens` writes it before each text.
/// Positions that are padded (label -1) have -1. Without `end_of_text`, each sample is one document. Null
/// stays null.
std::shared_ptr<const Dataset> with_documents(std::shared_ptr<const Dataset> tokens,
                                              std::optional<int32_t> end_of_text);
DatasetPair with_documents(DatasetPair tokens, std::optional<int32_t> end_of_text);

/// The token that begins a document in samples of these options; nothing: each sample is one document, or, of
/// a program's own samples, nobody knows. `tokenizer`: of these samples; null: they have none.
std::optional<int32_t> begin_of_documents(const DataOptions& options, const tokenizer::Tokenizer* tokenizer);

}  // namespace lockstep::data
