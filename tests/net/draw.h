#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace lockstep::net {

/// Random choices, the same for a seed on every machine and library (SplitMix64, Steele et al. 2014).
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// From 0 to `count` - 1. REQUIRES: count > 0.
  int64_t below(int64_t count) { return static_cast<int64_t>(next() % static_cast<uint64_t>(count)); }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool percent(int chance) { return below(100) < chance; }
  /// In [-1, 1).
  double centred() { return static_cast<double>(next() >> 11) * 0x1p-52 - 1; }

  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int64_t>(choices.size()))];
  }
  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(below(static_cast<int64_t>(choices.size())))];
  }
  /// The place of a choice that is taken as often as its weight says.
  int weighted(std::initializer_list<int> weights) {
    int64_t sum = 0;
    for (const int weight : weights) sum += weight;
    int64_t left = below(sum);
    int place = 0;
    for (const int weight : weights) {
      if (left < weight) break;
      left -= weight;
      ++place;
    }
    return place;
  }

 private:
  uint64_t state_;
};

}  // namespace lockstep::net
