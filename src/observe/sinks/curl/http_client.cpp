#include "observe/sinks/http_client.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

/// libcurl's functions. It is not linked: it brings some thirty libraries with it, which every start would
/// wait for.
struct Curl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

template <class Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw ConfigError(fmt::format("metrics.mlflow: libcurl has no {}", name));
}

/// Never unloaded: its libraries leave threads' data behind.
Curl load_curl() {
  void* library = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw ConfigError(
        fmt::format("metrics.mlflow: cannot load libcurl ({}); install it (libcurl4), or leave the field out",
                    ::dlerror()));
  Curl curl{};
  find_function(library, "curl_global_init", curl.global_init);
  find_function(library, "curl_easy_init", curl.easy_init);
  find_function(library, "curl_easy_reset", curl.easy_reset);
  find_function(library, "curl_easy_setopt", curl.easy_setopt);
  find_function(library, "curl_easy_perform", curl.easy_perform);
  find_function(library, "curl_easy_getinfo", curl.easy_getinfo);
  find_function(library, "curl_easy_strerror", curl.easy_strerror);
  find_function(library, "curl_easy_cleanup", curl.easy_cleanup);
  find_function(library, "curl_slist_append", curl.slist_append);
  find_function(library, "curl_slist_free_all", curl.slist_free_all);
  curl.global_init(CURL_GLOBAL_DEFAULT);
  return curl;
}

const Curl& loaded_curl() {
  static const Curl curl = load_curl();
  return curl;
}

constexpr size_t kMostReplyBytes = 64u << 20;

size_t receive_body(char* data, size_t size, size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + size * count > kMostReplyBytes) return 0;  // which ends the transfer
  text.append(data, size * count);
  return size * count;
}

class CurlClient : public HttpClient {
 public:
  explicit CurlClient(HttpOptions options)
      : options_(std::move(options)), curl_(loaded_curl()), handle_(curl_.easy_init()) {
    if (handle_ == nullptr) throw ConfigError("metrics.mlflow: libcurl does not start");
  }
  ~CurlClient() override { curl_.easy_cleanup(handle_); }
  CurlClient(const CurlClient&) = delete;
  CurlClient& operator=(const CurlClient&) = delete;

  HttpReply send(const HttpRequest& request) override {
    HttpReply reply;
    curl_slist* headers = nullptr;
    for (const auto& header : options_.headers) headers = curl_.slist_append(headers, header.c_str());
    // Servers that do not know "Expect: 100-continue" would be waited for.
    headers = curl_.slist_append(headers, "Expect:");
    if (!request.content_type.empty())
      headers = curl_.slist_append(headers, ("Content-Type: " + request.content_type).c_str());
    curl_.easy_reset(handle_);
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    if (!request.content_type.empty()) {
      set(CURLOPT_POSTFIELDS, request.body.c_str());
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    }
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_time.count()));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(options_.whole_time.count()));
    set(CURLOPT_WRITEFUNCTION, &receive_body);
    set(CURLOPT_WRITEDATA, &reply.body);
    const CURLcode code = curl_.easy_perform(handle_);
    long status = 0;
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    curl_.slist_free_all(headers);
    if (code != CURLE_OK) throw IoError(curl_.easy_strerror(code));
    reply.status = static_cast<int>(status);
    return reply;
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    curl_.easy_setopt(handle_, option, value);
  }

  HttpOptions options_;
  const Curl& curl_;
  CURL* handle_;
};

}  // namespace

std::unique_ptr<HttpClient> make_http_client(const HttpOptions& options) {
  return std::make_unique<CurlClient>(options);
}

}  // namespace lockstep::observe
