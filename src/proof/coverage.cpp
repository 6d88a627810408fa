#include "proof/coverage.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::proof {

std::string coverage_gap(const std::vector<ModelParameter>& parameters,
                         std::vector<Expressions::Coverage> coverage, bool once) {
  std::sort(coverage.begin(), coverage.end());
  size_t at = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const ModelParameter& parameter = parameters[p];
    int64_t done = 0;
    for (; at < coverage.size() && coverage[at].parameter == static_cast<int>(p); ++at) {
      if (coverage[at].begin > done) break;
      if (once && coverage[at].begin < done)
        return fmt::format("'{}' twice from byte {}", parameter.name, coverage[at].begin);
      done = std::max(done, coverage[at].end);
    }
    if (parameter.frozen && done > 0) return fmt::format("'{}', which is frozen", parameter.name);
    if (done < parameter.size_bytes && !parameter.frozen)
      return fmt::format("not '{}' from byte {}", parameter.name, done);
  }
  return "";
}

}  // namespace lockstep::proof
