#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/histogram.h"

namespace lockstep::observe {

// What TensorBoard reads: a file of records, each a message `Event` of Protocol Buffers. Encoded by hand,
// since of some hundred fields a dozen are used. Numbers of fields:
// tensorboard/compat/proto/{event,summary}.proto and plugins/hparams/plugin_data.proto.

/// Fields of a message, in Protocol Buffers' wire format.
class WireMessage {
 public:
  WireMessage& number(int field, uint64_t value);  ///< integers and enumerators
  WireMessage& real(int field, double value);
  WireMessage& real32(int field, float value);
  WireMessage& text(int field, std::string_view value);  ///< also a message, or bytes
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value);
  void key(int field, int type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  std::string bytes_;
};

/// A record: length, its checksum, data, their checksum. Checksums are CRC-32C, masked.
std::string event_record(std::string_view data);

/// When something happened, and after which step.
struct EventTime {
  double unix_seconds = 0;
  int64_t step = 0;
};

/// The first event of a file.
std::string version_event(double unix_seconds);
/// A run begins or goes on here: readers forget what they have read of this step and later ones.
std::string session_start_event(const EventTime& time);
std::string scalars_event(const EventTime& time, const std::vector<std::pair<std::string, double>>& values);
std::string histograms_event(const EventTime& time, const std::vector<NamedHistogram>& values);
/// `text` is Markdown.
std::string text_event(const EventTime& time, const std::string& tag, const std::string& text);
/// For the page of hyperparameters. Values that are numbers become numbers. `group`: the starts of one run
/// have the same.
std::string hparams_event(const EventTime& time, const std::string& group,
                          const std::vector<std::pair<std::string, std::string>>& values);
std::string hparams_end_event(const EventTime& time, bool success);

/// The last step that a reader of files of ours, in this order, has something of: 0 for none. What follows a
/// torn record does not count.
int64_t last_event_step(const std::vector<std::string>& paths);

}  // namespace lockstep::observe
