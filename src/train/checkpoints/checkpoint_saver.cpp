#include "train/checkpoints/checkpoint_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/ensure.h"
#include "base/text.h"
#include "base/thread.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

constexpr const char* kReports = "checkpoint.report";
constexpr const char* kOutcomes = "checkpoint.outcome";
constexpr size_t kMostBytes = 512 << 10;  // of a message; a mailbox takes twice as much

}  // namespace

CheckpointSaver::CheckpointSaver(const CheckpointSaverOptions& options)
    : options_(options), files_(*options.files, options.progress, control::Progress::kWriterSlot) {}

CheckpointSaver::~CheckpointSaver() {
  if (!settled()) join_writer();
}

void CheckpointSaver::start(checkpoint::CheckpointShare share, checkpoint::Manifest manifest) {
  ensure(settled(), "a save begins when the one before it has ended");
  ++number_;
  pieces_.clear();
  done_.store(false, std::memory_order_relaxed);
  thread_ = start_thread_without_signals(
      "checkpoint", [this, share = std::move(share), manifest = std::move(manifest)]() mutable {
        save(share, std::move(manifest));
        done_.store(true, std::memory_order_release);
      });
}

std::optional<checkpoint::SaveOutcome> CheckpointSaver::poll() {
  if (settled() || !done_.load(std::memory_order_acquire)) return std::nullopt;
  return settle();
}

std::optional<checkpoint::SaveOutcome> CheckpointSaver::settle() {
  if (settled()) return std::nullopt;
  join_writer();
  return std::move(outcome_);
}

/// While the training thread waits for this one, it stands still, and only this one's slot says that the rank
/// gets on. So that slot goes when the training thread's has changed, and not before: otherwise a rank whose
/// long save has just ended would look as if it had been waiting for all that time.
void CheckpointSaver::join_writer() {
  thread_.join();
  if (options_.progress == nullptr) return;
  const auto now = options_.progress->at(control::Progress::kMainSlot);
  options_.progress->enter(control::Progress::kMainSlot, now.activity, now.program, now.instruction);
  enter(control::Activity::idle);
}

void CheckpointSaver::enter(control::Activity activity) {
  if (options_.progress != nullptr)
    options_.progress->enter(control::Progress::kWriterSlot, activity, kSaving, 0);
}

void CheckpointSaver::save(const checkpoint::CheckpointShare& share, checkpoint::Manifest manifest) {
  const int64_t step = manifest.step;
  try {
    checkpoint::CheckpointWriter writer(options_.directory, step, files_);
    checkpoint::ShareReport report = checkpoint::write_share(writer, share);
    outcome_ = options_.mailbox->rank() == 0
                   ? collect_and_commit(writer, std::move(manifest), std::move(report))
                   : report_and_wait(step, report);
  } catch (const std::exception& error) {
    outcome_ = {.step = step, .path = "", .error = error.what(), .code = ExitCode::internal};
  }
  try {
    for (int rank = 1; rank < options_.mailbox->size() && options_.mailbox->rank() == 0; ++rank)
      send(rank, kOutcomes, checkpoint::to_text(outcome_));
  } catch (const std::exception&) {
    // Who hears nothing ends by its patience.
  }
  enter(control::Activity::waiting);  // for the training thread
}

checkpoint::SaveOutcome CheckpointSaver::collect_and_commit(checkpoint::CheckpointWriter& writer,
                                                            checkpoint::Manifest manifest,
                                                            checkpoint::ShareReport own) {
  checkpoint::ShareReports reports{{0, std::move(own)}};
  const auto deadline = deadline_in(options_.patience);
  while (reports.size() < 1 + options_.writers.size()) {
    const auto message = receive(kReports, deadline);
    if (!message) break;
    reports[message->from] = checkpoint::share_report_from_text(message->text);
  }
  std::vector<std::string> silent;
  for (const int rank : options_.writers)
    if (!reports.contains(rank)) silent.push_back(std::to_string(rank));
  // Who has not reported may still be writing: its folder is left to the next save.
  if (!silent.empty())
    return {
        .step = manifest.step,
        .path = "",
        .error = fmt::format("rank{} {} did not finish writing within {:g} s", silent.size() == 1 ? "" : "s",
                             join(silent, ", "), static_cast<double>(options_.patience.count()) / 1000),
        .code = ExitCode::disk};
  return checkpoint::conclude_save(writer, std::move(manifest), reports, options_.keep);
}

checkpoint::SaveOutcome CheckpointSaver::report_and_wait(int64_t step, const checkpoint::ShareReport& own) {
  if (std::ranges::find(options_.writers, options_.mailbox->rank()) != options_.writers.end())
    send(0, kReports, checkpoint::to_text(own));
  if (const auto message = receive(kOutcomes, deadline_in(2 * options_.patience)))
    return checkpoint::save_outcome_from_text(message->text);
  return {.step = step,
          .path = "",
          .error = fmt::format("rank 0 did not report within {:g} s whether it succeeded",
                               static_cast<double>(2 * options_.patience.count()) / 1000),
          .code = ExitCode::disk};
}

/// In pieces "number more text", so that reports on any number of tensors fit a mailbox.
void CheckpointSaver::send(int to, const char* topic, const std::string& text) {
  size_t begin = 0;
  do {
    const size_t size = std::min(kMostBytes, text.size() - begin);
    const bool more = begin + size < text.size();
    options_.mailbox->send(to, topic,
                           fmt::format("{} {} {}", number_, more ? 1 : 0, text.substr(begin, size)));
    begin += size;
  } while (begin < text.size());
}

std::optional<control::Mailbox::Message> CheckpointSaver::receive(const char* topic, Deadline deadline) {
  enter(control::Activity::waiting);
  while (auto message = options_.mailbox->receive(topic, deadline)) {
    const auto& text = message->text;
    const size_t first = text.find(' '), second = text.find(' ', first + 1);
    ensure(second != std::string::npos, "messages of savers begin with two numbers");
    int64_t number = 0;
    std::from_chars(text.data(), text.data() + first, number);
    if (number != number_) continue;  // of a save that ended without it
    auto& whole = pieces_[message->from];
    whole += text.substr(second + 1);
    if (text[first + 1] == '1') continue;
    return control::Mailbox::Message{message->from, std::exchange(whole, "")};
  }
  return std::nullopt;
}

}  // namespace lockstep::train
