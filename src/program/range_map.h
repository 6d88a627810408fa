#pragma once

#include <cstdint>
#include <map>
#include <utility>

namespace lockstep::program {

/// Values by byte range: disjoint intervals of a line; some bytes may have no value. If an access begins or
/// ends inside an interval, the interval is split, so that every access sees whole intervals. Not
/// thread-safe.
template <class T>
class RangeMap {
 public:
  struct Entry {
    int64_t end;
    T value;
  };

  /// Calls visit(begin, end, T&) for every interval of [begin, end) that has a value, in ascending order.
  /// Intervals that extend beyond it are split first.
  template <class Visit>
  void visit(int64_t begin, int64_t end, Visit&& visit) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (auto it = entries_.lower_bound(begin); it != entries_.end() && it->first < end; ++it)
      visit(it->first, it->second.end, it->second.value);
  }

  /// As visit, but also calls gap(begin, end) for the stretches without a value.
  template <class Visit, class Gap>
  void visit_all(int64_t begin, int64_t end, Visit&& on_value, Gap&& on_gap) {
    int64_t at = begin;
    visit(begin, end, [&](int64_t b, int64_t e, T& value) {
      if (at < b) on_gap(at, b);
      on_value(b, e, value);
      at = e;
    });
    if (at < end) on_gap(at, end);
  }

  /// Replaces whatever [begin, end) held.
  void assign(int64_t begin, int64_t end, T value) {
    if (begin >= end) return;
    erase(begin, end);
    entries_.emplace(begin, Entry{end, std::move(value)});
  }

  void erase(int64_t begin, int64_t end) {
    if (begin >= end) return;
    split(begin);
    split(end);
    entries_.erase(entries_.lower_bound(begin), entries_.lower_bound(end));
  }

  void clear() { entries_.clear(); }
  const std::map<int64_t, Entry>& entries() const { return entries_; }

 private:
  void split(int64_t at) {
    auto it = entries_.upper_bound(at);
    if (it == entries_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    const int64_t end = it->second.end;
    it->second.end = at;
    entries_.emplace_hint(std::next(it), at, Entry{end, it->second.value});
  }

  std::map<int64_t, Entry> entries_;
};

}  // namespace lockstep::program
