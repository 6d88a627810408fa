#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Windows of files of tokens: llm.c's, with a header, or nanoGPT's, without. Training windows begin every
/// `stride` tokens, evaluation windows do not overlap; both lie within a file, and within what the split left
/// together.
DatasetPair open_token_datasets(const DataOptions& options);

}  // namespace lockstep::data
