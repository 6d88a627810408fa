#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "data/records/record_packer.h"
#include "lockstep/error.h"
#include "observe/json_text.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct PackArguments {
  jobs::ConfigArguments config;  ///< its path may be a folder of images
  data::PackOptions pack;
  int64_t shard_mebibytes = 256;
  jobs::OutputArguments output;
};

/// A folder of images: all of it, or what it has to train and to evaluate on.
data::DataOptions folder_options(const std::string& folder) {
  data::DataOptions options{.kind = data::DataKind::images, .directory = folder};
  std::error_code unknown;
  const auto has = [&](const char* name) { return fs::is_directory(fs::path(folder) / name, unknown); };
  options.images.train = has("train") ? "train" : ".";
  if (has("train"))
    for (const char* name : {"eval", "val"})
      if (has(name) && options.images.eval.empty()) options.images.eval = name;
  return options;
}

data::DataOptions data_options(const PackArguments& arguments) {
  std::error_code unknown;
  if (!fs::is_directory(arguments.config.path, unknown)) return arguments.config.load().data;
  require(arguments.config.overrides.empty() && arguments.config.data_directory.empty(),
          fmt::format("data pack: {} is a folder of images, for which there is neither --set nor --data-dir; "
                      "name a config",
                      arguments.config.path));
  return folder_options(arguments.config.path);
}

int pack(PackArguments arguments) {
  arguments.pack.shard_bytes = arguments.shard_mebibytes << 20;
  const auto& out = arguments.pack.directory;
  const data::PackResult made = data::pack_records(data_options(arguments), arguments.pack);
  if (arguments.output.json)
    write_result(fmt::format(
        "{{\"directory\":{},\"train\":{},\"eval\":{},\"left_out\":{},\"shards\":{},\"kept_shards\":{},"
        "\"bytes\":{}}}\n",
        observe::json_string(out), made.records[0], made.records[1], made.left_out, made.shards,
        made.kept_shards, made.bytes));
  else
    write_result(
        fmt::format("{}: {} samples to train on, {} to evaluate on, {} left out; {} in {} shards, of which "
                    "{} were there; "
                    "train with --set data.records.folder={}\n",
                    out, made.records[0], made.records[1], made.left_out, human_bytes(made.bytes),
                    made.shards, made.kept_shards, fs::absolute(out).string()));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_data_pack_command(CLI::App& data, CommandAction& selected) {
  auto& command = add_subcommand(
      data, "pack",
      "Writes a config's images, table or lines, or a folder of images, into few large files, which "
      "data.records reads in any order; goes on if it was stopped",
      "  lockstep data pack examples/images/digits.textproto --data-dir jpegs --out packed\n"
      "  lockstep data pack imagenet --out packed --longest-side 256");
  const auto arguments = std::make_shared<PackArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  auto& pack_options = arguments->pack;
  command.add_option("--out", pack_options.directory, "Folder for the records")->type_name("DIR")->required();
  command
      .add_option("--longest-side", pack_options.images.longest_side,
                  "Shrink images whose longer side exceeds PIXELS, and store them as JPEGs")
      ->type_name("PIXELS")
      ->check(CLI::Range(int64_t{1}, int64_t{65535}));
  command
      .add_option("--quality", pack_options.images.quality, "Quality of JPEGs that --longest-side shrinks")
      ->check(CLI::Range(int64_t{1}, int64_t{100}))
      ->capture_default_str();
  command.add_flag("--pixels", pack_options.images.as_pixels,
                   "Pack decoded pixels, a byte each, instead of JPEGs and PNGs");
  command.add_option("--shard-mebibytes", arguments->shard_mebibytes, "Approximate size of a shard in MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--threads", pack_options.threads, "Threads that pack; default: all cores")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--force", pack_options.overwrite, "Replace records of other data in the folder");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return pack(*arguments); }; });
}

}  // namespace lockstep::cli
