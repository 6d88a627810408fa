#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/commands.h"
#include "lockstep/error.h"

namespace lockstep::cli {
namespace {

/// What may follow an option, or stand where a command takes a value.
struct Values {
  enum class Kind { none, words, files, folders, other } kind = Kind::none;
  std::vector<std::string> words = {};
};

struct OptionWords {
  std::string name;  ///< "--layout"
  std::string description;
  Values values;
};

/// A command and everything that can be written behind it.
struct CommandWords {
  std::vector<std::string> path;  ///< {"config", "print"}; empty: the program
  std::string description;
  std::vector<std::string> commands;
  std::vector<OptionWords> options;
  Values positional;
};

bool is_word(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

/// From what the help says that an option takes: "auto|cpu|cuda:{auto,cpu,cuda}", "DIR", "TEXT:{a,b}".
Values values_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  Values values{Values::Kind::other};
  if (const size_t brace = type.find('{'); brace != std::string::npos) {
    values = {Values::Kind::words, split(type.substr(brace + 1, type.find('}') - brace - 1), ',')};
  } else {
    const char separator = type.find('|') != std::string::npos ? '|' : ',';
    for (const auto& part : split(type, separator)) {
      if (is_word(part)) values.words.push_back(part);
      if (part == "DIR") values.kind = Values::Kind::folders;
      if (part.starts_with("FILE") || part == "PATH") values.kind = Values::Kind::files;
    }
    if (values.kind == Values::Kind::other && !values.words.empty()) values.kind = Values::Kind::words;
  }
  return values;
}

/// The first sentence; a menu has one line for each.
std::string first_part(const std::string& description) {
  const size_t end = description.find_first_of(";\n");
  return description.substr(0, end);
}

void collect(const CLI::App& command, std::vector<std::string> path, std::vector<CommandWords>& all) {
  CommandWords words{.path = path, .description = first_part(command.get_description())};
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; }))
    words.commands.push_back(below->get_name());
  for (const CLI::Option* option : command.get_options()) {
    // A config, wherever a command takes one.
    if (option->get_positional()) words.positional = {Values::Kind::files};
    for (const auto& name : option->get_lnames())
      words.options.push_back({"--" + name, first_part(option->get_description()), values_of(*option)});
  }
  all.push_back(std::move(words));
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    path.push_back(below->get_name());
    collect(*below, path, all);
    path.pop_back();
  }
}

std::vector<std::string> names_of(const std::vector<OptionWords>& options) {
  std::vector<std::string> names;
  for (const auto& option : options) names.push_back(option.name);
  return names;
}

/// A bash command that fills COMPREPLY.
std::string bash_reply(const Values& values) {
  std::string text;
  if (!values.words.empty())
    text = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))", join(values.words, " "));
  const char* names = values.kind == Values::Kind::folders ? "-d"
                      : values.kind == Values::Kind::files ? "-f"
                                                           : nullptr;
  if (names != nullptr)
    text += fmt::format(
        "{}compopt -o filenames; mapfile -t -O \"${{#COMPREPLY[@]}}\" COMPREPLY < <(compgen {} "
        "-- \"$word\")",
        text.empty() ? "" : "; ", names);
  return text.empty() ? ":" : text;
}

