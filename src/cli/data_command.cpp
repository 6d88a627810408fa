#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/digits.h"
#include "data/known_files.h"
#include "data/token_writer.h"
#include "jobs/child_process.h"
#include "jobs/job.h"
#include "lockstep/error.h"
#include "observe/json_text.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct DigitsArguments {
  std::string directory;
  data::DigitsOptions digits;
  jobs::OutputArguments output;
};

int make_digits(const DigitsArguments& arguments) {
  const auto& digits = arguments.digits;
  data::generate_digits(arguments.directory, digits);
  if (arguments.output.json)
    write_result(fmt::format("{{\"directory\":{},\"train\":{},\"eval\":{},\"seed\":{}}}\n",
                             observe::json_string(arguments.directory), digits.train_count, digits.eval_count,
                             digits.seed));
  else
    write_result(fmt::format("{}: {} training and {} evaluation digits of {} x {} pixels, seed {}\n",
                             arguments.directory, digits.train_count, digits.eval_count, data::kDigitSize,
                             data::kDigitSize, digits.seed));
  return static_cast<int>(ExitCode::done);
}

struct TokensArguments {
  data::TokenizeOptions options;
  jobs::OutputArguments output;
};

int make_tokens(const TokensArguments& arguments) {
  const auto& options = arguments.options;
  const data::TokenizeResult made = data::tokenize(options);
  if (arguments.output.json) {
    write_result(
        fmt::format("{{\"directory\":{},\"files\":{},\"tokens\":{},\"text_bytes\":{},\"vocabulary\":{},"
                    "\"token_bytes\":{},\"encoding_seconds\":{}}}\n",
                    observe::json_string(options.directory), made.files, made.tokens, made.text_bytes,
                    made.vocabulary, made.token_bytes, observe::json_number(made.encoding_seconds)));
    return static_cast<int>(ExitCode::done);
  }
  const double bytes_per_token = static_cast<double>(made.text_bytes) / static_cast<double>(made.tokens);
  write_result(
      fmt::format("{}: {} tokens of {} bytes of text ({:.2f} bytes a token), in {} file{}; set the model's "
                  "vocabulary to {}\n",
                  options.directory, made.tokens, made.text_bytes, bytes_per_token, made.files,
                  made.files == 1 ? "" : "s", made.vocabulary));
  return static_cast<int>(ExitCode::done);
}

void add_tokens_command(CLI::App& command, CommandAction& selected) {
  auto& tokens =
      add_subcommand(command, "tokens",
                     "Encodes texts as tokens. Learns a byte-pair encoding from them, or takes one "
                     "from --tokenizer; "
                     "writes tokens_000000.bin, ... in llm.c's format, and tokenizer.json",
                     "  lockstep data tokens tinyshakespeare.txt --out tokens --vocabulary 8192\n"
                     "  lockstep data tokens a.txt b.txt.gz --out tokens --tokenizer vocab.bpe");
  const auto arguments = std::make_shared<TokensArguments>();
  auto& options = arguments->options;
  tokens.add_option("TEXT", options.texts, "Text files, compressed by gzip or not; each is a document")
      ->type_name("")
      ->required();
  tokens.add_option("--out", options.directory, "Folder for the files")->type_name("DIR")->required();
  auto* vocabulary = tokens
                         .add_option("--vocabulary", options.vocabulary,
                                     "Tokens to learn: 256 bytes, merges, and <|endoftext|>")
                         ->capture_default_str();
  tokens
      .add_option(
          "--tokenizer", options.tokenizer,
          "Take this tokenizer instead: a tokenizer.json of Hugging Face's format, or GPT-2's vocab.bpe")
      ->type_name("FILE")
      ->excludes(vocabulary);
  tokens.add_option("--shard-tokens", options.shard_tokens, "Tokens in a file")->capture_default_str();
  tokens.add_flag("!--no-end-of-text", options.marks_documents,
                  "Do not write <|endoftext|> before each text");
  tokens
      .add_option(
          "--most-inflated-bytes", options.most_inflated_bytes,
          "The most that a text compressed by gzip may become; default: no limit, as texts are read in "
          "pieces")
      ->check(CLI::Range(int64_t{1}, INT64_MAX));
  tokens.add_flag("--force", options.overwrite, "Replace tokens that the folder has");
  add_json(tokens, arguments->output);
  tokens.callback([&selected, arguments] { selected = [arguments] { return make_tokens(*arguments); }; });
}

struct FetchArguments {
  std::string set, from, directory;
};

bool is_url(const std::string& text) { return text.find("://") != std::string::npos; }

/// By curl, which knows proxies and certificates.
void download(const std::string& url, const fs::path& to) {
  if (!jobs::on_path("curl"))
    throw DeviceError(
        fmt::format("data: curl is needed to download {}, but is not on PATH; install it, or download the "
                    "file by other means and pass --from FILE",
                    url));
  jobs::ProcessJob curl{.program = "curl",
                        .arguments = {"--fail", "--location", "--silent", "--show-error", "--connect-timeout",
                                      "20", "--max-time", "1800", "--output", to.string(), url},
                        .stdout_path = to.string() + ".out",
                        .stderr_path = to.string() + ".err"};
  const jobs::JobOutcome outcome = jobs::run_to_end(curl);
  std::error_code ignored;
  fs::remove(curl.stdout_path, ignored);
  fs::remove(curl.stderr_path, ignored);
  if (outcome.code == 0) return;
  fs::remove(to, ignored);
  throw IoError(
      fmt::format("data: cannot download {}: {}\nWithout a network, copy the file here by other means and "
                  "pass --from FILE",
                  url, trim(outcome.error.empty() ? "curl was ended" : outcome.error)));
}

