#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::control {

/// Appends little-endian numbers and texts with their length.
class ByteWriter {
 public:
  template <std::integral T>
  ByteWriter& number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<char>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff));
    return *this;
  }
  ByteWriter& number(double value) { return number(std::bit_cast<uint64_t>(value)); }
  ByteWriter& text(std::string_view text) {
    number(static_cast<uint32_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter wrote. After the first missing item, everything reads as zero and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <std::integral T>
  T number() {
    uint64_t value = 0;
    const std::string_view bytes = raw(sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i)
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
    return static_cast<T>(value);
  }
  double real() { return std::bit_cast<double>(number<uint64_t>()); }
  std::string text() { return std::string(raw(number<uint32_t>())); }
  std::string_view raw(size_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view head = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return head;
  }

  bool ok() const { return ok_; }
  bool finished() const { return ok_ && bytes_.empty(); }  ///< all was there, and nothing is left

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace lockstep::control
