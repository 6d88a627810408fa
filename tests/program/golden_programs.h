#pragma once

#include <string>
#include <vector>

#include "program/program.h"
#include "proof/checker.h"

namespace lockstep::program {

/// The names of tests/program/goldens/*.program, sorted.
std::vector<std::string> golden_names();
/// The programs of all ranks in one of them.
std::vector<Program> load_golden(const std::string& name);
std::string golden_text(const std::string& name);

/// "property: message" per line, or "" where there are no findings.
std::string text_of(const std::vector<proof::CheckFinding>& findings);
bool has(const std::vector<proof::CheckFinding>& findings, proof::CheckFinding::Property property);

}  // namespace lockstep::program
