#include "src/server/responses_request.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>

#include "src/chat/template/json.h"
#include "src/media/options.h"
#include "src/server/fields.h"
#include "src/server/responses_store.h"
#include "src/server/values.h"
#include "src/tokenizer/utf8.h"

namespace m3::server {
namespace {

using chat::Dict;
using chat::Kind;
using chat::Value;

constexpr const char* reasoning_mark = "m3:";

Json json_of(const Value& value) { return Json::parse(chat::to_json(value, {}).bytes(), nullptr, false); }

// Parts of a message or of a tool's output, in the chat API's words.
Value read_content(const Value& content, const std::string& path) {
  if (content.is(Kind::string)) return content;
  if (!content.is(Kind::list)) refuse(path, "expected a string or a list of parts, found " + kind_of(content));
  std::vector<Value> parts;
  for (std::size_t i = 0; i < content.items().size(); ++i) {
    const std::string part_path = fmt::format("{}[{}]", path, i);
    const Value& part = content.items()[i];
    if (!part.is(Kind::dict)) refuse(part_path, "expected a content part (an object), found " + kind_of(part));
    Fields fields(part, part_path + ".");
    const std::string type = fields.required_string("type");
    if (type == "input_text" || type == "output_text" || type == "text") {
      fields.ignore({"annotations", "logprobs"});
      parts.push_back(dict_value({{"type", text_value("text")}, {"text", text_value(fields.required_string("text"))}}));
    } else if (type == "refusal") {
      parts.push_back(
          dict_value({{"type", text_value("text")}, {"text", text_value(fields.required_string("refusal"))}}));
    } else if (type == "input_image") {
      fields.refuse_if_given("file_id", "files are not stored here; give image_url");
      Dict image;
      set_member(image, "type", text_value("image_url"));
      set_member(image, "image_url", text_value(fields.required_string("image_url")));
      if (const Value* detail = fields.value("detail")) set_member(image, "detail", *detail);
      parts.push_back(dict_value(std::move(image)));
    } else if (type == "input_video") {  // beyond OpenAI's own
      const Value video = text_value(fields.required_string("video_url"));
      parts.push_back(dict_value({{"type", text_value("video_url")}, {"video_url", video}}));
    } else {
      refuse(part_path + ".type",
             fmt::format("'{}' is not implemented; known are input_text, output_text, refusal, input_image and "
                         "input_video",
                         type));
    }
    fields.finish(false);
  }
  return list_value(std::move(parts));
}

// The text of parts that hold text alone.
std::string text_of(const Value& content, const std::string& path) {
  if (content.is(Kind::string)) return content.bytes();
  std::string text;
  for (const Value& part : content.items()) {
    const Value* piece = part.as_dict().find("text");
    if (piece == nullptr) refuse(path, "an assistant message can hold text only");
    text += piece->bytes();
  }
  return text;
}

class Translator {
 public:
  Translator(const Value& body, const ResponseStore& store) : fields_(body), store_(store) {}

  ResponsesRequest run(bool allow_unknown_fields) {
    out_.names.add_words("of them without a result", "function_call without a function_call_output");
    out_.names.add_words("each needs a tool message", "each needs one");
    read_settings();
    read_harmless();
    refuse_foreign();
    read_previous();
    read_input();
    read_tools();
    read_tool_choice();
    read_reasoning();
    read_text();
    fields_.finish(allow_unknown_fields);
    finish_messages();
    out_.chat_body = dict_value(std::move(body_));
    return std::move(out_);
  }

 private:
  void pass(const char* name, const char* chat_name) {
    if (const Value* given = fields_.value(name)) set_member(body_, chat_name, *given);
    out_.names.add(chat_name, name);
  }
  void echo(const char* name, Json fallback) {
    const Value* given = fields_.value(name);
    out_.echo[name] = given != nullptr ? json_of(*given) : std::move(fallback);
  }

  void read_settings() {
    pass("model", "model");
    pass("max_output_tokens", "max_completion_tokens");
    // Beyond OpenAI's own: what vLLM's users give there too.
    for (const char* name : {"temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "repetition_penalty",
                             "presence_penalty", "frequency_penalty", "seed", "stop", "min_tokens", "ignore_eos",
                             "priority", "cache_salt", "thinking", "thinking_token_budget", "chat_template_kwargs"}) {
      pass(name, name);
    }
    for (const char* name : media::request_sizing_names) pass(name, name);
    out_.stream = fields_.boolean("stream").value_or(false);
    out_.store = fields_.boolean("store").value_or(true);
    echo("instructions", nullptr);
    echo("max_output_tokens", nullptr);
    echo("temperature", nullptr);
    echo("top_p", nullptr);
    echo("parallel_tool_calls", true);
    echo("previous_response_id", nullptr);
    out_.echo["store"] = out_.store;
    read_metadata();
  }

