#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace lockstep {

/// How a model is trained, as text, as values by path, or both. docs/config.md lists all fields.
///
///     Config config("trainer { global_batch: 64 epochs: 10 }");
///     config.set("optimizer.learning_rate", 0.05).set("optimizer.sgd.momentum", 0.9);
///
/// Nothing is checked here. The constructor of Training checks the config; its errors say what is wrong, and
/// where.
class Config {
 public:
  Config() = default;
  Config(std::string text) : text_(std::move(text)) {}
  Config(const char* text) : text_(text) {}
  /// Reads a file; messages name it. Throws ConfigError if it cannot be read.
  static Config from_file(const std::string& path);

  /// Sets a field, as `--set path=value` does. Later calls win, also over the text. Values are such as
  /// "true", "FAST", "[64, 64]" or a file's name.
  Config& set(std::string_view path, std::string_view value);
  Config& set(std::string_view path, const char* value) { return set(path, std::string_view(value)); }
  Config& set(std::string_view path, bool value) { return set(path, value ? "true" : "false"); }
  template <class Number>
  requires(std::integral<Number> || std::floating_point<Number>) Config& set(std::string_view path,
                                                                             Number value) {
    std::array<char, 64> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return set(path, std::string_view(digits.data(), static_cast<size_t>(end - digits.data())));
  }

  /// How processes share the work, as in `--layout`: "dp=2,pp=2". Replaces the whole layout of the text.
  Config& set_layout(std::string layout) {
    layout_ = std::move(layout);
    return *this;
  }

  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }  ///< the file's name, or "config"
  const std::vector<std::string>& assignments() const { return assignments_; }
  const std::optional<std::string>& layout() const { return layout_; }

 private:
  std::string text_, name_ = "config";
  std::vector<std::string> assignments_;
  std::optional<std::string> layout_;
};

}  // namespace lockstep
#pragma GCC visibility pop
