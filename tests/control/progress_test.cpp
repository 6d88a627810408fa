#include <gtest/gtest.h>

#include <string>

#include "control/progress_observer.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Clock::time_point at(int ms) { return Clock::time_point{seconds(1000)} + milliseconds(ms); }

std::string entry_text(const Progress::Entry& entry) {
  return std::to_string(entry.program) + "/" + std::to_string(entry.instruction);
}

TEST(ProgressObserver, TellsHowLongASlotHasStoodStill) {
  Progress progress;
  ProgressObserver observer(progress, at(0));
  EXPECT_EQ(observer.heartbeat(entry_text, at(0)), (Heartbeat{0, {}}));
  progress.set_step(3);
  progress.enter(0, Activity::compute, 1, 17);
  progress.enter(17, Activity::storage, 2, 5);
  observer.look(at(100));
  progress.enter(0, Activity::compute, 1, 17);  // the same instruction of the next step
  observer.look(at(200));
  observer.look(at(300));
  EXPECT_EQ(observer.heartbeat(entry_text, at(1200)),
            (Heartbeat{3, {{0, Activity::compute, 1.0, "1/17"}, {17, Activity::storage, 1.1, "2/5"}}}));
  progress.enter(17, Activity::idle, 0, 0);
  observer.look(at(1300));
  // Since 200 ms, but for a second in which the process did not run.
  observer.forgive(seconds(1));
  observer.look(at(2500));
  EXPECT_EQ(observer.heartbeat(entry_text, at(2700)), (Heartbeat{3, {{0, Activity::compute, 1.5, "1/17"}}}));
}

TEST(ProgressObserver, DescribesWithoutADescriberAndBoundsWhatOneSays) {
  Progress progress;
  progress.enter(4, Activity::waiting, 2, 9);
  ProgressObserver observer(progress, at(0));
  EXPECT_EQ(observer.heartbeat({}, at(0)).slots.at(0).text, "program 2, instruction 9");
  const auto chatty = [](const Progress::Entry&) { return std::string(100000, 'x'); };
  EXPECT_EQ(observer.heartbeat(chatty, at(0)).slots.at(0).text.size(), 403U);
}

}  // namespace
}  // namespace lockstep::control
