#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/op_testing.h"
#include "ops/parts.h"

namespace lockstep::testing {

/// The cases of an op, defined in its test file beside its double-precision reference. An op without them
/// does not link.
template <ops::OneOp O>
std::vector<OpCase> cases_of();

struct OpCasesRow {
  std::string_view op;
  std::vector<OpCase> (*cases)();
};
/// One row for each op of the table.
std::span<const OpCasesRow> op_cases();

/// Those of every op, under names that begin with the op's.
std::vector<OpCase> all_cases();
/// The same cases with two-byte storage. A result is off by its own rounding and by what rounding within the
/// op does: backward reads outputs that were rounded.
std::vector<OpCase> narrow_cases(DType dtype, double tolerance);

}  // namespace lockstep::testing
