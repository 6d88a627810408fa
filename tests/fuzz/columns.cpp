#include "data/tables/columns.h"

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  const data::Columns columns{.inputs = {{.name = "a", .mean = 1.5, .deviation = 2},
                                         {.name = "b", .is_category = true, .values = {"x", "y"}}},
                              .target = {.name = "c", .is_category = true, .values = {"0", "1"}}};
  return {to_json(columns)};
}

void parse(std::string_view bytes) { data::columns_from_json(bytes, "input"); }

}  // namespace lockstep::fuzz
