#include "observe/sinks/scrape_answer.h"

#include <fmt/format.h>

namespace lockstep::observe {
namespace {

std::string http_answer(const char* status, const char* type, std::string_view body, const char* more = "") {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}",
                     status, type, body.size(), more, body);
}

/// `request`: up to the empty line.
std::string answer_to(std::string_view request, std::string_view page) {
  constexpr const char* kPlain = "text/plain; charset=utf-8";
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return http_answer("400 Bad Request", kPlain, "expected an HTTP/1.1 request\n");
  if (line.substr(0, first) != "GET")
    return http_answer("405 Method Not Allowed", kPlain, "only GET is answered\n", "Allow: GET\r\n");
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  if (path == "/metrics") return http_answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", page);
  if (path == "/")
    return http_answer("200 OK", kPlain, "A training by lockstep; its metrics are at /metrics\n");
  return http_answer("404 Not Found", kPlain, "metrics are at /metrics\n");
}

}  // namespace

std::optional<std::string> scrape_answer(std::string_view received, std::string_view page) {
  const size_t end = received.find("\r\n\r\n");
  if (end == std::string_view::npos) return std::nullopt;
  return answer_to(received.substr(0, end + 2), page);
}

}  // namespace lockstep::observe
