#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/case.h"
#include "net/oracle/comparison.h"

namespace lockstep::net {

/// What is wrong with a case.
struct Finding {
  enum class Kind {
    bits,   ///< other bits than one rank's
    error,  ///< a rank threw
    proof,  ///< the checker refused the programs
    crash,  ///< the process ended, or did not
    oracle  ///< one rank's numbers are not those of the model
  };
  Kind kind;
  std::string what;
};

std::string_view name_of(Finding::Kind kind);

struct CheckOptions {
  bool proves = true;  ///< false: programs run that the checker might refuse
};

/// Trains the case on one rank and in its layout, and compares both; then one rank with the oracle, whose
/// report is left in `oracle` unless that is null.
std::optional<Finding> check_case(const Case& test_case, const CheckOptions& options = {},
                                  OracleReport* oracle = nullptr);

/// The same of texts, as a user has them, and of what neither says.
struct CaseFacts {
  bool on_gpu = false, shared_memory = false, lanes_at_once = false;
  int ranks_per_host = 0;
};
std::optional<Finding> check_texts(const std::string& config, const std::string& layout,
                                   const CaseFacts& facts, const CheckOptions& options = {},
                                   OracleReport* oracle = nullptr);

}  // namespace lockstep::net
