#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::observe {

struct HttpReply {
  int status = 0;
  std::string body;
};

struct HttpRequest {
  std::string method;  ///< "GET", "POST", "PUT", "PATCH"
  std::string url;
  std::string content_type;  ///< empty: no body
  std::string body;
};

/// Requests to servers, one at a time. It is an interface so that tests can answer.
class HttpClient {
 public:
  virtual ~HttpClient() = default;
  /// Throws IoError if there is no complete answer in time.
  virtual HttpReply send(const HttpRequest& request) = 0;
};

struct HttpOptions {
  std::chrono::milliseconds connect_time{3000}, whole_time{15000};
  std::vector<std::string> headers{};  ///< of every request: "Name: value"
};

/// By libcurl, which is loaded now: only runs that need it have it. Throws ConfigError if the library is not
/// there, or if this build knows nothing of it.
std::unique_ptr<HttpClient> make_http_client(const HttpOptions& options);

/// The text with everything escaped that has a meaning in a URL, except slashes.
std::string url_escaped(const std::string& text);

}  // namespace lockstep::observe
