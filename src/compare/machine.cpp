#include "compare/machine.h"

#include <sys/utsname.h>

#include <fstream>

#include "base/text.h"

namespace lockstep::compare {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(':') != std::string::npos)
      return std::string(trim(line.substr(line.find(':') + 1)));
  return "";
}

std::string kernel_release() {
  utsname system{};
  if (::uname(&system) != 0) return "";
  return std::string(system.sysname) + " " + system.release;
}

}  // namespace lockstep::compare
