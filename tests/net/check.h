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
  /// One rank computes in the config's micro-batches and threads, as `lockstep verify` compares.
  bool as_verify = false;
};

/// What was looked at.
struct CheckReport {
  bool bits = false;      ///< all that training left behind has one rank's bits
  bool diverged = false;  ///< training ended early, on one rank as in the layout; the steps before are equal
  OracleReport oracle;
};

/// Trains the case on one rank and in its layout, and compares both; then one rank with the oracle. FAST sums
/// have nobody's bits: then the layout itself is compared with the oracle. What was compared is left in
/// `report` unless that is null.
std::optional<Finding> check_case(const Case& test_case, const CheckOptions& options = {},
                                  CheckReport* report = nullptr);

/// The same of texts, as a user has them, and of what neither says.
struct CaseFacts {
  bool on_gpu = false, shared_memory = false, lanes_at_once = false;
  int ranks_per_host = 0;
  bool operator==(const CaseFacts&) const = default;
};
CaseFacts facts_of(const Case& test_case);
std::optional<Finding> check_texts(const std::string& config, const std::string& layout,
                                   const CaseFacts& facts, const CheckOptions& options = {},
                                   CheckReport* report = nullptr);

}  // namespace lockstep::net
