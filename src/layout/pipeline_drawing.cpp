#include "layout/pipeline_drawing.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "base/text.h"
#include "layout/pipeline_timeline.h"

namespace lockstep::layout {
namespace {

using Kind = PipelineUnit::Kind;

/// In the order of the enumeration.
constexpr std::string_view kLetters = "FRBIW";
constexpr std::array<std::string_view, 5> kMeanings = {"F forward", "R recompute", "B backward, two columns",
                                                       "I backward of inputs", "W backward of weights"};
constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// A drawing of more columns than this loses its middle.
constexpr size_t kMostColumns = 160;
/// What a slow link would take for activations of a micro-batch, in forwards of a stage.
constexpr double kTransfer = 0.25;

char digit(int number) { return nth(kDigits, number % static_cast<int>(kDigits.size())); }

/// What is in each column of one stage.
struct StageLines {
  std::string micro_batches, kinds, chunks;
};

StageLines lines_of(const StageTimeline& stage, size_t columns) {
  StageLines lines{std::string(columns, '.'), std::string(columns, ' '), std::string(columns, ' ')};
  for (const TimedUnit& timed : stage.units)
    for (long column = std::lround(timed.start); column < std::lround(timed.end); ++column) {
      nth(lines.micro_batches, column) = digit(timed.unit.micro_batch);
      nth(lines.kinds, column) = nth(kLetters, timed.unit.kind);
      nth(lines.chunks, column) = digit(timed.unit.chunk);
    }
  return lines;
}

/// A line without its middle, if it is long, and without blanks at its end.
std::string shortened(std::string_view line, std::string_view gap) {
  constexpr size_t kHalf = kMostColumns / 2;
  std::string text(line);
  if (line.size() > kMostColumns)
    text = fmt::format("{}{}{}", line.substr(0, kHalf), gap, line.substr(line.size() - kHalf));
  text.resize(text.find_last_not_of(' ') + 1);
  return text;
}

std::string legend(const PipelineTimeline& timeline, const PipelineShape& shape) {
  std::array<bool, kMeanings.size()> occurs{};
  for (const auto& stage : timeline.stages)
    for (const TimedUnit& timed : stage.units) nth(occurs, timed.unit.kind) = true;
  std::vector<std::string> parts{"micro-batch 0-9a-zA-Z", ". nothing"};
  for (size_t kind = 0; kind < kMeanings.size(); ++kind)
    if (occurs[kind]) parts.emplace_back(kMeanings[kind]);
  if (shape.chunks > 1) parts.emplace_back("third line: chunk");
  return join(parts, "; ");
}

std::string name_of(const PipelineShape& shape) {
  Layout layout;
  layout.pp = 2;  // without stages a schedule has no meaning
  layout.schedule = shape.schedule;
  for (const LayoutKey& key : layout_keys())
    if (key.name == "schedule") {
      const std::string name = value_text(key, key.get(layout));
      return shape.chunks > 1 ? fmt::format("{}, chunks={}", name, shape.chunks) : name;
    }
  return "";
}

/// "4 3 2 1", or of many stages only "8 to 1", in micro-batches of a whole stage.
std::string peaks_of(const PipelineShape& shape, int ActivationPeak::*peak) {
  std::vector<std::string> peaks;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const int pieces = activation_peak(pipeline_schedule(shape, stage)).*peak;
    peaks.push_back(fmt::format("{:.4g}", static_cast<double>(pieces) / shape.chunks));
  }
  constexpr size_t kMostListed = 8;
  return peaks.size() > kMostListed ? fmt::format("{} to {}", peaks.front(), peaks.back()) : join(peaks, " ");
}

/// A step in forwards of a whole stage: a piece is smaller by the number of chunks, what it sends is not.
double step_of(const PipelineShape& shape, double transfer) {
  return replay(shape, {.transfer = transfer * shape.chunks}).step / shape.chunks;
}

/// `shape` with another schedule.
PipelineShape with_schedule(PipelineShape shape, PipelineSchedule schedule) {
  if (schedule == shape.schedule) return shape;
  shape.schedule = schedule;
  shape.chunks = schedule == PipelineSchedule::interleaved ? Layout{}.chunks : 1;
  return shape;
}

std::string comparison_line(const PipelineShape& shape, bool own) {
  return fmt::format("{} {:<24}{:>9.6g}{:>8.1f} %{:>13.6g}   {}{}\n", own ? '*' : ' ', name_of(shape),
                     step_of(shape, 0), 100 * replay(shape, {}).bubble_fraction(), step_of(shape, kTransfer),
                     peaks_of(shape, &ActivationPeak::pairs),
                     shape.recomputes ? fmt::format(" ({})", peaks_of(shape, &ActivationPeak::whole)) : "");
}

}  // namespace

std::string draw_schedule(const PipelineShape& shape) {
  const PipelineTimeline timeline = replay(shape, {});
  const auto columns = static_cast<size_t>(std::lround(timeline.step));
  std::string text;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const StageLines lines = lines_of(nth(timeline.stages, stage), columns);
    text += fmt::format("stage {:<4}{}\n{:10}{}\n", stage, shortened(lines.micro_batches, " ... "), "",
                        shortened(lines.kinds, "     "));
    if (shape.chunks > 1) text += fmt::format("{:10}{}\n", "", shortened(lines.chunks, "     "));
  }
  return text + legend(timeline, shape) + "\n";
}

std::string compare_schedules(const PipelineShape& shape) {
  std::string text =
      fmt::format("  {:<24}{:>9}{:>10}{:>13}   most activations of stage 0, 1, ...{}\n", "schedule", "step",
                  "bubble", "slow link", shape.recomputes ? " (of which whole)" : "");
  for (const PipelineSchedule schedule : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b,
                                          PipelineSchedule::interleaved, PipelineSchedule::zero_bubble}) {
    const PipelineShape other = with_schedule(shape, schedule);
    if (takes(other)) text += comparison_line(other, schedule == shape.schedule);
  }
  return text + fmt::format(
                    "step: in forwards of a stage; slow link: the step if each transfer takes {} of one; "
                    "activations: micro-batches of a stage\n",
                    kTransfer);
}

}  // namespace lockstep::layout
