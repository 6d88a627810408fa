#include "ops/op_cases.h"

#include <array>

namespace lockstep::testing {
namespace {

template <class... Ops>
constexpr std::array<OpCasesRow, sizeof...(Ops)> rows_of(std::type_identity<std::variant<Ops...>>) {
  return {{{Ops::kName, cases_of<Ops>}...}};
}

constexpr auto kOpCases = rows_of(std::type_identity<Op>{});

}  // namespace

std::span<const OpCasesRow> op_cases() { return kOpCases; }

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases;
  for (const OpCasesRow& row : op_cases()) {
    for (OpCase& c : row.cases()) {
      c.name = std::string(row.op) + "_" + c.name;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

std::vector<OpCase> narrow_cases(DType dtype, double tolerance) {
  std::vector<OpCase> cases = all_cases();
  for (OpCase& c : cases) {
    c.options.compute = dtype;
    c.tolerance = tolerance;
    // Rounded numbers are often equal, and a maximum of equal ones has no derivative: all in a window differ.
    if (std::holds_alternative<Pool2d>(c.op))
      c.prepare = [](std::vector<Array>& inputs) {
        for (size_t i = 0; i < inputs[0].values.size(); ++i)
          inputs[0].values[i] = (static_cast<double>(i * 73 % 251) - 125) / 128;
      };
  }
  return cases;
}

}  // namespace lockstep::testing
