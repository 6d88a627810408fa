#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "../benchmark/bench.h"

namespace lockstep::ops {

using Line = nlohmann::ordered_json;

/// Prints `line` at once, so that a program that is cut short has told what it knew.
void print_line(const Line& line);
/// Prints `line` with what `measure` adds to it, or with the "error" that it threw. Returns whether there was
/// none.
bool print_measured(Line line, const std::function<void(Line&)>& measure);

// The parts. Each prints lines and returns whether lockstep's own work did not fail.

/// A line for each product of a step, with what cuBLASLt offers for it; a last one of products that it
/// refuses.
bool probe_products(Bench& bench);
bool probe_attention(Bench& bench);
/// A line for each shape of ResNet-50's.
bool probe_convolutions(Bench& bench);
/// Lines of prices: what the host waits for a call, and for how long it keeps a stream.
bool probe_launches(Bench& bench);

}  // namespace lockstep::ops
