#include "observe/sinks/http_client.h"

#include "lockstep/error.h"

namespace lockstep::observe {

std::unique_ptr<HttpClient> make_http_client(const HttpOptions&) {
  throw ConfigError(
      "metrics.mlflow: this build of lockstep has no libcurl; install its headers (libcurl4-openssl-dev) and "
      "build again, or leave the field out");
}

}  // namespace lockstep::observe
