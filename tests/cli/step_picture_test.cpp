#include "cli/step_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

using program::InstructionKind;
using program::LaneKind;
using testing::HasSubstr;
using testing::Not;

/// A forward, and a sum that begins within it and ends after it.
program::Program make_program(int rank) {
  program::Program program{.name = "step", .rank = rank, .world_size = 2};
  program.add_lane("compute", LaneKind::compute);
  program.add_lane("idle", LaneKind::copy);
  program.add_lane("sums & more", LaneKind::comm);
  program.groups.push_back({.name = "all", .members = {0, 1}});
  program.instructions.push_back({.kind = InstructionKind::forward, .segment = 7});
  program.instructions.push_back({.kind = InstructionKind::all_reduce, .lane = 2, .group = 0});
  return program;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(StepPicture, HasARowForEachLaneThatDoesSomething) {
  const std::vector<program::Program> programs{make_program(0), make_program(1)};
  const plan::ProgramTimeline timeline{
      .ranks = {{{0, 6}, {4, 10}}, {{0, 6}, {4, 10}}}, .busy = {}, .begin = 0, .end = 10};
  const std::string svg = step_picture("a < b", programs, timeline);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr(">rank 0</text>"));
  EXPECT_THAT(svg, HasSubstr(">rank 1</text>"));
  EXPECT_EQ(count(svg, ">compute</text>"), 2u);
  EXPECT_EQ(count(svg, ">sums &amp; more</text>"), 2u);
  EXPECT_THAT(svg, Not(HasSubstr("idle")));
  EXPECT_EQ(count(svg, "<title>"), 4u);
  EXPECT_THAT(svg, HasSubstr("step instruction 0 (forward, lane compute, segment 7)"));
  EXPECT_EQ(count(svg, ">7</text>"), 2u);
  EXPECT_EQ(svg.find("http"), svg.find("http://www.w3.org/2000/svg")) << "nothing is looked up";
}

TEST(StepPicture, LeavesOutWhatTakesNoTime) {
  const std::vector<program::Program> programs{make_program(0)};
  const plan::ProgramTimeline timeline{.ranks = {{{0, 6}, {6, 6}}}, .busy = {}, .begin = 0, .end = 6};
  EXPECT_EQ(count(step_picture("t", programs, timeline), "<title>"), 1u);
}

TEST(StepPicture, RefusesWhatNobodyCouldLookAt) {
  const std::vector<program::Program> programs(17, make_program(0));
  plan::ProgramTimeline timeline{.ranks = {}, .busy = {}, .begin = 0, .end = 10};
  timeline.ranks.assign(17, {{0, 6}, {4, 10}});
  EXPECT_THROW(step_picture("t", programs, timeline), ConfigError);
  program::Program many = make_program(0);
  many.instructions.assign(4001, many.instructions[0]);
  timeline.ranks.assign(1, std::vector<plan::TimedInstruction>(4001, {0, 1}));
  EXPECT_THROW(step_picture("t", std::vector{many}, timeline), ConfigError);
}

}  // namespace
}  // namespace lockstep::cli
