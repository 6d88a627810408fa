#include "train/loop/machine_watch.h"

#include <fmt/format.h>

#include <exception>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "observe/sinks/record_line.h"

namespace lockstep::train {
namespace {

constexpr const char* kMachineTopic = "machine";

observe::MetricsRecord record_of(const observe::MachineSample& sample, int64_t step) {
  observe::MetricsRecord record{.step = step, .metrics = {}, .machine = sample.subject};
  for (const auto& [name, value] : sample.figures)
    record.metrics.push_back(observe::machine_metric(sample.subject.kind, name, value));
  if (!sample.held_down_by.empty())
    record.metrics.emplace_back("held_down_by", join(sample.held_down_by, ", "));
  return record;
}

}  // namespace

MachineWatch::MachineWatch(MachineWatchOptions options, observe::MachineIdentity identity)
    : options_(std::move(options)),
      thread_({.every_seconds = options_.every_seconds, .gpu_uuid = options_.gpu_uuid}, std::move(identity),
              [this](const auto& samples) { publish(samples); }) {}

void MachineWatch::publish(const std::vector<observe::MachineSample>& samples) {
  if (!options_.is_told) return;
  const int64_t step = step_.load(std::memory_order_relaxed);
  try {
    if (options_.mailbox->rank() == 0) {
      for (const auto& sample : samples) options_.write(record_of(sample, step));
      write_received();
      return;
    }
    std::string lines;
    for (const auto& sample : samples) lines += observe::record_line(record_of(sample, step));
    options_.mailbox->send(0, kMachineTopic, lines);
  } catch (const std::exception& error) {
    // The run does not depend on them, and the watchdog finds out what is wrong.
    options_.is_told = false;
    log_warning(std::string("figures of machines are not told any more: ") + error.what());
  }
}

void MachineWatch::write_received() {
  std::map<int, std::string> latest;  // by sender
  while (auto message = options_.mailbox->receive(kMachineTopic, Clock::now()))
    latest[message->from] = std::move(message->text);
  for (const auto& [from, lines] : latest) try {
      for (const auto& line : split(lines, '\n'))
        if (!line.empty()) options_.write(observe::record_of(observe::parse_metrics_line(line, "a message")));
    } catch (const DataError& error) {
      log_warning(fmt::format("figures of rank {}'s machine cannot be read: {}", from, error.what()));
    }
}

}  // namespace lockstep::train
