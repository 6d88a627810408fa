#include "proof/checker.h"

#include <fmt/format.h>

#include "lockstep/error.h"
#include "proof/check_structure.h"
#include "proof/check_world.h"

namespace lockstep::proof {
namespace {

void check_structure(std::span<const program::Program> programs, Findings& findings) {
  if (programs.empty())
    return findings.add(CheckFinding::Property::structure, -1, -1, "there are no programs");
  for (size_t r = 0; r < programs.size(); ++r) {
    const int rank = static_cast<int>(r);
    findings.get_on();
    check_declarations(programs[r], rank, static_cast<int>(programs.size()), findings);
    check_instructions(programs[r], rank, findings);
  }
  if (findings.empty()) check_agreement(programs, findings);
}

}  // namespace

std::string_view name_of(CheckFinding::Property property) {
  switch (property) {
    case CheckFinding::Property::structure:
      return "structure";
    case CheckFinding::Property::matching:
      return "matching";
    case CheckFinding::Property::deadlock:
      return "deadlock";
    case CheckFinding::Property::data:
      return "data";
    case CheckFinding::Property::mathematics:
      return "mathematics";
  }
  return "";
}

std::vector<CheckFinding> check_programs(std::span<const program::Program> programs,
                                         const CheckOptions& options) {
  Findings findings(programs, options);
  check_structure(programs, findings);
  if (!findings.empty()) return findings.take();
  const ProgramWorld world(programs);
  check_matching(world, findings);
  const bool matched = findings.empty();
  for (int rank = 0; rank < world.size(); ++rank) {
    findings.get_on();
    check_data(world, rank, findings);
  }
  if (matched) check_execution(world, options.flow, findings);
  return findings.take();
}

void ensure_checked(std::span<const program::Program> programs, const CheckOptions& options) {
  const auto findings = check_programs(programs, options);
  if (findings.empty()) return;
  std::string text = "the step programs are wrong (a bug in the compiler that wrote them):";
  for (const CheckFinding& finding : findings)
    text += fmt::format("\n  {}: {}", name_of(finding.property), finding.message);
  throw InternalError(text);
}

}  // namespace lockstep::proof
