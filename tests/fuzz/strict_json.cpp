#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {R"({"a": [1, -2.5e3, true, null], "b": {"c": "\u00e4\n", "d": []}})", "[[[]]]",
          "\"\\ud83d\\ude00\""};
}

void parse(std::string_view bytes) { checkpoint::parse_strict_json(bytes, "input"); }

}  // namespace lockstep::fuzz
