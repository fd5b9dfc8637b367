#include "src/server/anthropic_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/media/options.h"
#include "src/server/fields.h"
#include "src/server/values.h"

namespace m3::server {
namespace {

using chat::Dict;
using chat::Kind;
using chat::Value;

std::string type_of(const Value& block, const std::string& path) {
  if (!block.is(Kind::dict)) refuse(path, "expected a content block (an object), found " + kind_of(block));
  Fields fields(block, path + ".");
  return fields.required_string("type");
}

// Text and pictures in their order; neighbouring texts are one, with a blank line between them.
class Parts {
 public:
  void add_text(const std::string& text) {
    has_text_ = true;
    join(text_, text);
  }
  // `type`: image_url or video_url.
  void add_picture(const char* type, const std::string& url, const std::string& path) {
    end_text();
    pictures_.emplace_back(parts_.size(), path);
    parts_.push_back(dict_value({{"type", text_value(type)}, {type, dict_value({{"url", text_value(url)}})}}));
  }
  bool empty() const { return parts_.empty() && !has_text_; }
  Value content() {
    if (pictures_.empty()) return text_value(text_);
    end_text();
    return list_value(parts_);
  }
  // Where the client's pictures stand among the parts of messages[number].
  void name_pictures(std::size_t number, FieldNames& names) const {
    for (const auto& [part, path] : pictures_) names.add(fmt::format("messages[{}].content[{}]", number, part), path);
  }

 private:
  void end_text() {
    if (has_text_) parts_.push_back(dict_value({{"type", text_value("text")}, {"text", text_value(text_)}}));
    has_text_ = false;
    text_.clear();
  }

  std::vector<Value> parts_;
  std::string text_;  // of the part that is being made, if it has begun
  bool has_text_ = false;
  std::vector<std::pair<std::size_t, std::string>> pictures_;  // number of the part, and the client's path
};

void read_picture(const char* type_in_chat, Fields& block, Parts& parts) {
  auto source = block.object("source");
  if (!source) refuse(block.path_of("source"), "missing");
  const std::string type = source->required_string("type");
  if (type == "base64") {
    const std::string media_type = source->required_string("media_type");
    // The bytes say what they are; a type that is wrong is tolerated.
    if (media_type.find(',') != std::string::npos) refuse(source->path_of("media_type"), "not a MIME type");
    parts.add_picture(type_in_chat, "data:" + media_type + ";base64," + source->required_string("data"),
                      block.own_path());
  } else if (type == "url") {
    parts.add_picture(type_in_chat, source->required_string("url"), block.own_path());
  } else {
    refuse(source->path_of("type"), fmt::format("'{}' is not implemented; known are base64 and url", type));
  }
  source->finish(false);
}

// Plain text alone; pages of a PDF would have to be drawn.
void read_document(Fields& block, Parts& parts) {
  auto source = block.object("source");
  if (!source) refuse(block.path_of("source"), "missing");
  const std::string type = source->required_string("type");
  if (type != "text") {
    refuse(source->path_of("type"), fmt::format("'{}' is not implemented; a document can be given as text", type));
  }
  source->ignore({"media_type"});
  const std::string data = source->required_string("data");
  source->finish(false);
  std::string text;
  join(text, block.string("title").value_or(""));
  join(text, block.string("context").value_or(""));
  join(text, data);
  parts.add_text(text);
  if (auto citations = block.object("citations")) citations->only("enabled", false, "citations are not implemented");
}

// text, image, video and document, as users and tools give them; false: another type.
bool read_part(const std::string& type, Fields& block, Parts& parts) {
  if (type == "text") {
    parts.add_text(block.required_string("text"));
    block.ignore({"citations"});
  } else if (type == "image" || type == "video") {
    read_picture(type == "image" ? "image_url" : "video_url", block, parts);
  } else if (type == "document") {
    read_document(block, parts);
  } else {
    return false;
  }
  block.ignore({"cache_control"});
  block.finish(false);
  return true;
}

class Translator {
 public:
  explicit Translator(const Value& body) : fields_(body) {}

  AnthropicRequest run(const AnthropicReadOptions& options) {
    out_.names.add_words("of them without a result", "tool_use without a tool_result");
    out_.names.add_words("each needs a tool message", "the next message must answer each");
    read_settings(options);
    read_system();
    read_messages();
    read_tools();
    read_tool_choice();
    read_thinking();
    read_output();
    fields_.finish(options.allow_unknown_fields);
    set_member(body_, "messages", list_value(std::move(messages_)));
    out_.chat_body = dict_value(std::move(body_));
    return std::move(out_);
  }

