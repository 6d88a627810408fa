#include "cli/step_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/index.h"
#include "charts/svg_chart.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using program::Instruction;
using program::InstructionKind;
using program::Program;

constexpr int kMostRanks = 16;
constexpr size_t kMostBoxes = 4000;
constexpr double kPictureWidth = 900, kNames = 124, kRow = 20, kBox = 15;
constexpr double kShortest = 0.7;  // of a box that is drawn

enum class Color { forward, backward, communication, update, other };
constexpr std::array<const char*, 5> kMeanings = {"forward", "backward", "communication", "update",
                                                  "anything else"};
// Okabe and Ito 2008.
constexpr std::array<const char*, 5> kFills = {"#0072b2", "#009e73", "#d55e00", "#cc79a7", "#999999"};

Color color_of(InstructionKind kind) {
  if (program::communicates(kind)) return Color::communication;
  switch (kind) {
    case InstructionKind::forward:
    case InstructionKind::recompute:
      return Color::forward;
    case InstructionKind::backward:
    case InstructionKind::backward_input:
    case InstructionKind::backward_weight:
      return Color::backward;
    case InstructionKind::propose:
    case InstructionKind::update:
      return Color::update;
    default:
      return Color::other;
  }
}

std::string label_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     charts::html_text(text));
}

std::string legend(double y) {
  std::string svg;
  double x = kNames;
  for (size_t i = 0; i < kMeanings.size(); ++i) {
    svg += fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"18\" height=\"10\" fill=\"{}\"/>\n", x, y - 9,
                       kFills[i]);
    svg += label_at(x + 23, y, "start", kMeanings[i]);
    x += 45 + 7.3 * static_cast<double>(std::string_view(kMeanings[i]).size());
  }
  return svg;
}

class Picture {
 public:
  Picture(std::span<const Program> programs, const plan::ProgramTimeline& timeline)
      : programs_(programs), timeline_(timeline) {}

  std::string draw(const std::string& title) {
    y_ = 44;
    for (size_t rank = 0; rank < programs_.size(); ++rank) add_rank(rank);
    const std::string head = fmt::format(
        "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
        "xmlns=\"http://www.w3.org/2000/svg\">\n<style>svg {{ color: #1b1f24; background: #ffffff; }} text "
        "{{ font: "
        "12px system-ui, sans-serif; fill: currentColor; }} .in {{ font-size: 10px; fill: #ffffff; }} .line "
        "{{ stroke: "
        "currentColor; stroke-opacity: 0.18; }} @media (prefers-color-scheme: dark) {{ svg {{ color: "
        "#e4e7eb; "
        "background: #14171a; }} }}</style>\n",
        kPictureWidth, y_ + 14, charts::html_text(title));
    return head + label_at(0, 14, "start", title) + legend(34) + body_ +
           label_at(kPictureWidth - 4, y_ + 4, "end", "time") + "</svg>\n";
  }

 private:
  double at_x(double time) const {
    return kNames + (kPictureWidth - kNames - 4) * (time - timeline_.begin) / timeline_.duration();
  }

  void add_rank(size_t rank) {
    const Program& program = programs_[rank];
    const auto& timed = timeline_.ranks[rank];
    bool first = true;
    for (int lane = 0; lane < static_cast<int>(program.lanes.size()); ++lane) {
      std::string boxes;
      for (int i = 0; i < static_cast<int>(timed.size()); ++i)
        if (program.instruction(i).lane == lane) boxes += box(program, i, nth(timed, i));
      if (boxes.empty()) continue;
      if (first)
        body_ += fmt::format("<line x1=\"0\" y1=\"{0:.0f}\" x2=\"{1:.0f}\" y2=\"{0:.0f}\" class=\"line\"/>\n",
                             y_ + 2, kPictureWidth);
      body_ += label_at(0, y_ + 16, "start", first ? fmt::format("rank {}", rank) : "");
      body_ += label_at(kNames - 6, y_ + 16, "end", program.lane(lane).name.substr(0, 12));
      body_ += boxes;
      first = false;
      y_ += kRow;
    }
    y_ += 6;
  }

  std::string box(const Program& program, int i, const plan::TimedInstruction& timed) {
    const double x = at_x(timed.start), width = at_x(timed.end) - x;
    if (timed.end <= timed.start) return "";
    if (++boxes_ > kMostBoxes)
      throw ConfigError(
          fmt::format("--picture: the step has more than {} instructions to draw; draw a step of fewer ranks "
                      "or micro-batches",
                      kMostBoxes));
    const Instruction& instruction = program.instruction(i);
    std::string svg = fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"1.5\" "
        "fill=\"{}\"><title>{}</title></rect>\n",
        x, y_ + 5, std::max(width - 0.4, kShortest), kBox,
        kFills[static_cast<size_t>(color_of(instruction.kind))],
        charts::html_text(program::describe(program, i)));
    const std::string name = instruction.segment >= 0 ? fmt::format("{}", instruction.segment) : "";
    if (!name.empty() && width > 8 + 6 * static_cast<double>(name.size()))
      svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" class=\"in\">{}</text>\n",
                         x + width / 2, y_ + 16, name);
    return svg;
  }

  std::span<const Program> programs_;
  const plan::ProgramTimeline& timeline_;
  std::string body_;
  double y_ = 0;  // of the next row
  size_t boxes_ = 0;
};

}  // namespace

void check_can_be_drawn(int ranks) {
  if (ranks > kMostRanks)
    throw ConfigError(fmt::format("--picture: draws at most {} ranks, but there are {}", kMostRanks, ranks));
}

std::string step_picture(const std::string& title, std::span<const Program> programs,
                         const plan::ProgramTimeline& timeline) {
  check_can_be_drawn(static_cast<int>(programs.size()));
  return Picture(programs, timeline).draw(title);
}

}  // namespace lockstep::cli
