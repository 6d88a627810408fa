#pragma once

#include <string>
#include <vector>

#include "infer/predictor.h"

namespace lockstep::cli {

/// For people: a row for each right class, with how often each class was predicted, and the share that was
/// right. Of more classes than fit on a line, those that were most often taken for others, and for which.
std::string confusion_table(const infer::Confusion& confusion, const std::vector<std::string>& classes);

}  // namespace lockstep::cli
