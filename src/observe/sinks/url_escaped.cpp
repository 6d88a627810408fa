#include <fmt/format.h>

#include <cctype>

#include "observe/sinks/http_client.h"

namespace lockstep::observe {

std::string url_escaped(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) || std::string_view("-_.~/").find(c) != std::string_view::npos;
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return escaped;
}

}  // namespace lockstep::observe
