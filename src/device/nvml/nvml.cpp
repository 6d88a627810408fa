#include "device/nvml/nvml.h"

#include <fmt/format.h>

namespace lockstep::device {

Nvml::Nvml() : library_("libnvidia-ml.so.1") {
  if (!library_.loaded()) {
    problem_ = library_.problem();
    return;
  }
  const int status = library_.call("nvmlInit_v2");
  answers_ = status == 0;
  if (!answers_) problem_ = fmt::format("NVIDIA's driver does not answer (nvmlInit_v2 returns {})", status);
}

Nvml::~Nvml() {
  if (answers_) library_.call("nvmlShutdown");
}

}  // namespace lockstep::device
