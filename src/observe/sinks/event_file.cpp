#include "observe/sinks/event_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <fstream>

#include "base/hash.h"

namespace lockstep::observe {
namespace {

template <class Number>
std::string little_endian(Number value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string masked_checksum(std::string_view data) {
  const uint32_t checksum = crc32c(data.data(), data.size());
  return little_endian(((checksum >> 15) | (checksum << 17)) + 0xa282ead8u);
}

WireMessage event_at(const EventTime& time) {
  WireMessage event;
  event.real(1, time.unix_seconds);
  if (time.step != 0) event.number(2, static_cast<uint64_t>(time.step));
  return event;
}

/// A value with the plugin that shows it.
WireMessage plugin_value(const std::string& tag, const char* plugin, const std::string& content,
                         const WireMessage& tensor) {
  constexpr int kDataClassTensor = 2;
  WireMessage data, metadata, value;
  data.text(1, plugin);
  if (!content.empty()) data.text(2, content);
  metadata.text(1, data.bytes()).number(4, kDataClassTensor);
  value.text(1, tag).text(8, tensor.bytes()).text(9, metadata.bytes());
  return value;
}

std::string summary_event(const EventTime& time, const WireMessage& value) {
  return event_record(event_at(time).text(5, WireMessage().text(1, value.bytes()).bytes()).bytes());
}

std::string hparams_summary(const EventTime& time, const std::string& tag, int field,
                            const WireMessage& info) {
  // The plugin's data is in its metadata; the tensor is an empty vector of float32.
  constexpr int kFloat = 1;
  const std::string no_elements = WireMessage().text(2, "").bytes();
  const WireMessage tensor = WireMessage().number(1, kFloat).text(2, no_elements);
  const std::string content = WireMessage().text(field, info.bytes()).bytes();
  return summary_event(time, plugin_value("_hparams_/" + tag, "hparams", content, tensor));
}

/// A google.protobuf.Value.
std::string hparam_value(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return WireMessage().real(2, number).bytes();
  if (text == "true" || text == "false") return WireMessage().number(4, text == "true").bytes();
  return WireMessage().text(3, text).bytes();
}

constexpr int kSummaryField = 5, kSessionField = 7;
constexpr uint64_t kStepKey = 2 << 3;

struct EventHead {
  int64_t step = 0;
  int field = 0;  // the first one that is neither time nor step
};

/// What an event of ours begins with: its step, and the number of the field behind it.
EventHead head_of(std::string_view data) {
  EventHead head;
  size_t at = 9;  // behind the time
  const auto take = [&] {
    uint64_t value = 0;
    for (int shift = 0; at < data.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(data[at++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  uint64_t field = take();
  if (field == kStepKey) {
    head.step = static_cast<int64_t>(take());
    field = take();
  }
  head.field = static_cast<int>(field >> 3);
  return head;
}

}  // namespace

void WireMessage::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

WireMessage& WireMessage::number(int field, uint64_t value) {
  key(field, 0);
  varint(value);
  return *this;
}

WireMessage& WireMessage::real(int field, double value) {
  key(field, 1);
  bytes_ += little_endian(std::bit_cast<uint64_t>(value));
  return *this;
}

WireMessage& WireMessage::real32(int field, float value) {
  key(field, 5);
  bytes_ += little_endian(std::bit_cast<uint32_t>(value));
  return *this;
}

WireMessage& WireMessage::text(int field, std::string_view value) {
  key(field, 2);
  varint(value.size());
  bytes_ += value;
  return *this;
}

std::string event_record(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + masked_checksum(length) + std::string(data) + masked_checksum(data);
}

std::string version_event(double unix_seconds) {
  return event_record(event_at({unix_seconds, 0}).text(3, "brain.Event:2").bytes());
}

std::string session_start_event(const EventTime& time) {
  constexpr int kStart = 1;
  return event_record(event_at(time).text(7, WireMessage().number(1, kStart).bytes()).bytes());
}

std::string scalars_event(const EventTime& time, const std::vector<std::pair<std::string, double>>& values) {
  WireMessage summary;
  for (const auto& [tag, value] : values)
    summary.text(1, WireMessage().text(1, tag).real32(2, static_cast<float>(value)).bytes());
  return event_record(event_at(time).text(5, summary.bytes()).bytes());
}

std::string text_event(const EventTime& time, const std::string& tag, const std::string& text) {
  constexpr int kString = 7;
  return summary_event(
      time, plugin_value(tag, "text", "", WireMessage().number(1, kString).text(2, "").text(8, text)));
}

std::string histograms_event(const EventTime& time, const std::vector<NamedHistogram>& values) {
  // A tensor of doubles: a row for each bucket, with its ends and what it holds.
  constexpr int kDouble = 2, kColumns = 3;
  WireMessage summary;
  for (const auto& [tag, buckets] : values) {
    std::string contents;
    for (const auto& bucket : buckets)
      for (const double number : {bucket.left, bucket.right, bucket.count})
        contents += little_endian(std::bit_cast<uint64_t>(number));
    WireMessage shape;
    for (const size_t size : {buckets.size(), size_t{kColumns}})
      shape.text(2, WireMessage().number(1, size).bytes());
    summary.text(1, plugin_value(tag, "histograms", "",
                                 WireMessage().number(1, kDouble).text(2, shape.bytes()).text(4, contents))
                        .bytes());
  }
  return event_record(event_at(time).text(5, summary.bytes()).bytes());
}

std::string hparams_event(const EventTime& time, const std::string& group,
                          const std::vector<std::pair<std::string, std::string>>& values) {
  WireMessage info;
  for (const auto& [name, value] : values)
    info.text(1, WireMessage().text(1, name).text(2, hparam_value(value)).bytes());
  info.text(4, group).real(5, time.unix_seconds);
  return hparams_summary(time, "session_start_info", 3, info);
}

std::string hparams_end_event(const EventTime& time, bool success) {
  constexpr int kSuccess = 1, kFailure = 2;
  const WireMessage info = WireMessage().number(1, success ? kSuccess : kFailure).real(2, time.unix_seconds);
  return hparams_summary(time, "session_end_info", 4, info);
}

int64_t last_event_step(const std::vector<std::string>& paths) {
  constexpr uint64_t kAround = 16;  // bytes of a record besides its data
  int64_t last = 0;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const auto size = static_cast<uint64_t>(std::max<std::streamoff>(0, file.tellg()));
    for (uint64_t offset = 0; size - offset >= kAround;) {
      uint64_t length = 0;
      std::string begin(32, '\0');
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(reinterpret_cast<char*>(&length), sizeof(length)).seekg(4, std::ios::cur);
      if (!file || length > size - offset - kAround) break;  // torn
      begin.resize(std::min<uint64_t>(length, begin.size()));
      if (!file.read(begin.data(), static_cast<std::streamsize>(begin.size()))) break;
      const EventHead head = head_of(begin);
      if (head.field == kSummaryField) last = std::max(last, head.step);
      if (head.field == kSessionField) last = std::min(last, std::max<int64_t>(0, head.step - 1));
      offset += length + kAround;
    }
  }
  return last;
}

}  // namespace lockstep::observe