std::string bash_script(const std::vector<CommandWords>& all) {
  std::string cases;
  for (const auto& command : all) {
    const std::string path = join(command.path, " ");
    std::string options;
    for (const auto& option : command.options)
      if (option.values.kind != Values::Kind::none)
        options += fmt::format("        {}) {}; return ;;\n", option.name, bash_reply(option.values));
    cases += fmt::format(
        "    '{}')\n      case $previous in\n{}      esac\n      case $word in\n        -*) "
        "COMPREPLY=($(compgen -W "
        "'{}' -- \"$word\")) ;;\n        *) {} ;;\n      esac\n      ;;\n",
        (path.empty() ? "" : " ") + path, options, join(names_of(command.options), " "),
        command.commands.empty() ? bash_reply(command.positional)
                                 : bash_reply({Values::Kind::words, command.commands}));
  }
  // A path begins with a space, so that the program itself is the empty one.
  std::string known;
  for (const auto& command : all)
    if (!command.path.empty())
      known += fmt::format("{}' {}'", known.empty() ? "" : " | ", join(command.path, " "));
  return fmt::format(
      "# Completion of lockstep for bash, as `lockstep completion bash` prints it.\n"
      "_lockstep() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command='' i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$command ${{COMP_WORDS[i]}}\" in\n"
      "      {}) command+=\" ${{COMP_WORDS[i]}}\" ;;\n"
      "    esac\n"
      "  done\n"
      "  case $command in\n"
      "{}  esac\n"
      "}}\n"
      "complete -F _lockstep lockstep\n",
      known, cases);
}

/// For a single-quoted specification of _arguments, whose descriptions stand in [].
std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string zsh_values(const Values& values) {
  switch (values.kind) {
    case Values::Kind::none:
      return "";
    case Values::Kind::words:
      return fmt::format(":value:({})", join(values.words, " "));
    case Values::Kind::files:
      return ":file:_files";
    case Values::Kind::folders:
      return ":folder:_files -/";
    case Values::Kind::other:
      break;
  }
  return ":value: ";
}

std::string zsh_function(const std::vector<std::string>& path) {
  return path.empty() ? "_lockstep" : "_lockstep_" + join(path, "_");
}

std::string zsh_script(const std::vector<CommandWords>& all) {
  const auto description_of = [&](std::vector<std::string> path, const std::string& name) {
    path.push_back(name);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.path == path; });
    return found == all.end() ? std::string() : found->description;
  };
  std::string text =
      "#compdef lockstep\n# Completion of lockstep for zsh, as `lockstep completion zsh` prints it.\n";
  for (const auto& command : all) {
    std::string arguments;
    for (const auto& option : command.options)
      arguments += fmt::format(" \\\n    '*{}[{}]{}'", option.name, zsh_text(option.description),
                               zsh_values(option.values));
    if (command.positional.kind == Values::Kind::files) arguments += " \\\n    '*:config:_files'";
    text += fmt::format("\n{}() {{\n", zsh_function(command.path));
    if (command.commands.empty()) {
      text += fmt::format("  _arguments{}\n}}\n", arguments);
      continue;
    }
    text += fmt::format(
        "  local line state\n  _arguments -C{} \\\n    '1:command:->command' '*::rest:->rest'\n", arguments);
    text += "  case $state in\n    command)\n      local -a commands=(\n";
    for (const auto& below : command.commands)
      text += fmt::format("        '{}:{}'\n", below, zsh_text(description_of(command.path, below)));
    text += "      )\n      _describe command commands\n      ;;\n    rest)\n      case $line[1] in\n";
    for (const auto& below : command.commands) {
      auto path = command.path;
      path.push_back(below);
      text += fmt::format("        {}) {} ;;\n", below, zsh_function(path));
    }
    text += "      esac\n      ;;\n  esac\n}\n";
  }
  return text +
         "\n# Loaded by its name, or read by hand.\n"
         "if [[ $funcstack[1] == _lockstep ]]; then _lockstep \"$@\"; else compdef _lockstep lockstep; fi\n";
}

}  // namespace

void add_completion_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(program, "completion", "Prints a script that completes commands in a shell",
                                 "  source <(lockstep completion bash)\n  source <(lockstep completion zsh)");
  const auto shell = std::make_shared<std::string>();
  command.add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command.callback([&selected, &program, shell] {
    std::vector<CommandWords> all;
    collect(program, {}, all);
    selected = [shell, all = std::move(all)] {
      write_result(*shell == "bash" ? bash_script(all) : zsh_script(all));
      return static_cast<int>(ExitCode::done);
    };
  });
}

}  // namespace lockstep::cli
