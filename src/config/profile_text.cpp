#include <fmt/format.h>

#include "base/text.h"
#include "config/schema.h"
#include "lockstep/error.h"

namespace lockstep::config {
namespace {

constexpr double kMicroseconds = 1e6;        // in a second
constexpr double kUpdateMilliseconds = 1e9;  // of a million parameters, in a second of one

/// To a thousandth of a microsecond: what is beyond is noise.
double rounded(double value) { return static_cast<double>(static_cast<int64_t>(value * 1e3 + 0.5)) / 1e3; }

DType storage_of(const schema::Profile& profile, const Document& document) {
  std::vector<std::string> known;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    known.emplace_back(name_of(dtype));
    if (known.back() == profile.storage()) return dtype;
  }
  document.refuse("storage",
                  fmt::format("expected one of {}, found '{}'", join(known, ", "), profile.storage()));
}

}  // namespace

std::string profile_to_text(const model::Profile& profile) {
  schema::Profile written;
  written.set_format_version(1);
  written.set_device(profile.device);
  written.set_storage(std::string(name_of(profile.storage)));
  written.set_model(profile.model);
  written.set_intra_op_threads(profile.intra_op_threads);
  written.set_micro_batch(profile.micro_batch);
  written.set_update_ms(rounded(profile.update_seconds * kUpdateMilliseconds));
  for (const auto& node : profile.nodes) {
    schema::LayerTime& layer = *written.add_layer();
    layer.set_name(node.name);
    if (node.seconds.forward > 0) layer.set_forward_us(rounded(node.seconds.forward * kMicroseconds));
    if (node.seconds.backward_input > 0)
      layer.set_backward_input_us(rounded(node.seconds.backward_input * kMicroseconds));
    if (node.seconds.backward_weight > 0)
      layer.set_backward_weight_us(rounded(node.seconds.backward_weight * kMicroseconds));
  }
  return to_text(written);
}

model::Profile profile_from_text(const std::string& text, const std::string& name) {
  schema::Profile read;
  const Document document(read, text, name);
  check_rules(document);
  fill_defaults(read);
  model::Profile profile{.source = name,
                         .model = read.model(),
                         .device = read.device(),
                         .storage = storage_of(read, document),
                         .intra_op_threads = read.intra_op_threads(),
                         .micro_batch = read.micro_batch(),
                         .nodes = {},
                         .update_seconds = read.update_ms() / kUpdateMilliseconds};
  for (const auto& layer : read.layer())
    profile.nodes.push_back({.name = layer.name(),
                             .seconds = {.forward = layer.forward_us() / kMicroseconds,
                                         .backward_input = layer.backward_input_us() / kMicroseconds,
                                         .backward_weight = layer.backward_weight_us() / kMicroseconds}});
  return profile;
}

}  // namespace lockstep::config
