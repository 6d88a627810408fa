#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ranges>
#include <type_traits>
#include <utility>

namespace lockstep {

/// Element `index` of a vector, array or span. Ranks, nodes, buffers and the like are ints from 0 on, and -1
/// means none; containers need an unsigned type. REQUIRES: 0 <= index < size.
template <class Container, class Index>
constexpr decltype(auto) nth(Container&& container, Index index) {
  static_assert(std::is_lvalue_reference_v<Container&&> || std::ranges::borrowed_range<Container>,
                "the element would not outlive its container");
  static_assert(std::is_integral_v<Index> || std::is_enum_v<Index>);
  assert(static_cast<int64_t>(index) >= 0 && static_cast<size_t>(index) < std::size(container));
  return std::forward<Container>(container)[static_cast<size_t>(index)];
}

}  // namespace lockstep