 private:
  void pass(const char* name, const char* chat_name) {
    if (const Value* given = fields_.value(name)) set_member(body_, chat_name, *given);
    out_.names.add(chat_name, name);
  }

  void read_settings(const AnthropicReadOptions& options) {
    pass("model", "model");
    pass("max_tokens", "max_tokens");
    if (options.needs_max_tokens && fields_.value("max_tokens") == nullptr) {
      refuse("max_tokens", "missing; this API asks for it");
    }
    for (const char* name : {"temperature", "top_p", "top_k"}) pass(name, name);
    pass("stop_sequences", "stop");
    if (const Value* stops = fields_.value("stop_sequences"); stops != nullptr && !stops->is(Kind::list)) {
      refuse("stop_sequences", "expected a list of strings, found " + kind_of(*stops));
    }
    // Beyond Anthropic's own: what vLLM's users give there too.
    for (const char* name : {"seed", "min_p", "repetition_penalty", "chat_template_kwargs", "priority", "cache_salt"}) {
      pass(name, name);
    }
    for (const char* name : media::request_sizing_names) pass(name, name);
    out_.stream = fields_.boolean("stream").value_or(false);
    // Prefixes are cached without being asked to; the user's name changes nothing.
    fields_.ignore({"metadata", "cache_control"});
    fields_.only("service_tier", {"auto", "standard_only"}, "there is one tier here");
    fields_.only("speed", {"standard"}, "there is one speed here");
    for (const char* name : {"container", "mcp_servers", "inference_geo", "diagnostics"}) {
      fields_.refuse_if_given(name, "not implemented");
    }
    read_context_management();
  }

  // Editing of the context is not done; edits that keep everything are fine.
  void read_context_management() {
    auto management = fields_.object("context_management");
    if (!management) return;
    const Value* edits = management->value("edits");
    management->finish(false);
    if (edits == nullptr) return;
    if (!edits->is(Kind::list)) refuse("context_management.edits", "expected a list, found " + kind_of(*edits));
    for (std::size_t i = 0; i < edits->items().size(); ++i) {
      const std::string path = fmt::format("context_management.edits[{}]", i);
      const std::string type = type_of(edits->items()[i], path);
      const Value* keep = edits->items()[i].as_dict().find("keep");
      const bool keeps_all = keep != nullptr && keep->is(Kind::string) && keep->bytes() == "all";
      if (!type.starts_with("clear_thinking") || !keeps_all) {
        refuse(path, "editing of the context is not implemented, except clear_thinking with \"keep\": \"all\"");
      }
    }
  }

  void add_message(Dict message, const std::string& given_path) {
    out_.names.add(fmt::format("messages[{}]", messages_.size()), given_path);
    messages_.push_back(dict_value(std::move(message)));
  }

  void read_system() {
    const Value* system = fields_.value("system");
    if (system == nullptr) return;
    std::string text;
    if (system->is(Kind::string)) {
      text = system->bytes();
    } else {
      text = system_text(*system, "system");
    }
    if (text.empty()) return;
    Dict message;
    set_member(message, "role", text_value("system"));
    set_member(message, "content", text_value(std::move(text)));
    add_message(std::move(message), "system");
  }

  static std::string system_text(const Value& blocks, const std::string& given_path) {
    if (!blocks.is(Kind::list)) {
      refuse(given_path, "expected a string or a list of text blocks, found " + kind_of(blocks));
    }
    std::string text;
    for (std::size_t i = 0; i < blocks.items().size(); ++i) {
      const std::string path = fmt::format("{}[{}]", given_path, i);
      const std::string type = type_of(blocks.items()[i], path);
      if (type != "text") refuse(path + ".type", fmt::format("'{}' cannot stand here; only text can", type));
      Fields block(blocks.items()[i], path + ".");
      block.ignore({"type", "cache_control", "citations"});
      const std::string part = block.required_string("text");
      block.finish(false);
      // Claude Code's note to its own servers. It differs from request to request, which would undo prefix caching.
      if (!part.starts_with("x-anthropic-billing-header:")) join(text, part);
    }
    return text;
  }

