#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace lockstep::control {

/// Runs `work` on a separate thread and waits at most for `limit`: a blocked terminal or file system must not
/// keep a failed rank alive. `work` owns what it needs, because it may still run afterwards. Whether it is
/// done; it is not even begun if there is no thread for it.
bool run_at_most(std::chrono::milliseconds limit, std::function<void()> work);

/// Prints in one write, if the system accepts it, so that output of several ranks does not mix; on a
/// terminal, over a progress line.
void print_to_stderr(std::string_view text);

/// Writes all of `text`, in any number of pieces, also if `descriptor` does not block. False if it accepts no
/// more.
bool write_all(int descriptor, std::string_view text);

}  // namespace lockstep::control
