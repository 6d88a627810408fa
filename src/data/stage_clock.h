#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep::data {

/// What is done for a sample.
enum class DataStage : uint8_t { read, decode, transform };
inline constexpr int kDataStages = 3;
std::string_view name_of(DataStage stage);

/// Milliseconds by stage.
using StageTimes = std::array<double, kDataStages>;

/// Since the thread began.
StageTimes stage_times_of_thread();

/// While it lives, the calling thread's time counts as that of a stage, but for what inner ones take.
class StageTimer {
 public:
  explicit StageTimer(DataStage stage);
  ~StageTimer();
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  int outer_;  // a DataStage; -1: there was none
};

}  // namespace lockstep::data
