#include "jobs/traced_training.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lockstep::jobs {

void run_traced(const TrainingCommand& command, const std::vector<std::string>& options,
                const std::string& directory, TracedTraining& training,
                const std::function<void(pid_t)>& watch) {
  const int ranks = command.layout.world_size();
  ProcessJob job{.processes = ranks,
                 .arguments = command.arguments(),
                 .place = command.place,
                 .stdout_path = directory + "/result.json",
                 .stderr_path = directory + "/stderr.txt",
                 .watch = watch};
  job.arguments.insert(job.arguments.end(), {"--quiet", "--trace", directory});
  job.arguments.insert(job.arguments.end(), options.begin(), options.end());
  const JobOutcome outcome = run_to_end(job);
  if (outcome.code != 0)
    throw job_failure(fmt::format("layout '{}': training", layout::to_string(command.layout)), outcome,
                      directory);
  training.report = nlohmann::ordered_json::parse(outcome.output);
  const train::Trace first = train::read_trace(train::trace_path(directory, 0));
  training.trace.append(first);
  for (int rank = 1; rank < ranks && !training.difference; ++rank) {
    training.difference =
        train::first_difference(first, train::read_trace(train::trace_path(directory, rank)));
    training.first_side = "rank 0";
    training.second_side = fmt::format("rank {}", rank);
  }
}

void compare_traces(const std::string& first_name, const TracedTraining& first, const std::string& name,
                    TracedTraining& training) {
  if (training.difference) return;
  training.difference = train::first_difference(first.trace, training.trace);
  training.first_side = first_name;
  training.second_side = name;
}

std::string describe_difference(const TracedTraining& training) {
  const train::TraceDifference& difference = *training.difference;
  const size_t width = std::max(training.first_side.size(), training.second_side.size());
  std::string text = fmt::format("differs: step {}, {}", difference.step, difference.name);
  if (difference.more > 0) text += fmt::format(" (and {} more at this step)", difference.more);
  return text + fmt::format("\n  {:<{}}  {}\n  {:<{}}  {}\n", training.first_side, width, difference.first,
                            training.second_side, width, difference.second);
}

}  // namespace lockstep::jobs
