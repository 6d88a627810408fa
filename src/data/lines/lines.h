#pragma once

#include "data/dataset.h"

namespace lockstep::data {

/// Texts, each of a class. Fields: "tokens" int32 [length], cut or padded with token 0; "mask" float32
/// [length], 1 for tokens of the text; "label" int32.
DatasetPair open_line_datasets(const DataOptions& options);

}  // namespace lockstep::data
