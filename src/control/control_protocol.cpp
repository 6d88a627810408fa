#include "control/control_protocol.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "control/byte_codec.h"
#include "lockstep/error.h"

namespace lockstep::control {
namespace {

constexpr std::string_view kMagic = "LOCKSTEP";
constexpr uint32_t kVersion = 1;

void draw(Secret& secret) {
  size_t drawn = 0;
  while (drawn < secret.size()) {
    const auto count = ::getrandom(secret.data() + drawn, secret.size() - drawn, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw CommError(std::string("the system's random generator failed: ") + std::strerror(errno));
    drawn += static_cast<size_t>(count);
  }
}

std::optional<SlotState> read_slot(ByteReader& reader) {
  SlotState slot;
  slot.slot = reader.number<uint8_t>();
  const auto activity = reader.number<uint8_t>();
  slot.seconds = reader.real();
  slot.text = reader.text();
  if (!reader.ok() || slot.slot >= Progress::kSlots || activity > static_cast<uint8_t>(Activity::waiting) ||
      !std::isfinite(slot.seconds) || slot.seconds < 0)
    return {};
  slot.activity = static_cast<Activity>(activity);
  return slot;
}

}  // namespace

JobToken draw_token() {
  JobToken token;
  draw(token.hello);
  draw(token.answer);
  return token;
}

bool same_secret(const Secret& a, const Secret& b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

std::array<char, kHelloBytes> encode_hello(const Hello& hello) {
  const std::string bytes = ByteWriter()
                                .raw(kMagic)
                                .number(kVersion)
                                .number(static_cast<uint32_t>(hello.rank))
                                .number(hello.pid)
                                .raw(encode_secret(hello.token))
                                .take();
  std::array<char, kHelloBytes> fixed;
  std::copy(bytes.begin(), bytes.end(), fixed.begin());
  return fixed;
}

std::optional<Hello> decode_hello(std::span<const char, kHelloBytes> bytes) {
  ByteReader reader({bytes.data(), bytes.size()});
  if (reader.raw(kMagic.size()) != kMagic || reader.number<uint32_t>() != kVersion) return {};
  Hello hello;
  hello.rank = reader.number<int32_t>();
  hello.pid = reader.number<int64_t>();
  hello.token = *decode_secret(reader.raw(sizeof(Secret)));
  return hello;
}

bool may_begin_hello(std::string_view bytes) {
  const size_t common = std::min(bytes.size(), kMagic.size());
  return bytes.substr(0, common) == kMagic.substr(0, common);
}

std::string encode_frame(FrameType type, std::string_view payload) {
  return ByteWriter()
      .number(static_cast<uint32_t>(payload.size()))
      .number(static_cast<uint8_t>(type))
      .raw(std::string_view("\0\0\0", 3))
      .raw(payload)
      .take();
}

std::optional<FrameHeader> decode_frame_header(std::span<const char, kFrameHeaderBytes> bytes) {
  ByteReader reader({bytes.data(), bytes.size()});
  const size_t payload_bytes = reader.number<uint32_t>();
  const auto type = reader.number<uint8_t>();
  const bool zeros = reader.raw(3) == std::string_view("\0\0\0", 3);
  if (payload_bytes > kLargestPayload || !zeros || type < static_cast<uint8_t>(FrameType::welcome) ||
      type > static_cast<uint8_t>(FrameType::members))
    return {};
  return FrameHeader{static_cast<FrameType>(type), payload_bytes};
}

std::string encode_secret(const Secret& secret) { return {secret.begin(), secret.end()}; }

std::optional<Secret> decode_secret(std::string_view payload) {
  Secret secret;
  if (payload.size() != secret.size()) return {};
  std::copy(payload.begin(), payload.end(), secret.begin());
  return secret;
}

std::string encode_heartbeat(const Heartbeat& heartbeat) {
  ByteWriter writer;
  writer.number(heartbeat.step).number(static_cast<uint8_t>(heartbeat.slots.size()));
  for (const auto& slot : heartbeat.slots)
    writer.number(static_cast<uint8_t>(slot.slot))
        .number(static_cast<uint8_t>(slot.activity))
        .number(slot.seconds)
        .text(slot.text);
  return writer.take();
}

std::optional<Heartbeat> decode_heartbeat(std::string_view payload) {
  ByteReader reader(payload);
  Heartbeat heartbeat;
  heartbeat.step = reader.number<int64_t>();
  const int count = reader.number<uint8_t>();
  for (int i = 0; i < count; ++i) {
    auto slot = read_slot(reader);
    if (!slot) return {};
    heartbeat.slots.push_back(std::move(*slot));
  }
  if (!reader.finished()) return {};
  return heartbeat;
}

std::string encode_mail(std::string_view topic, std::string_view text) {
  return ByteWriter().text(topic).raw(text).take();
}

std::optional<Mail> decode_mail(std::string_view payload) {
  ByteReader reader(payload);
  Mail mail;
  mail.topic = reader.text();
  if (!reader.ok() || mail.topic.size() > kLargestTopic) return {};
  mail.text = payload.substr(sizeof(uint32_t) + mail.topic.size());
  return mail;
}

std::string encode_abort(const AbortNote& note) {
  return ByteWriter().number(static_cast<int32_t>(note.code)).text(note.reason).take();
}

std::optional<AbortNote> decode_abort(std::string_view payload) {
  ByteReader reader(payload);
  AbortNote note;
  note.code = reader.number<int32_t>();
  note.reason = reader.text();
  if (!reader.finished()) return {};
  return note;
}

std::string encode_ranks(const std::vector<int>& ranks) {
  ByteWriter writer;
  writer.number(static_cast<uint32_t>(ranks.size()));
  for (const int rank : ranks) writer.number(static_cast<int32_t>(rank));
  return writer.take();
}

std::optional<std::vector<int>> decode_ranks(std::string_view payload) {
  ByteReader reader(payload);
  const auto count = reader.number<uint32_t>();
  std::vector<int> ranks;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) ranks.push_back(reader.number<int32_t>());
  if (!reader.finished()) return {};
  return ranks;
}

std::string encode_decision(const JobDecision& decision) {
  return ByteWriter()
      .number(static_cast<uint8_t>(decision.fault))
      .number(static_cast<int32_t>(decision.rank))
      .number(static_cast<int32_t>(decision.code))
      .text(decision.report)
      .take();
}

std::optional<JobDecision> decode_decision(std::string_view payload) {
  ByteReader reader(payload);
  JobDecision decision;
  const auto fault = reader.number<uint8_t>();
  decision.rank = reader.number<int32_t>();
  decision.code = reader.number<int32_t>();
  decision.report = reader.text();
  if (!reader.finished() || fault > static_cast<uint8_t>(Fault::terminated)) return {};
  decision.fault = static_cast<Fault>(fault);
  return decision;
}

}  // namespace lockstep::control
