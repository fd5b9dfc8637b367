// A checked request rendered by a template, every character knowing whether the template or a message wrote it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/chat/messages.h"
#include "src/chat/template/template.h"
#include "src/tokenizer/tokenizer.h"

namespace m3::chat {

// The template of a checkpoint and the special tokens that it may name (bos_token and so on).
struct ChatTemplate {
  explicit ChatTemplate(std::string_view source) : program(source) {}
  Template program;
  Dict special_tokens;
};

// Whether the directory of a checkpoint holds one, in either place.
bool has_chat_template(const std::filesystem::path& directory);

// From a directory: chat_template.jinja, else the template in tokenizer_config.json ("default" where it has several);
// or from a template file. Errors: there is none, or it does not parse.
ChatTemplate load_chat_template(const std::filesystem::path& path);

// Errors: what the template raises; a final message that cannot be continued.
Text render_prompt(const ChatTemplate& chat_template, const ChatRequest& request);

// Special tokens are recognised in what the template wrote and nowhere else; words and merges cross the borders.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const Text& prompt);

}  // namespace m3::chat
