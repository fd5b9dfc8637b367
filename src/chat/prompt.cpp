#include "src/chat/prompt.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/chat/request_fields.h"
#include "src/chat/template/json.h"
#include "src/chat/template/string_case.h"

namespace m3::chat {
namespace {

constexpr std::size_t max_config_bytes = std::size_t{64} << 20;

constexpr const char* template_name = "chat_template.jinja";
constexpr const char* config_name = "tokenizer_config.json";

// A tokenizer_config.json; an empty one where there is none.
Value read_config(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Value::dict(std::make_shared<Dict>());
  Value config = parse_json(read_text_file(path, max_config_bytes), path.string());
  if (!config.is(Kind::dict)) fail("{}: expected a JSON object", path.string());
  return config;
}

std::string template_of(const Value& config, const std::string& where) {
  const Value* found = config.as_dict().find("chat_template");
  if (found == nullptr || found->is(Kind::none))
    fail("{}: it has no chat_template, and there is no chat_template.jinja", where);
  if (found->is(Kind::string)) return found->bytes();
  if (found->is(Kind::list)) {
    for (const Value& entry : found->items()) {
      if (!entry.is(Kind::dict)) continue;
      const Value* name = entry.as_dict().find("name");
      const Value* source = entry.as_dict().find("template");
      if (name != nullptr && source != nullptr && name->is(Kind::string) && source->is(Kind::string) &&
          name->bytes() == "default") {
        return source->bytes();
      }
    }
  }
  fail("{}: chat_template is neither a string nor a list with a template named default", where);
}

// "bos_token": "x" or {"content": "x", ...}.
void add_special_tokens(const Value& config, Dict& tokens) {
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
    const Value* value = config.as_dict().find(name);
    if (value != nullptr && value->is(Kind::dict)) value = value->as_dict().find("content");
    // They are the checkpoint's, like its template.
    if (value != nullptr && value->is(Kind::string)) tokens.set(Value::string(name), Value::string(value->bytes()));
  }
}

std::string unused_mark(const Value& messages) {
  // A private-use character and behind it more of another one than anywhere in the messages.
  constexpr std::string_view begin = "\xee\x80\x80", more = "\xee\x80\x81";
  const std::string all = to_json(messages, {}).bytes();
  std::size_t longest = 0;
  for (std::size_t at = 0; (at = all.find(more, at)) != std::string::npos;) {
    std::size_t count = 0;
    for (; all.compare(at, more.size(), more) == 0; at += more.size()) ++count;
    longest = std::max(longest, count);
  }
  std::string mark(begin);
  if (all.find(begin) == std::string::npos) return mark;
  for (std::size_t i = 0; i <= longest; ++i) mark += more;
  return mark;
}

// The messages with a mark behind the text that is to go on.
Value mark_final_message(const Value& messages, const std::string& mark) {
  std::vector<Value> list = messages.items();
  const std::size_t last = list.size() - 1;
  const std::string path = fmt::format("messages[{}].content", last);
  auto message = std::make_shared<Dict>(list.back().as_dict());
  const Value* content = message->find("content");
  const auto marked = [&](const Value& text) { return Value::string(text.bytes() + mark + " ", Origin::message); };
  if (content == nullptr) fail("continue_final_message: {} is missing, so there is nothing to continue", path);
  if (content->is(Kind::string)) {
    message->set(Value::string("content"), marked(*content));
  } else {
    std::vector<Value> parts = content->items();
    const auto part = std::find_if(parts.rbegin(), parts.rend(), [](const Value& candidate) {
      return candidate.is(Kind::dict) && candidate.as_dict().find("text") != nullptr;
    });
    if (part == parts.rend()) fail("continue_final_message: {} has no text to continue", path);
    auto dict = std::make_shared<Dict>(part->as_dict());
    dict->set(Value::string("text"), marked(*dict->find("text")));
    *part = Value::dict(std::move(dict), Origin::message);
    message->set(Value::string("content"), Value::list(std::move(parts), Origin::message));
  }
  list.back() = Value::dict(std::move(message), Origin::message);
  return Value::list(std::move(list), Origin::message);
}

// Ends the prompt where the mark stands; if the template stripped the mark's space, it strips the message's too.
Text cut_at_mark(const Text& prompt, const std::string& mark) {
  const std::size_t at = prompt.bytes().rfind(mark);
  if (at == std::string::npos) {
    fail("continue_final_message: the template does not render the final message's content");
  }
  const std::size_t behind = at + mark.size();
  const bool kept = behind < prompt.size() && prompt.bytes()[behind] == ' ';
  const Text cut = prompt.slice(0, at);
  return kept ? cut : strip(cut, Side::right, nullptr);
}

}  // namespace

bool has_chat_template(const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / template_name)) return true;
  const Value config = read_config(directory / config_name);
  const Value* found = config.as_dict().find("chat_template");
  return found != nullptr && !found->is(Kind::none);
}

ChatTemplate load_chat_template(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return ChatTemplate(read_text_file(path, max_config_bytes));
  const auto file = path / template_name;
  const auto config_path = path / config_name;
  const Value config = read_config(config_path);
  ChatTemplate loaded(std::filesystem::exists(file) ? read_text_file(file, max_config_bytes)
                                                    : template_of(config, config_path.string()));
  add_special_tokens(config, loaded.special_tokens);
  return loaded;
}

Text render_prompt(const ChatTemplate& chat_template, const ChatRequest& request) try {
  const std::string mark = request.continue_final_message ? unused_mark(request.messages) : "";
  Dict context = chat_template.special_tokens;
  for (const auto& [key, value] : request.template_arguments->items) context.set(key, value);
  context.set(Value::string("messages"), mark.empty() ? request.messages : mark_final_message(request.messages, mark));
  context.set(Value::string("tools"), request.tools);
  context.set(Value::string("documents"), Value::none());
  context.set(Value::string("add_generation_prompt"), Value::boolean(request.add_generation_prompt));
  Text prompt = chat_template.program.render(context);
  return mark.empty() ? prompt : cut_at_mark(prompt, mark);
} catch (const Fault& problem) {
  fail("the request: {}", problem.what);
}

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const Text& prompt) {
  std::vector<TextSegment> segments;
  prompt.for_each_run([&](std::string_view text, Origin origin) {
    segments.push_back({text, origin == Origin::template_text});
  });
  return tokenizer.encode(segments);
}

}  // namespace m3::chat
