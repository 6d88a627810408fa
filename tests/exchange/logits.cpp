// What a checkpoint's model says of one sample: reads the values of inputs from files, writes logits
// (float32) to stdout.
//
//   exchange_logits CONFIG CHECKPOINT [INPUT FILE]...

#include <cstdio>
#include <cstring>
#include <exception>

#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "infer/checkpoint_model.h"
#include "infer/evaluator.h"
#include "lockstep/error.h"
#include "model/graph.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  if (argc < 5 || argc % 2 == 0) return 2;
  try {
    const config::RunConfig config = config::load_run_config(argv[1], {}, "pp=1");
    infer::Evaluator evaluator(model::make_graph(config.model), 1);
    infer::load_parameters(evaluator, checkpoint::Checkpoint(argv[2]));
    for (int i = 3; i < argc; i += 2) {
      const Tensor input = evaluator.input(argv[i]);
      const std::string values = read_text_file(argv[i + 1]);
      require(static_cast<int64_t>(values.size()) == input.size_bytes(),
              "the file has another size than the input");
      std::memcpy(input.data, values.data(), values.size());
    }
    const Tensor logits = evaluator.evaluate();
    std::fwrite(logits.data, 1, static_cast<size_t>(logits.size_bytes()), stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