  void read_metadata() {
    constexpr std::size_t most = 16;
    out_.echo["metadata"] = Json::object();
    auto metadata = fields_.object("metadata");
    if (!metadata) return;
    const Value& given = *fields_.value("metadata");
    if (given.as_dict().items.size() > most) refuse("metadata", fmt::format("more than {} entries", most));
    for (const auto& [key, value] : given.as_dict().items) {
      if (!value.is(Kind::string)) refuse("metadata." + key.bytes(), "expected a string, found " + kind_of(value));
    }
    out_.echo["metadata"] = json_of(given);
  }

  void read_harmless() {
    fields_.ignore({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
    fields_.only("background", false, "background responses are not implemented");
    fields_.only("truncation", {"disabled"}, "an input that is too long is an error here; leave it out");
    fields_.only("service_tier", {"auto", "default"}, "there is one tier here; leave it out or give \"auto\"");
    if (const auto top = fields_.integer("top_logprobs", 0, 20); top && *top > 0) {
      refuse("top_logprobs", "not implemented in this API; /v1/chat/completions has log-probabilities");
    }
    if (auto options = fields_.object("stream_options")) {
      options->ignore({"include_obfuscation"});
      options->finish(false);
    }
    for (const std::string& name : fields_.strings("include", 16).value_or(std::vector<std::string>())) {
      if (name != "reasoning.encrypted_content") {
        refuse("include", fmt::format("'{}' is not implemented; known is reasoning.encrypted_content", name));
      }
      out_.encrypted_reasoning = true;
    }
  }

  void refuse_foreign() {
    fields_.refuse_if_given("conversation", "conversations are not stored here; use previous_response_id");
    fields_.refuse_if_given("prompt", "prompt templates are not stored here; give 'input'");
    for (const char* name : {"max_tool_calls", "context_management", "moderation", "image", "background_options",
                             "prompt_cache_options", "access_programs"}) {
      fields_.refuse_if_given(name, "not implemented");
    }
  }

  void read_previous() {
    const auto id = fields_.string("previous_response_id");
    if (!id) return;
    auto stored = store_.get(*id);
    if (!stored) {
      throw ApiError(400,
                     fmt::format("previous_response_id: no response '{}' is stored here; it was made with \"store\": "
                                 "false, deleted, or has made room for newer ones",
                                 *id),
                     "previous_response_id", "previous_response_not_found");
    }
    out_.messages = std::move(stored->messages);
    out_.added = std::move(stored->added);
    before_ = out_.messages.size();
  }

  void read_input() {
    const Value* input = fields_.value("input");
    if (input == nullptr) refuse("input", "missing");
    if (input->is(Kind::string)) {
      return add(dict_value({{"role", text_value("user")}, {"content", *input}}), "input");
    }
    if (!input->is(Kind::list)) refuse("input", "expected a string or a list of items, found " + kind_of(*input));
    if (input->items().empty() && before_ == 0) refuse("input", "at least one item is needed");
    for (std::size_t i = 0; i < input->items().size(); ++i) {
      const std::string path = fmt::format("input[{}]", i);
      const Value& item = input->items()[i];
      if (!item.is(Kind::dict)) refuse(path, "expected an object, found " + kind_of(item));
      read_item(item, path);
    }
    flush_assistant();
  }

  void read_item(const Value& item, const std::string& path) {
    Fields fields(item, path + ".");
    const std::string type = fields.string("type").value_or("message");
    fields.ignore({"id", "status"});
    if (type == "message") {
      read_message(fields, path);
    } else if (type == "function_call") {
      if (turn_.path.empty()) turn_.path = path;
      turn_.calls.push_back(
          dict_value({{"id", text_value(fields.required_string("call_id"))},
                      {"type", text_value("function")},
                      {"function", dict_value({{"name", text_value(fields.required_string("name"))},
                                               {"arguments", text_value(fields.required_string("arguments"))}})}}));
      turn_.call_paths.push_back(path);
    } else if (type == "function_call_output") {
      flush_assistant();
      const std::string id = fields.required_string("call_id");
      const Value* output = fields.value("output");
      out_.names.add(message_path() + ".tool_call_id", path + ".call_id");
      out_.names.add(message_path() + ".content", path + ".output");
      add(dict_value({{"role", text_value("tool")},
                      {"tool_call_id", text_value(id)},
                      {"content", output != nullptr ? read_content(*output, path + ".output") : text_value("")}}),
          path);
    } else if (type == "reasoning") {
      read_reasoning_item(fields, path);
    } else {
      refuse(path + ".type", fmt::format("'{}' is not implemented; known are message, function_call, "
                                         "function_call_output and reasoning",
                                         type));
    }
    fields.finish(false);
  }

  void read_message(Fields& fields, const std::string& path) {
    const std::string role = fields.required_string("role");
    const Value* content = fields.value("content");
    if (content == nullptr) refuse(path + ".content", "missing");
    const Value read = read_content(*content, path + ".content");
    if (role == "assistant") {
      if (turn_.calls.empty() && turn_.spoke) flush_assistant();
      if (turn_.path.empty()) turn_.path = path;
      turn_.spoke = true;
      fields.ignore({"phase"});
      return join(turn_.text, text_of(read, path + ".content"));
    }
    flush_assistant();
    add(dict_value({{"role", text_value(role)}, {"content", read}}), path);
  }

  void read_reasoning_item(Fields& fields, const std::string& path) {
    if (turn_.calls.empty() && turn_.spoke) flush_assistant();
    if (turn_.path.empty()) turn_.path = path;
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Value* parts = fields.value(name);
      if (parts == nullptr || !text.empty()) continue;
      if (!parts->is(Kind::list)) refuse(fields.path_of(name), "expected a list, found " + kind_of(*parts));
      for (std::size_t i = 0; i < parts->items().size(); ++i) {
        const std::string part_path = fmt::format("{}[{}]", fields.path_of(name), i);
        const Value& part = parts->items()[i];
        if (!part.is(Kind::dict)) refuse(part_path, "expected an object, found " + kind_of(part));
        Fields part_fields(part, part_path + ".");
        join(text, part_fields.required_string("text"));
      }
    }
    if (const auto packed = fields.string("encrypted_content"); packed && text.empty()) {
      const auto unpacked = unpack_reasoning(*packed);
      if (!unpacked) refuse(path + ".encrypted_content", "not made by this server");
      text = *unpacked;
    }
    join(turn_.reasoning, text);
  }

  std::string message_path() const { return fmt::format("messages[{}]", offset_ + out_.messages.size()); }

  void add(Value message, const std::string& path) {
    out_.names.add(message_path(), path);
    out_.messages.push_back(std::move(message));
  }

  // Reasoning, text and calls of one turn as a message.
  void flush_assistant() {
    if (turn_.path.empty()) return;
    Dict message;
    set_member(message, "role", text_value("assistant"));
    set_member(message, "content", text_value(turn_.text));
    if (!turn_.reasoning.empty()) set_member(message, "reasoning_content", text_value(turn_.reasoning));
    for (std::size_t i = 0; i < turn_.calls.size(); ++i) {
      const std::string chat_path = fmt::format("{}.tool_calls[{}]", message_path(), i);
      out_.names.add(chat_path, turn_.call_paths[i]);
      out_.names.add(chat_path + ".function", turn_.call_paths[i]);
    }
    if (!turn_.calls.empty()) {
      out_.names.add(message_path() + ".tool_calls", turn_.call_paths.front());
      set_member(message, "tool_calls", list_value(std::move(turn_.calls)));
    }
    add(dict_value(std::move(message)), turn_.path);
    turn_ = {};
  }

  void finish_messages() {
    out_.added_messages = out_.messages.size() - std::min(before_, out_.messages.size());
    std::vector<Value> messages;
    if (const auto instructions = fields_.string("instructions"); instructions && !instructions->empty()) {
      messages.push_back(dict_value({{"role", text_value("system")}, {"content", text_value(*instructions)}}));
    }
    messages.insert(messages.end(), out_.messages.begin(), out_.messages.end());
    set_member(body_, "messages", list_value(std::move(messages)));
  }

  void read_tools() {
    out_.echo["tools"] = Json::array();
    const Value* tools = fields_.value("tools");
    if (tools == nullptr) return;
    if (!tools->is(Kind::list)) refuse("tools", "expected a list, found " + kind_of(*tools));
    std::vector<Value> out;
    for (std::size_t i = 0; i < tools->items().size(); ++i) {
      const std::string path = fmt::format("tools[{}]", i);
      const Value& tool = tools->items()[i];
      if (!tool.is(Kind::dict)) refuse(path, "expected an object, found " + kind_of(tool));
      Fields fields(tool, path + ".");
      const std::string type = fields.required_string("type");
      if (type != "function") {
        refuse(path + ".type", fmt::format("'{}' is not implemented; only 'function' is", type));
      }
      Dict function;
      for (const char* name : {"name", "description", "parameters", "strict"}) {
        if (const Value* given = fields.value(name)) set_member(function, name, *given);
      }
      fields.finish(false);
      out_.names.add(path + ".function", path);
      out.push_back(dict_value({{"type", text_value("function")}, {"function", dict_value(std::move(function))}}));
    }
    set_member(body_, "tools", list_value(std::move(out)));
    out_.echo["tools"] = json_of(*tools);
  }

  void read_tool_choice() {
    echo("tool_choice", "auto");
    out_.names.add("tool_choice.function.name", "tool_choice.name");
    const Value* choice = fields_.value("tool_choice");
    if (choice == nullptr) return;
    if (!choice->is(Kind::dict)) return set_member(body_, "tool_choice", *choice);
    Fields fields(*choice, "tool_choice.");
    const std::string type = fields.required_string("type");
    if (type != "function") {
      refuse("tool_choice.type", fmt::format("'{}' is not implemented; only 'function' is", type));
    }
    const std::string name = fields.required_string("name");
    fields.finish(false);
    set_member(body_, "tool_choice",
               dict_value({{"type", text_value(type)}, {"function", dict_value({{"name", text_value(name)}})}}));
  }

  void read_reasoning() {
    out_.echo["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
    out_.names.add("reasoning_effort", "reasoning.effort");
    auto reasoning = fields_.object("reasoning");
    if (!reasoning) return;
    if (const Value* effort = reasoning->value("effort")) {
      set_member(body_, "reasoning_effort", *effort);
      out_.echo["reasoning"]["effort"] = json_of(*effort);
    }
    // All of the reasoning is given; a summary would have to be written by somebody.
    reasoning->only("summary", {"auto"}, "reasoning is given whole, without summaries; leave it out or give \"auto\"");
    reasoning->only("generate_summary", {"auto"}, "reasoning is given whole, without summaries; leave it out");
    reasoning->finish(false);
  }

  void read_text() {
    out_.echo["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
    out_.names.add("response_format.json_schema", "text.format");
    out_.names.add("response_format", "text.format");
    auto text = fields_.object("text");
    if (!text) return;
    text->only("verbosity", {"medium"}, "the model has no such setting");
    if (auto format = text->object("format")) {
      const Value& given = *text->value("format");
      const std::string type = format->required_string("type");
      if (type == "json_schema") {
        Dict schema;
        for (const char* name : {"name", "description", "schema", "strict"}) {
          if (const Value* member = format->value(name)) set_member(schema, name, *member);
        }
        set_member(body_, "response_format",
                   dict_value({{"type", text_value(type)}, {"json_schema", dict_value(std::move(schema))}}));
      } else if (type == "json_object") {
        set_member(body_, "response_format", given);
      } else if (type != "text") {
        refuse("text.format.type", fmt::format("'{}' is unknown; known are text, json_object and json_schema", type));
      }
      format->finish(false);
      out_.echo["text"]["format"] = json_of(given);
    }
    text->finish(false);
  }

  // What the assistant said since somebody else did.
  struct Turn {
    std::string path;  // of its first item
    std::string text, reasoning;
    bool spoke = false;
    std::vector<Value> calls;
    std::vector<std::string> call_paths;
  };

  Fields fields_;
  const ResponseStore& store_;
  ResponsesRequest out_;
  Dict body_;
  Turn turn_;
  std::size_t before_ = 0;  // messages of the previous response
  std::size_t offset_ = fields_.string("instructions").value_or("").empty() ? 0 : 1;
};

}  // namespace

ResponsesRequest read_responses_request(const Value& body, const ResponseStore& store, bool allow_unknown_fields) try {
  return Translator(body, store).run(allow_unknown_fields);
} catch (const chat::Fault& problem) {
  throw ApiError(400, "the request: " + problem.what);  // nested too deep
}

std::string pack_reasoning(const std::string& text) {
  std::string out((text.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  out.resize(static_cast<std::size_t>(size));
  return reasoning_mark + out;
}

std::optional<std::string> unpack_reasoning(const std::string& packed) {
  if (!packed.starts_with(reasoning_mark)) return std::nullopt;
  const std::string body = packed.substr(std::string_view(reasoning_mark).size());
  std::string out(body.size() / 4 * 3 + 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(body.data()), static_cast<int>(body.size()));
  if (size < 0 || body.size() % 4 != 0) return std::nullopt;
  const auto padding = static_cast<std::size_t>(body.ends_with("==") ? 2 : body.ends_with("=") ? 1 : 0);
  out.resize(static_cast<std::size_t>(size) - std::min(padding, static_cast<std::size_t>(size)));
  if (!is_valid_utf8(out)) return std::nullopt;
  return out;
}

}  // namespace m3::server
