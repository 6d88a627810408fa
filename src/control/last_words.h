#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace lockstep::control {

/// Runs `work` on a thread of its own and waits for it at most for `limit`: a terminal or a file system that
/// takes nothing must not keep a failed rank alive. `work` owns what it needs; afterwards it may still be
/// running.
void run_at_most(std::chrono::milliseconds limit, std::function<void()> work);

/// In one write where the system takes all at once, so that what several ranks print does not mix; on a
/// terminal, over a progress line.
void print_to_stderr(std::string_view text);

/// All of `text`, however little the system takes at a time, also where `descriptor` does not block; false
/// where it takes no more.
bool write_all(int descriptor, std::string_view text);

}  // namespace lockstep::control
