#pragma once

#include <string>
#include <vector>

#include "data/data_options.h"

namespace lockstep::data {

/// The files that `names` stand for, below the folders of `options`: each is a file, or a pattern of a shell
/// ("train_*.bin"), which stands for all that match, sorted by name. A file that several names stand for is
/// there once. Throws IoError for a file that is not there, or a pattern that nothing matches.
std::vector<std::string> list_files(const DataOptions& options, const std::vector<std::string>& names);

/// The same name in messages of one line: control characters as \x0a.
std::string one_line(const std::string& name);

}  // namespace lockstep::data