  void read_messages() {
    const Value* messages = fields_.value("messages");
    if (messages == nullptr) refuse("messages", "missing");
    if (!messages->is(Kind::list)) refuse("messages", "expected a list, found " + kind_of(*messages));
    if (messages->items().empty()) refuse("messages", "at least one message is needed");
    std::string role;
    bool calls = false;
    for (std::size_t i = 0; i < messages->items().size(); ++i) {
      const std::string path = fmt::format("messages[{}]", i);
      const Value& message = messages->items()[i];
      if (!message.is(Kind::dict)) refuse(path, "expected an object, found " + kind_of(message));
      Fields fields(message, path + ".");
      role = fields.required_string("role");
      const Value* content = fields.value("content");
      if (content == nullptr) refuse(path + ".content", "missing");
      if (!content->is(Kind::string) && !content->is(Kind::list)) {
        refuse(path + ".content", "expected a string or a list of blocks, found " + kind_of(*content));
      }
      fields.finish(false);
      calls = false;
      if (role == "user") {
        read_user(*content, path);
      } else if (role == "assistant") {
        calls = read_assistant(*content, path);
      } else if (role == "system") {
        read_late_system(*content, path);
      } else {
        refuse(path + ".role", fmt::format("unknown role '{}'; known are user, assistant and system", shortened(role)));
      }
    }
    if (role == "assistant" && !calls) set_member(body_, "continue_final_message", flag_value(true));
  }

  void read_late_system(const Value& content, const std::string& path) {
    Dict message;
    set_member(message, "role", text_value("system"));
    set_member(message, "content",
               content.is(Kind::string) ? content : text_value(system_text(content, path + ".content")));
    add_message(std::move(message), path);
  }

  void read_user(const Value& content, const std::string& path) {
    Dict message;
    set_member(message, "role", text_value("user"));
    if (content.is(Kind::string)) {
      set_member(message, "content", content);
      return add_message(std::move(message), path);
    }
    Parts parts;
    bool results = false;
    for (std::size_t i = 0; i < content.items().size(); ++i) {
      const std::string block_path = fmt::format("{}.content[{}]", path, i);
      const std::string type = type_of(content.items()[i], block_path);
      Fields block(content.items()[i], block_path + ".");
      block.ignore({"type"});
      if (type == "tool_result") {
        read_tool_result(block, block_path);
        results = true;
      } else if (!read_part(type, block, parts)) {
        refuse(block_path + ".type",
               fmt::format("'{}' is not implemented in a user message; known are text, image, video, document and "
                           "tool_result",
                           type));
      }
    }
    if (results && parts.empty()) return;
    parts.name_pictures(messages_.size(), out_.names);
    set_member(message, "content", parts.content());
    add_message(std::move(message), path);
  }

  void read_tool_result(Fields& block, const std::string& path) {
    const std::string id = block.required_string("tool_use_id");
    const bool failed = block.boolean("is_error").value_or(false);
    block.ignore({"cache_control"});
    const Value* content = block.value("content");
    block.finish(false);
    Parts parts;
    if (content != nullptr && content->is(Kind::string)) {
      parts.add_text(content->bytes());
    } else if (content != nullptr) {
      if (!content->is(Kind::list)) {
        refuse(path + ".content", "expected a string or a list of blocks, found " + kind_of(*content));
      }
      if (failed) add_error_mark(content->items(), parts);
      for (std::size_t i = 0; i < content->items().size(); ++i) {
        const std::string part_path = fmt::format("{}.content[{}]", path, i);
        const std::string type = type_of(content->items()[i], part_path);
        Fields part(content->items()[i], part_path + ".");
        part.ignore({"type"});
        if (!read_part(type, part, parts)) {
          refuse(part_path + ".type",
                 fmt::format("'{}' is not implemented in a tool result; known are text, image, video and "
                             "document",
                             type));
        }
      }
    }
    parts.name_pictures(messages_.size(), out_.names);
    Dict message;
    set_member(message, "role", text_value("tool"));
    set_member(message, "tool_call_id", text_value(id));
    Value text = parts.content();
    // The model's format has no place for the flag, so the text must say it.
    if (failed && text.is(Kind::string) && !says_error(text.bytes())) text = text_value("Error: " + text.bytes());
    set_member(message, "content", std::move(text));
    out_.names.add(fmt::format("messages[{}].tool_call_id", messages_.size()), path + ".tool_use_id");
    add_message(std::move(message), path);
  }

