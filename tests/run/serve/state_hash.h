#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>

namespace lockstep::run {

/// 64 bits of everything that is added, in order: numbers, containers, optionals, tuples, and what has a
/// state().
class StateHash {
 public:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      add_word(static_cast<uint64_t>(value));
    } else if constexpr (requires { value.state(); }) {
      add(value.state());
    } else if constexpr (requires { value.has_value(); }) {
      add_word(value.has_value());
      if (value) add(*value);
    } else if constexpr (requires { value.begin(); }) {
      add_word(value.size());
      for (const auto& element : value) add(element);
    } else {
      std::apply([this](const auto&... parts) { (add(parts), ...); }, value);
    }
  }

  uint64_t value() const { return hash_; }

 private:
  void add_word(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9fb21c651e98df25u;
    hash_ ^= hash_ >> 32;
  }

  uint64_t hash_ = 0x243f6a8885a308d3u;
};

}  // namespace lockstep::run