/// What `from` means for one file of a set: a place for all of them ends with "/", or is a folder.
std::string source_of(const data::KnownFile& file, const std::string& from, bool alone) {
  if (from.empty()) return std::string(file.url);
  std::error_code unknown;
  if (is_url(from))
    return from.ends_with("/") || !alone ? from + (from.ends_with("/") ? "" : "/") + std::string(file.name)
                                         : from;
  if (!fs::is_directory(from, unknown)) {
    if (alone) return from;
    throw ConfigError(fmt::format("data: --from {}: expected a folder, or a URL, of several files", from));
  }
  fs::path path = fs::path(from) / file.name;
  // As people unpack them.
  if (!fs::exists(path, unknown) && path.extension() == ".gz") path.replace_extension();
  return path.string();
}

void fetch_file(const data::KnownFile& file, const std::string& source, const fs::path& directory) {
  const fs::path to = directory / file.name, part = directory / (std::string(file.name) + ".part");
  std::error_code unknown;
  if (fs::exists(to, unknown)) {
    data::require_known(file, to.string());
    return log_info(fmt::format("{} is there already", to.string()));
  }
  if (is_url(source)) {
    log_info(fmt::format("downloading {}", source));
    download(source, part);
  } else {
    std::error_code error;
    fs::copy_file(source, part, fs::copy_options::overwrite_existing, error);
    if (error) {
      fs::remove(part, unknown);
      throw IoError(fmt::format("data: cannot copy {} to {}: {}", source, part.string(), error.message()));
    }
  }
  try {
    data::require_known(file, part.string());
  } catch (const std::exception&) {
    fs::remove(part, unknown);
    throw;
  }
  fs::rename(part, to);
}

int fetch(const FetchArguments& arguments) {
  std::error_code error;
  fs::create_directories(arguments.directory, error);
  if (error)
    throw IoError(fmt::format("data: cannot make the folder {}: {}", arguments.directory, error.message()));
  const auto files = data::known_files(arguments.set);
  for (const auto& file : files)
    fetch_file(file, source_of(file, arguments.from, files.size() == 1), arguments.directory);
  write_result(fmt::format("{}: {} complete, checksums right; train with --data-dir {}\n",
                           arguments.directory, arguments.set, arguments.directory));
  return static_cast<int>(ExitCode::done);
}

void add_fetch_command(CLI::App& command, CommandAction& selected, const std::string& set,
                       const std::string& description) {
  auto& fetching = add_subcommand(
      command, set, description,
      fmt::format("  lockstep data {} --out {}\n  lockstep data {} --out {} --from ~/Downloads", set, set,
                  set, set));
  const auto arguments = std::make_shared<FetchArguments>();
  arguments->set = set;
  fetching.add_option("--out", arguments->directory, "Folder for the files")->type_name("DIR")->required();
  fetching
      .add_option("--from", arguments->from,
                  "A file, folder or URL to take them from; default: their public URLs, by curl")
      ->type_name("PATH|URL");
  fetching.callback([&selected, arguments] { selected = [arguments] { return fetch(*arguments); }; });
}

}  // namespace

void add_data_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "data", "Makes data sets, gets public ones, and shows what a config trains on",
                     "  lockstep data digits --out digits");
  command.require_subcommand(1);
  auto& digits = add_subcommand(
      command, "digits",
      "Draws digits with random distortion and noise, in MNIST's format; existing files with the same "
      "contents are kept, others are refused",
      "  lockstep data digits --out digits --train 12000 --eval 2000 --seed 1");
  const auto arguments = std::make_shared<DigitsArguments>();
  digits.add_option("--out", arguments->directory, "Folder for the files")->type_name("DIR")->required();
  digits.add_option("--train", arguments->digits.train_count, "Training samples")->capture_default_str();
  digits.add_option("--eval", arguments->digits.eval_count, "Evaluation samples")->capture_default_str();
  digits.add_option("--seed", arguments->digits.seed, "Another seed draws other digits")
      ->capture_default_str();
  digits.add_flag("--as-images", arguments->digits.as_images,
                  "Write a colored JPEG for each digit, in folders by class, for data.images");
  digits.add_flag("--force", arguments->digits.overwrite, "Replace existing files with other contents");
  add_json(digits, arguments->output);
  add_tokens_command(command, selected);
  add_fetch_command(command, selected, "mnist",
                    "Gets MNIST's ten thousand test images, which configs/mnist_*.textproto divide; compares "
                    "checksums");
  add_fetch_command(
      command, selected, "shakespeare",
      "Gets Tiny Shakespeare, the text of configs/shakespeare_gpt.textproto; compares its checksum");
  add_data_check_command(command, selected);
  add_data_pack_command(command, selected);
  add_data_show_command(command, selected);
  add_data_summary_command(command, selected);
  digits.callback([&selected, arguments] { selected = [arguments] { return make_digits(*arguments); }; });
}

}  // namespace lockstep::cli
