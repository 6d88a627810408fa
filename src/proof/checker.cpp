#include "proof/checker.h"

#include <fmt/format.h>

#include "lockstep/error.h"
#include "proof/check_world.h"

namespace lockstep::proof {

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
  Findings findings(programs, options.max_findings);
  check_structure(programs, findings);
  if (!findings.empty()) return findings.take();
  const ProgramWorld world(programs);
  check_matching(world, findings);
  const bool matched = findings.empty();
  for (int rank = 0; rank < world.size(); ++rank) check_data(world, rank, findings);
  if (matched) check_execution(world, findings);
  return findings.take();
}

void ensure_checked(std::span<const program::Program> programs) {
  const auto findings = check_programs(programs);
  if (findings.empty()) return;
  std::string text = "the step programs are wrong (a bug in the compiler that wrote them):";
  for (const CheckFinding& finding : findings)
    text += fmt::format("\n  {}: {}", name_of(finding.property), finding.message);
  throw InternalError(text);
}

}  // namespace lockstep::proof
