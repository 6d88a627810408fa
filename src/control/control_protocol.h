#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control/rank_state.h"

namespace lockstep::control {

// The protocol of a control connection. First comes a hello of fixed size, answered by a welcome frame. Then
// frames travel in both directions: a header of eight bytes (payload bytes as 4 bytes, type, three zeros) and
// the payload. Numbers are little-endian. Decoders accept any bytes and return nothing if they are not what
// the encoder writes.

using Secret = std::array<uint8_t, 32>;

/// Secrets that only a job's ranks know: `hello` authenticates a rank to rank 0, `answer` rank 0 to a rank.
struct JobToken {
  Secret hello{}, answer{};
};

JobToken draw_token();  ///< from the system's generator; throws CommError if it has none
/// Compares in constant time.
bool same_secret(const Secret& a, const Secret& b);

struct Hello {
  Secret token{};
  int rank = 0;
  int64_t pid = 0;
};
inline constexpr size_t kHelloBytes = 56;
std::array<char, kHelloBytes> encode_hello(const Hello& hello);
/// Nothing if magic or version differ. The token is not checked.
std::optional<Hello> decode_hello(std::span<const char, kHelloBytes> bytes);
/// Whether a hello may begin with these bytes, so that most other input is recognised early.
bool may_begin_hello(std::string_view bytes);

// enter and leave: to rank 0, of a section (Muster); loss and members: from it.
enum class FrameType : uint8_t {
  welcome = 1,
  heartbeat,
  ask,
  mail,
  abort,
  decision,
  farewell,
  answer,
  enter,
  leave,
  loss,
  members
};

struct Frame {
  FrameType type;
  std::string payload;
};

inline constexpr size_t kFrameHeaderBytes = 8;
inline constexpr size_t kLargestMail = 1 << 20;
inline constexpr size_t kLargestTopic = 255;
inline constexpr size_t kLargestPayload = kLargestMail + 512;

std::string encode_frame(FrameType type, std::string_view payload);
struct FrameHeader {
  FrameType type;
  size_t payload_bytes;
};
std::optional<FrameHeader> decode_frame_header(std::span<const char, kFrameHeaderBytes> bytes);

std::string encode_secret(const Secret& secret);
std::optional<Secret> decode_secret(std::string_view payload);

std::string encode_heartbeat(const Heartbeat& heartbeat);
std::optional<Heartbeat> decode_heartbeat(std::string_view payload);

struct Mail {
  std::string topic, text;
};
std::string encode_mail(std::string_view topic, std::string_view text);
std::optional<Mail> decode_mail(std::string_view payload);

struct AbortNote {
  int code = 0;
  std::string reason;
};
std::string encode_abort(const AbortNote& note);
std::optional<AbortNote> decode_abort(std::string_view payload);

/// Of loss and members.
std::string encode_ranks(const std::vector<int>& ranks);
std::optional<std::vector<int>> decode_ranks(std::string_view payload);

std::string encode_decision(const JobDecision& decision);  ///< all but `printed`
std::optional<JobDecision> decode_decision(std::string_view payload);

}  // namespace lockstep::control
