#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "data/test_files.h"
#include "jobs/job.h"

namespace lockstep::test {

using Json = nlohmann::json;

struct Ran {
  int code;
  std::string out, err;
};

/// Runs a command line to its end, in a folder of its own. Nothing that it starts is left.
inline Ran run_command(std::vector<std::string> command) {
  const TemporaryDirectory folder;
  jobs::ProcessJob job;
  job.program = command.front();
  job.arguments.assign(command.begin() + 1, command.end());
  job.environment["OMP_NUM_THREADS"] = "1";
  job.stdout_path = folder / "out";
  job.stderr_path = folder / "err";
  const jobs::JobOutcome outcome = jobs::run_to_end(job);
  return {outcome.code.value_or(-1), outcome.output, outcome.error};
}

/// The program itself with these arguments.
inline Ran lockstep(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_PROGRAM);
  return run_command(std::move(arguments));
}

/// Several ranks under mpirun, each group of them with arguments of its own.
struct Ranks {
  int count;
  std::vector<std::string> arguments;
};
inline Ran mpirun(const std::vector<Ranks>& groups) {
  std::vector<std::string> command;
  for (const auto& group : groups) {
    command.push_back(command.empty() ? "mpirun" : ":");
    command.insert(command.end(), {"-n", std::to_string(group.count), LOCKSTEP_PROGRAM});
    command.insert(command.end(), group.arguments.begin(), group.arguments.end());
  }
  return run_command(std::move(command));
}
inline Ran mpirun(int ranks, const std::vector<std::string>& arguments) {
  return mpirun(std::vector<Ranks>{{ranks, arguments}});
}

/// A config that trains in a fraction of a second, on data that it makes itself.
class SmallConfig {
 public:
  SmallConfig() {
    write_file(path(), std::string(R"(
model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 dropout: 0.1 } }
data { synthetic { samples: 240 eval_samples: 50 classes: 3 } }
trainer { global_batch: 24 virtual_replicas: 4 steps: 12 seed: 1 eval_every_steps: 5 }
optimizer { learning_rate: 0.05 sgd { momentum: 0.9 } }
parallel { reduction: REPRODUCIBLE }
)"));
  }
  std::string path() const { return folder_ / "small.textproto"; }
  /// A name in the same temporary folder.
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  TemporaryDirectory folder_;
};

inline std::vector<std::string> operator+(std::vector<std::string> words,
                                          const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// Exactly one JSON object and a newline.
inline Json only_json(const Ran& ran) {
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(occurrences(ran.out, "\n"), 1u) << ran.out;
  return Json::parse(ran.out);
}

/// The lines of a run's metrics.jsonl, without those of machines, which come by the clock.
inline std::vector<Json> metrics_of(const std::string& run) {
  std::vector<Json> lines;
  for (const auto& line : split(read_text_file(run + "/metrics.jsonl"), '\n'))
    if (!line.empty() && !Json::parse(line).contains("kind")) lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace lockstep::test
