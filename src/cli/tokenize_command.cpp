#include "src/cli/tokenize_command.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/cli/common.h"
#include "src/tokenizer/tokenizer.h"
#include "src/tokenizer/utf8.h"

namespace m3::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t text_limit = std::size_t{1} << 30;

struct TokenizeOptions {
  std::string checkpoint;  // empty: the one that ships
  std::string text;
  std::string file;
  bool parse_special = false;
  bool decode = false;
  bool skip_special = false;
  bool ids_only = false;
  bool json = false;
};

// Text or ids, from --text, --file or standard input.
std::string read_input(const CLI::App& command, const TokenizeOptions& options) {
  const bool has_text = command.count("--text") > 0;
  if (has_text && command.count("--file") > 0) fail_usage("--text and --file: give one of them");
  if (has_text) return options.text;
  return options.file.empty() || options.file == "-" ? read_standard_input(text_limit)
                                                     : read_text_input(options.file, text_limit);
}

void show_tokens(const Tokenizer& tokenizer, std::string_view text, const TokenizeOptions& options) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text, {.parse_special = options.parse_special});
  std::string out;
  if (options.json) {
    Json pieces = Json::array();
    for (const std::int32_t id : ids) {
      pieces.push_back({{"id", id},
                        {"token", tokenizer.token_text(id)},
                        {"text", to_valid_utf8(tokenizer.token_bytes(id))},
                        {"special", tokenizer.is_special(id)}});
    }
    out = Json{{"bytes", text.size()}, {"count", ids.size()}, {"ids", ids}, {"tokens", pieces}}.dump() + "\n";
  } else if (options.ids_only) {
    for (const std::int32_t id : ids) out += fmt::format("{}{}", out.empty() ? "" : " ", id);
    out += "\n";
  } else {
    for (const std::int32_t id : ids) {
      out += fmt::format("{:>7}  {}{}\n", id, in_quotes(tokenizer.token_bytes(id), text_limit),
                         tokenizer.is_special(id) ? "  special" : "");
    }
    out += fmt::format("{} tokens of {} bytes\n", ids.size(), text.size());
  }
  write_output(out);
}

void show_text(const Tokenizer& tokenizer, std::string_view input, const TokenizeOptions& options) {
  const std::string origin = !options.text.empty()                         ? "--text"
                             : options.file.empty() || options.file == "-" ? "standard input"
                                                                           : options.file;
  const std::vector<std::int32_t> ids = parse_token_ids(input, origin);
  if (!options.json) return write_output(tokenizer.decode(ids, options.skip_special));
  write_output(Json{{"text", tokenizer.decode(ids, options.skip_special)}, {"count", ids.size()}}.dump() + "\n");
}

void run(const CLI::App& command, const TokenizeOptions& options) {
  if (options.decode && options.ids_only) fail_usage("--decode and --ids: give one of them");
  if (options.decode && options.parse_special)
    fail_usage("--parse-special is for encoding; it has no meaning with --decode");
  if (options.skip_special && !options.decode) fail_usage("--skip-special is for --decode");
  if (options.ids_only && options.json) fail_usage("--ids and --json: give one of them");
  if (std::error_code ignored; !options.checkpoint.empty() && !std::filesystem::exists(options.checkpoint, ignored))
    fail("{}: there is no such checkpoint; a text goes behind --text", options.checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(options.checkpoint.empty() ? shipped_checkpoint() : options.checkpoint);
  const std::string input = read_input(command, options);
  if (options.decode) return show_text(tokenizer, input, options);
  show_tokens(tokenizer, input, options);
}

}  // namespace

void add_tokenize_command(CLI::App& app) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Show the tokens of a text, or the text of token ids");
  command->add_option("checkpoint", options->checkpoint,
                      "Checkpoint directory or tokenizer.json (default: the one that ships)");
  command->add_option("--text", options->text, "The text, or with --decode the ids");
  command->add_option("--file", options->file, "Read it from a file; - is standard input (the default without --text)");
  command->add_flag("--parse-special", options->parse_special, "Added tokens in the text become their ids");
  command->add_flag("--ids", options->ids_only, "Print the ids only, on one line");
  command->add_flag("--decode", options->decode, "From ids (or an .npy file) to text");
  command->add_flag("--skip-special", options->skip_special, "With --decode: leave out special tokens");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([command, options] { run(*command, *options); });
}

}  // namespace m3::cli
