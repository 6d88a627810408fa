#include <algorithm>
#include <stdexcept>

#include "control/control_protocol.h"
#include "fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using namespace control;

/// What was read is written as it was read.
void require_same(const std::string& written, std::string_view read) {
  if (written != read) throw std::logic_error("a message that was read is written otherwise");
}

void decode(FrameType type, std::string_view payload) {
  switch (type) {
    case FrameType::welcome:
      if (const auto secret = decode_secret(payload)) require_same(encode_secret(*secret), payload);
      break;
    case FrameType::heartbeat:
      if (const auto beat = decode_heartbeat(payload)) require_same(encode_heartbeat(*beat), payload);
      break;
    case FrameType::mail:
      if (const auto mail = decode_mail(payload)) require_same(encode_mail(mail->topic, mail->text), payload);
      break;
    case FrameType::abort:
      if (const auto note = decode_abort(payload)) require_same(encode_abort(*note), payload);
      break;
    case FrameType::decision:
      if (const auto decision = decode_decision(payload)) require_same(encode_decision(*decision), payload);
      break;
    case FrameType::loss:
    case FrameType::members:
      if (const auto ranks = decode_ranks(payload)) require_same(encode_ranks(*ranks), payload);
      break;
    default:
      break;
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const auto hello = encode_hello({.rank = 3, .pid = 77});
  return {std::string(hello.begin(), hello.end()),
          encode_frame(FrameType::welcome, encode_secret({})),
          encode_frame(FrameType::heartbeat, encode_heartbeat({})),
          encode_frame(FrameType::mail, encode_mail("topic", "text")),
          encode_frame(FrameType::abort, encode_abort({.code = 65, .reason = "damage"})),
          encode_frame(FrameType::members, encode_ranks({0, 2, 3})),
          encode_frame(FrameType::decision, encode_decision({}))};
}

void parse(std::string_view bytes) {
  may_begin_hello(bytes);
  if (bytes.size() >= kHelloBytes)
    decode_hello(std::span<const char, kHelloBytes>(bytes.data(), kHelloBytes));
  if (bytes.size() < kFrameHeaderBytes) return;
  const auto header =
      decode_frame_header(std::span<const char, kFrameHeaderBytes>(bytes.data(), kFrameHeaderBytes));
  if (header) decode(header->type, bytes.substr(kFrameHeaderBytes, header->payload_bytes));
}

}  // namespace lockstep::fuzz
