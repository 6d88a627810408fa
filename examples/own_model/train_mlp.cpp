// A model written in C++ and trained by lockstep: on one process, or on several without a change.
//
//     build/release/bin/train_mlp
//     mpirun -n 2 build/release/bin/train_mlp --set parallel.reduction=REPRODUCIBLE
//
// Prints the same parameters hash on any number of processes where the reduction is REPRODUCIBLE.

#include <cstdio>
#include <string>

#include "lockstep/model.h"
#include "lockstep/train.h"

namespace {

/// Two branches of different width over the same image, added up: what no preset offers.
lockstep::ModelSpec two_branches() {
  using namespace lockstep;
  ModelBuilder b;
  const auto image = b.input("image", {{8, 8, 1}});
  const auto label = b.input("label", {{}, DType::int32});
  const auto flat = b.add("flat", Flatten{}, {image});
  const auto wide = b.add("wide", Linear{.units = 64}, {flat});
  const auto bent = b.add("bent", Relu{}, {wide});
  const auto left = b.add("left", Linear{.units = 4}, {bent});
  const auto right = b.add("right", Linear{.units = 4, .bias = false}, {flat});
  b.add("loss", SoftmaxCrossEntropy{}, {b.add("sum", Add{}, {left, right}), label});
  return b.build();
}

constexpr const char* kConfig = R"(
  data { synthetic { samples: 2000 eval_samples: 500 classes: 4 } }
  trainer { global_batch: 64 virtual_replicas: 8 steps: 100 seed: 1 }
  optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
)";

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_job([&](lockstep::Job& job) {
    lockstep::TrainingOptions options;
    for (int i = 1; i + 1 < argc; i += 2)
      if (std::string(argv[i]) == "--set") options.overrides.push_back(argv[i + 1]);
    const auto summary = job.train(two_branches(), kConfig, options);
    if (job.rank() == 0)
      std::printf("%d processes, %lld steps: accuracy %.1f %%, parameters %s\n", job.world_size(),
                  static_cast<long long>(summary.steps), 100 * summary.eval_accuracy.value_or(0),
                  summary.parameters_hash.c_str());
  });
}
