#include "config/text_library.h"

#include <google/protobuf/stubs/common.h>

namespace lockstep::config {

std::string text_library() {
  return "Protocol Buffers " + google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
}

}  // namespace lockstep::config
