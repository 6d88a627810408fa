#include "fuzz/fuzz.h"
#include "lockstep/error.h"
#include "observe/sinks/scrape_answer.h"

namespace lockstep::fuzz {

std::vector<std::string> seeds() {
  return {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "GET /metrics?x=1 HTTP/1.0\r\n\r\n",
          "GET / HTTP/1.1\r\n\r\n", "POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
          "GET /other HTTP/1.1\r\n\r\n"};
}

void parse(std::string_view bytes) {
  constexpr std::string_view kPage = "lockstep_step 1\n";
  const auto whole = observe::scrape_answer(bytes, kPage);
  if (whole && !whole->starts_with("HTTP/1.1 ")) throw InternalError("an answer is none of HTTP");
  // However bytes arrive, it is the first moment that all of a request is there that decides.
  for (size_t size = 0; size <= bytes.size() && size < 4096; ++size)
    if (const auto answer = observe::scrape_answer(bytes.substr(0, size), kPage)) {
      if (answer != whole) throw InternalError("an answer depends on what comes behind the request");
      return;
    }
  if (whole && bytes.size() < 4096) throw InternalError("a request is complete only by what comes behind it");
}

}  // namespace lockstep::fuzz
