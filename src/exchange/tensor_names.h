#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::exchange {

/// Which tensor of a file is meant by each expected name.
struct NameMatch {
  std::map<std::string, std::string> found;  ///< by expected name
  std::vector<std::string> missing;          ///< expected, and not there
  std::vector<std::string> left_over;        ///< there, and not expected
  std::string
      prefix;  ///< that the file's names have, or lack ("-model."), beside the expected ones; "" if none
};

/// Names are the same also if either of them has prefixes that wrappers put before them: "module." of data
/// parallelism, "_orig_mod." of torch.compile, "model." and "transformer." of classes around a model. If no
/// name is found so, one prefix of any other kind that all names share is recognised.
NameMatch match_names(const std::vector<std::string>& expected, const std::vector<std::string>& there);

/// Whether `name` is `beginning`, or goes on after it with a dot.
bool begins_with_name(const std::string& name, const std::string& beginning);

}  // namespace lockstep::exchange
