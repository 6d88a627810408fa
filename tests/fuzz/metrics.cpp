#include "fuzz/fuzz.h"
#include "observe/metrics_reader.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"{\"step\": 1, \"loss\": 2.5, \"accuracy\": 0.5}\n{\"step\": 2, \"loss\": 2.25}\n"};
}

void parse(std::string_view bytes) { observe::read_metrics(file_of(bytes)); }

}  // namespace lockstep::fuzz
