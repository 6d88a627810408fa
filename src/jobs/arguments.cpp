#include "jobs/arguments.h"

namespace lockstep::jobs {

std::vector<std::string> ConfigArguments::all_overrides() const {
  std::vector<std::string> all = overrides;
  if (!data_directory.empty()) all.push_back("data.directory=" + data_directory);
  return all;
}

train::DeviceRequest DeviceArguments::request() const {
  return {.wish = train::device_wish_from_name(device), .allow_shared_gpu = allow_shared_gpu, .say = {}};
}

}  // namespace lockstep::jobs