  // A failed result with pictures: the mark stands before them.
  static void add_error_mark(const std::vector<Value>& blocks, Parts& parts) {
    const bool pictures = std::ranges::any_of(blocks, [](const Value& block) {
      const Value* type = block.is(Kind::dict) ? block.as_dict().find("type") : nullptr;
      return type != nullptr && type->is(Kind::string) && (type->bytes() == "image" || type->bytes() == "video");
    });
    if (pictures) parts.add_text("Error:");
  }

  static bool says_error(std::string_view text) {
    std::string start(text.substr(0, 24));
    std::ranges::transform(start, start.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    return start.starts_with("error") || start.starts_with("<tool_use_error>");
  }

  // Whether it ends in calls.
  bool read_assistant(const Value& content, const std::string& path) {
    Dict message;
    set_member(message, "role", text_value("assistant"));
    if (content.is(Kind::string)) {
      set_member(message, "content", content);
      add_message(std::move(message), path);
      return false;
    }
    std::string text, thinking;
    std::vector<Value> calls;
    for (std::size_t i = 0; i < content.items().size(); ++i) {
      const std::string block_path = fmt::format("{}.content[{}]", path, i);
      const std::string type = type_of(content.items()[i], block_path);
      Fields block(content.items()[i], block_path + ".");
      block.ignore({"type", "cache_control"});
      if (type == "text") {
        join(text, block.required_string("text"));
        block.ignore({"citations"});
      } else if (type == "thinking") {
        join(thinking, block.required_string("thinking"));
        block.ignore({"signature"});
      } else if (type == "redacted_thinking") {
        block.ignore({"data"});  // nobody but its maker can read it
      } else if (type == "tool_use") {
        calls.push_back(read_tool_use(block, block_path, calls.size()));
        block.ignore({"caller"});
      } else {
        refuse(block_path + ".type",
               fmt::format("'{}' is not implemented in an assistant message; known are text, thinking and tool_use",
                           type));
      }
      block.finish(false);
    }
    set_member(message, "content", text_value(text));
    if (!thinking.empty()) set_member(message, "reasoning_content", text_value(thinking));
    const bool has_calls = !calls.empty();
    if (has_calls) set_member(message, "tool_calls", list_value(std::move(calls)));
    out_.names.add(fmt::format("messages[{}].tool_calls", messages_.size()), path + ".content");
    add_message(std::move(message), path);
    return has_calls;
  }

  Value read_tool_use(Fields& block, const std::string& path, std::size_t number) {
    const std::string id = block.required_string("id");
    const std::string name = block.required_string("name");
    const Value* input = block.value("input");
    if (input != nullptr && !input->is(Kind::dict)) {
      refuse(path + ".input", "expected an object, found " + kind_of(*input));
    }
    const std::string chat_path = fmt::format("messages[{}].tool_calls[{}]", messages_.size(), number);
    out_.names.add(chat_path, path);
    out_.names.add(chat_path + ".function", path);
    out_.names.add(chat_path + ".function.arguments", path + ".input");
    const Value arguments = input != nullptr ? *input : dict_value(Dict());
    return dict_value({{"id", text_value(id)},
                       {"type", text_value("function")},
                       {"function", dict_value({{"name", text_value(name)}, {"arguments", arguments}})}});
  }

  void read_tools() {
    const Value* tools = fields_.value("tools");
    if (tools == nullptr) return;
    if (!tools->is(Kind::list)) refuse("tools", "expected a list, found " + kind_of(*tools));
    std::vector<Value> out;
    for (std::size_t i = 0; i < tools->items().size(); ++i) {
      out.push_back(read_tool(tools->items()[i], fmt::format("tools[{}]", i)));
    }
    set_member(body_, "tools", list_value(std::move(out)));
  }

  Value read_tool(const Value& tool, const std::string& path) {
    if (!tool.is(Kind::dict)) refuse(path, "expected an object, found " + kind_of(tool));
    Fields fields(tool, path + ".");
    const auto type = fields.string("type");
    if (type && *type != "custom") {
      refuse(path + ".type", fmt::format("'{}' is a tool of Anthropic's own and not implemented; give a tool with an "
                                         "input_schema",
                                         *type));
    }
    Dict function;
    set_member(function, "name", text_value(fields.required_string("name")));
    if (const auto description = fields.string("description")) {
      set_member(function, "description", text_value(*description));
    }
    const Value* schema = fields.value("input_schema");
    if (schema == nullptr) refuse(path + ".input_schema", "missing");
    set_member(function, "parameters", *schema);
    if (const auto strict = fields.boolean("strict")) set_member(function, "strict", flag_value(*strict));
    // Input always streams as it is written.
    fields.ignore({"cache_control", "eager_input_streaming"});
    fields.only("defer_loading", false, "every tool is shown to the model; leave it out");
    if (const auto callers = fields.strings("allowed_callers", 8);
        callers && *callers != std::vector<std::string>{"direct"}) {
      refuse(path + ".allowed_callers", "only [\"direct\"] is implemented");
    }
    fields.refuse_if_given("input_examples", "not implemented; put examples into the description");
    fields.finish(false);
    out_.names.add(path + ".function", path);
    out_.names.add(path + ".function.parameters", path + ".input_schema");
    return dict_value({{"type", text_value("function")}, {"function", dict_value(std::move(function))}});
  }

  void read_tool_choice() {
    out_.names.add("tool_choice.function.name", "tool_choice.name");
    out_.names.add("tool_choice", "tool_choice.type");
    auto choice = fields_.object("tool_choice");
    if (!choice) return;
    const std::string type = choice->word("type", {"auto", "any", "tool", "none"}).value_or("");
    if (type.empty()) refuse("tool_choice.type", "missing");
    if (type == "tool") {
      const std::string name = choice->required_string("name");
      set_member(
          body_, "tool_choice",
          dict_value({{"type", text_value("function")}, {"function", dict_value({{"name", text_value(name)}})}}));
    } else {
      set_member(body_, "tool_choice", text_value(type == "any" ? "required" : type));
    }
    if (choice->boolean("disable_parallel_tool_use").value_or(false)) {
      set_member(body_, "parallel_tool_calls", flag_value(false));
    }
    choice->finish(false);
  }

  // Without the field there are no thinking blocks, as clients of this API expect.
  void read_thinking() {
    std::string type = "disabled";
    const Value* budget = nullptr;
    auto thinking = fields_.object("thinking");
    if (thinking) {
      type = thinking->word("type", {"enabled", "adaptive", "disabled"}).value_or("");
      if (type.empty()) refuse("thinking.type", "missing");
      budget = thinking->value("budget_tokens");
      if (budget != nullptr && type != "enabled") refuse("thinking.budget_tokens", "only with \"type\": \"enabled\"");
      const auto display = thinking->word("display", {"summarized", "omitted"});
      out_.show_thinking = display.value_or("") != "omitted";
      thinking->finish(false);
    }
    const Value* kwargs = fields_.value("chat_template_kwargs");
    const bool told =
        kwargs != nullptr && kwargs->is(Kind::dict) &&
        (kwargs->as_dict().find("thinking_mode") != nullptr || kwargs->as_dict().find("enable_thinking") != nullptr);
    if (!thinking && told) return;
    Dict out;
    set_member(out, "type", text_value(type));
    if (budget != nullptr) set_member(out, "budget_tokens", *budget);
    set_member(body_, "thinking", dict_value(std::move(out)));
  }

  void read_output() {
    out_.names.add("response_format.json_schema.schema", "output_config.format.schema");
    out_.names.add("response_format", "output_config.format");
    out_.names.add("reasoning_effort", "output_config.effort");
    if (auto config = fields_.object("output_config")) {
      if (const Value* effort = config->value("effort")) set_member(body_, "reasoning_effort", *effort);
      read_format(*config, "format");
      config->finish(false);
    }
    read_format(fields_, "output_format");  // its older name
  }

  void read_format(Fields& holder, const char* name) {
    auto format = holder.object(name);
    if (!format) return;
    const std::string type = format->required_string("type");
    if (type != "json_schema") refuse(format->path_of("type"), "only json_schema is known");
    const Value* schema = format->value("schema");
    if (schema == nullptr) refuse(format->path_of("schema"), "missing");
    format->finish(false);
    const Value inner = dict_value({{"name", text_value("output")}, {"schema", *schema}, {"strict", flag_value(true)}});
    set_member(body_, "response_format", dict_value({{"type", text_value("json_schema")}, {"json_schema", inner}}));
  }

  Fields fields_;
  AnthropicRequest out_;
  Dict body_;
  std::vector<Value> messages_;
};

}  // namespace

AnthropicRequest read_anthropic_request(const Value& body, const AnthropicReadOptions& options) try {
  return Translator(body).run(options);
} catch (const chat::Fault& problem) {
  throw ApiError(400, "the request: " + problem.what);  // nested too deep
}

}  // namespace m3::server
