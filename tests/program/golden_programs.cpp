#include "program/golden_programs.h"

#include <algorithm>
#include <filesystem>

#include "base/text.h"

namespace lockstep::program {

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(LOCKSTEP_GOLDENS))
    if (entry.path().extension() == ".program") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string golden_text(const std::string& name) {
  return read_text_file(std::string(LOCKSTEP_GOLDENS) + "/" + name + ".program");
}

std::vector<Program> load_golden(const std::string& name) { return programs_from_text(golden_text(name)); }

std::string text_of(const std::vector<proof::CheckFinding>& findings) {
  std::string text;
  for (const proof::CheckFinding& finding : findings)
    text += std::string(proof::name_of(finding.property)) + ": " + finding.message + "\n";
  return text;
}

bool has(const std::vector<proof::CheckFinding>& findings, proof::CheckFinding::Property property) {
  return std::any_of(findings.begin(), findings.end(),
                     [&](const proof::CheckFinding& finding) { return finding.property == property; });
}

}  // namespace lockstep::program
