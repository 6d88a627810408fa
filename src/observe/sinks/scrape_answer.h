#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::observe {

/// What is answered by HTTP to whom `received` came from, once that is a complete request; nothing before.
/// `page` is what is served at /metrics. A pure function of bytes that anybody may have sent.
std::optional<std::string> scrape_answer(std::string_view received, std::string_view page);

}  // namespace lockstep::observe
