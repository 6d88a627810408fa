#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/data_options.h"

namespace lockstep::data {

/// The files that `names` stand for, below the folders of `options`: each is a file, or a pattern of a shell
/// ("train_*.bin"), which stands for all that match, sorted by name. A file that several names stand for is
/// there once. Throws IoError for a file that is not there, or a pattern that nothing matches.
std::vector<std::string> list_files(const DataOptions& options, const std::vector<std::string>& names);

/// The files that train, and those that evaluate, which do not train even if `files` names them. A pattern
/// for them may stand for files that `files` name.
struct SplitFiles {
  std::vector<std::string> train, eval;
};
/// Unless `needs_train`, files that train need not be there.
SplitFiles split_files(const DataOptions& options, const std::vector<std::string>& files,
                       const std::vector<std::string>& eval_files, bool needs_train);

/// A text without the byte-order mark that some editors begin UTF-8 with.
std::string_view after_byte_order_mark(std::string_view text);

/// The lines of a small file, without those that are empty.
std::vector<std::string> read_list(const DataOptions& options, const std::string& name);

/// Whether a small file, `name`, lists each sample by its number: one a line, from 0 to `count` - 1. Throws
/// DataError, which says what is numbered ("rows"), for anything else.
std::vector<bool> read_numbers(const DataOptions& options, const std::string& name, int64_t count,
                               const char* what);

/// The same name in messages of one line: control characters as \x0a.
std::string one_line(const std::string& name);

}  // namespace lockstep::data
