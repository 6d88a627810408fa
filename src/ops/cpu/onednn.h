#pragma once

#include <fmt/format.h>
#include <omp.h>

#include <dnnl.hpp>
#include <initializer_list>
#include <string_view>
#include <unordered_map>

#include "device/openmp_team.h"
#include "lockstep/error.h"

namespace lockstep::ops {

/// Sets this thread's OpenMP thread count for a scope. oneDNN cuts work, sizes scratch memory and so decides
/// bits by the count it sees when a primitive is made, and must see the same one when it runs.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int count) : previous_(omp_get_max_threads()) { device::set_openmp_team(count); }
  ~IntraOpThreads() { omp_set_num_threads(previous_); }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  int previous_;
};

inline dnnl::memory::desc onednn_desc(dnnl::memory::dims dims, dnnl::memory::format_tag format) {
  return {std::move(dims), dnnl::memory::data_type::f32, format};
}

/// No scratch memory of oneDNN's own: the workspace of the memory plan serves.
inline dnnl::primitive_attr onednn_attributes(bool add_to_destination = false) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add_to_destination) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  return attributes;
}

/// Calls `make`, and turns what oneDNN throws into a DeviceError that names `what` was to be made.
template <class Make>
auto make_onednn(std::string_view what, const Make& make) {
  try {
    return make();
  } catch (const dnnl::error& error) {
    throw DeviceError(fmt::format("oneDNN cannot make {}: {}", what, error.what()));
  }
}

/// A primitive with memory objects made once; a run only moves their pointers.
class OneDnnCall {
 public:
  OneDnnCall() = default;
  OneDnnCall(dnnl::primitive primitive, const dnnl::engine& engine,
             std::initializer_list<std::pair<int, dnnl::memory::desc>> arguments)
      : primitive_(std::move(primitive)) {
    for (const auto& [argument, desc] : arguments)
      if (!desc.is_zero()) memories_.emplace(argument, dnnl::memory(desc, engine, nullptr));
  }

  struct Pointer {
    int argument;
    const void* data;
  };
  /// Pointers of arguments that were not given to the constructor, or whose desc was empty, are left aside.
  void run(dnnl::stream& stream, std::initializer_list<Pointer> pointers) {
    for (const auto& [argument, data] : pointers)
      if (const auto found = memories_.find(argument); found != memories_.end())
        found->second.set_data_handle(const_cast<void*>(data));
    primitive_.execute(stream, memories_);
  }

 private:
  dnnl::primitive primitive_;
  std::unordered_map<int, dnnl::memory> memories_;
};

}  // namespace lockstep::ops
