#include "data/class_names.h"

#include "fuzz/fuzz.h"
#include "lockstep/error.h"

namespace lockstep::fuzz {

/// A checkpoint's classes.json.
std::vector<std::string> seeds() {
  return {R"(["cat","dog","\u00e9"])", data::class_encoding({"a", "b\n\"c"}).begin()->second, "[]"};
}

void parse(std::string_view bytes) {
  const auto names = data::class_names_among({{"classes.json", std::string(bytes)}});
  // What was read is what is written, so that checkpoints can be copied through programs.
  if (data::class_names_among(data::class_encoding(names)) != names)
    throw InternalError("names of classes are others when they are written and read");
}

}  // namespace lockstep::fuzz
