#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/data_options.h"

namespace lockstep::data {

/// The encoding that keeps the names of classes, by number, beside a checkpoint: a JSON array.
Encodings class_encoding(const std::vector<std::string>& names);

/// The classes of the model that is evaluated; nothing if there is none, or if it keeps no names. Throws
/// DataError if they are something else.
std::optional<std::vector<std::string>> classes_of_model(const DataOptions& options);

/// Names of classes, by number, among what a checkpoint keeps of its data: those of images, or the values of
/// a table's target. Empty if there are none.
std::vector<std::string> class_names_among(const Encodings& encodings);

}  // namespace lockstep::data
