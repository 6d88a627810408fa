#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "lockstep/error.h"

namespace lockstep::config {

/// The smallest config there is of an image classifier.
inline const std::string kSmallConfig = R"(model { mlp { image: [4, 4, 1] hidden: [8] classes: 3 } }
data { synthetic { samples: 100 eval_samples: 10 classes: 3 } }
trainer { global_batch: 16 steps: 5 }
optimizer { learning_rate: 0.1 sgd {} }
)";

/// And of a language model.
inline const std::string kSmallGpt =
    R"(model { gpt { vocabulary: 65 context: 16 layers: 2 heads: 4 width: 32 } }
data { text { file: "text.txt" } }
trainer { global_batch: 12 epochs: 1.5 }
optimizer { learning_rate: 0.001 adamw {} }
)";

/// The message with which a config is refused, or "accepted".
inline std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_run_config(text, "c.textproto", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

inline RunConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_run_config(text, "c.textproto", overrides);
}

}  // namespace lockstep::config
