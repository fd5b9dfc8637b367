#include "src/chat/conversation.h"

#include <algorithm>
#include <array>
#include <set>

#include "src/base/error.h"
#include "src/chat/template/json.h"

namespace m3::chat {
namespace {

using Json = Conversation::Json;

// Members of a body that act here. `model` and `stream` say what holds anyway.
constexpr std::array<std::string_view, 26> known_fields = {"model",
                                                           "stream",
                                                           "messages",
                                                           "tools",
                                                           "tool_choice",
                                                           "parallel_tool_calls",
                                                           "thinking",
                                                           "reasoning_effort",
                                                           "chat_template_kwargs",
                                                           "thinking_budget",
                                                           "thinking_token_budget",
                                                           "response_format",
                                                           "structured_outputs",
                                                           "guided_json",
                                                           "guided_regex",
                                                           "guided_choice",
                                                           "guided_grammar",
                                                           "add_generation_prompt",
                                                           "continue_final_message",
                                                           "mm_processor_kwargs",
                                                           "media_io_kwargs",
                                                           "max_long_side_pixel",
                                                           "min_pixels",
                                                           "max_pixels",
                                                           "fps",
                                                           "size_rule"};

// What does what a field does elsewhere. Options of m3 run bear the names of the fields, with dashes.
std::string instead_of(const std::string& field) {
  constexpr std::array<std::string_view, 16> options = {"max_tokens",
                                                        "min_tokens",
                                                        "temperature",
                                                        "top_k",
                                                        "top_p",
                                                        "min_p",
                                                        "repetition_penalty",
                                                        "presence_penalty",
                                                        "frequency_penalty",
                                                        "logit_bias",
                                                        "seed",
                                                        "stop",
                                                        "ignore_eos",
                                                        "logprobs",
                                                        "n",
                                                        "system"};
  if (field == "prompt") return "a chat has messages, and --prompt TEXT adds a question to them";
  std::string option = field == "max_completion_tokens"                       ? "max_tokens"
                       : field == "stop_token_ids"                            ? "stop_id"
                       : field == "top_logprobs"                              ? "logprobs"
                       : std::ranges::count(options, std::string_view(field)) ? field
                                                                              : "";
  std::ranges::replace(option, '_', '-');
  return option.empty() ? "leave it out" : "the option --" + option + " of m3 run sets it";
}

std::string string_member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string role_of(const Json& message) { return string_member(message, "role"); }

// A list that may be missing or null.
Json list_member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : Json::array();
}

bool is_system(const std::string& role) { return role == "root" || role == "system" || role == "developer"; }

// Strict, with this project's lines; then as nlohmann's value, which is easier to change.
Json parse_strict(std::string_view json, const std::string& where) {
  parse_json(json, where);
  try {
    return Json::parse(json);
  } catch (const Json::exception&) {
    fail("{}: text with half a surrogate pair, or a number too large to keep", where);
  }
}

std::string dump(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string text_of(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content.is_array() ? content : Json::array()) {
    if (part.is_object() && part.contains("text")) text += part.at("text").get<std::string>();
  }
  return text;
}

Value value_of(const Json& body) { return parse_json(dump(body), "the conversation"); }

ChatRequest checked(const Json& body, const ChatRequestOptions& options) {
  return parse_chat_request(value_of(body), options);
}

}  // namespace

Conversation::Conversation() : body_({{"messages", Json::array()}}) {}

Conversation Conversation::parse(std::string_view json, const std::string& where) {
  Conversation conversation;
  conversation.body_ = parse_strict(json, where);
  if (!conversation.body_.is_object()) fail("{}: expected a JSON object with messages", where);
  for (const auto& [name, value] : conversation.body_.items()) {
    if (!std::ranges::count(known_fields, name)) {
      fail("{}: {}: this field has no effect here; {}", where, name, instead_of(name));
    }
  }
  conversation.check(where);
  return conversation;
}

void Conversation::check(const std::string& where) const {
  Json body = body_;
  if (!body.contains("messages")) fail("{}: messages: missing", where);
  if (body["messages"].is_array() && body["messages"].empty()) {
    body["messages"].push_back({{"role", "user"}, {"content", ""}});
  }
  try {
    checked(body, {.check_tool_results = false});
  } catch (const Error& error) {
    fail("{}: {}", where, error.what());
  }
}

std::string Conversation::text() const { return dump(body_, 2) + "\n"; }

std::size_t Conversation::system_index() const {
  const bool root = !messages().empty() && role_of(messages()[0]) == "root";
  return root ? 1 : 0;
}

void Conversation::set_system(const std::string& text) {
  const std::size_t index = system_index();
  const bool there = index < messages().size() && is_system(role_of(messages()[index]));
  const auto at = messages().begin() + static_cast<std::ptrdiff_t>(index);
  if (text.empty()) {
    if (there) messages().erase(at);
  } else if (there) {
    messages()[index]["content"] = text;
  } else {
    messages().insert(at, Json({{"role", "system"}, {"content", text}}));
  }
}

std::string Conversation::system() const {
  const std::size_t index = system_index();
  if (index >= messages().size() || !is_system(role_of(messages()[index]))) return "";
  return text_of(messages()[index].value("content", Json()));
}

void Conversation::set_tools(std::string_view json, const std::string& where) {
  Json given = parse_strict(json, where);
  if (given.is_object() && given.contains("tools")) given = Json(given["tools"]);
  Conversation changed = *this;
  changed.set("tools", given.empty() && given.is_array() ? Json() : given);
  changed.check(where);
  *this = std::move(changed);
}

std::vector<std::string> Conversation::tool_names() const {
  std::vector<std::string> names;
  for (const Json& tool : list_member(body_, "tools")) {
    names.push_back(tool.at("function").at("name").get<std::string>());
  }
  return names;
}

void Conversation::set_thinking(std::optional<ThinkingMode> mode) {
  // One place for it: the others could contradict.
  body_.erase("reasoning_effort");
  if (body_.contains("chat_template_kwargs") && body_["chat_template_kwargs"].is_object()) {
    body_["chat_template_kwargs"].erase("thinking_mode");
    body_["chat_template_kwargs"].erase("enable_thinking");
  }
  if (!body_.contains("thinking") || !body_["thinking"].is_object()) body_["thinking"] = Json::object();
  if (mode) {
    body_["thinking"]["type"] = thinking_mode_name(*mode);
  } else {
    body_["thinking"].erase("type");
  }
  if (body_["thinking"].empty()) body_.erase("thinking");
}

std::optional<ThinkingMode> Conversation::thinking() const {
  Json body = body_;
  body["messages"] = Json::array({{{"role", "user"}, {"content", ""}}});
  body.erase("continue_final_message");
  return checked(body, {}).thinking;
}

void Conversation::set(const std::string& name, Json value) {
  if (value.is_null()) {
    body_.erase(name);
  } else {
    body_[name] = std::move(value);
  }
}

void Conversation::add_user(std::string text, const std::vector<Attachment>& attachments) {
  body_.erase("continue_final_message");
  Json content = std::move(text);
  if (!attachments.empty()) {
    Json parts = Json::array();
    for (const Attachment& attachment : attachments) {
      const char* type = attachment.video ? "video_url" : "image_url";
      parts.push_back({{"type", type}, {type, {{"url", attachment.url}}}});
    }
    parts.push_back({{"type", "text"}, {"text", std::move(content)}});
    content = std::move(parts);
  }
  messages().push_back({{"role", "user"}, {"content", std::move(content)}});
}

void Conversation::add_reply(const ParsedOutput& reply, bool stopped) {
  const bool calls = !stopped && !reply.calls.empty();
  if (reply.content.empty() && reply.reasoning.empty() && !calls) return;
  Json message;
  // A message that was begun is completed.
  if (body_.value("continue_final_message", Json()) == Json(true)) {
    message = messages().back();
    messages().erase(messages().size() - 1);
    body_.erase("continue_final_message");
    message["content"] = text_of(message.value("content", Json())) + reply.content;
  } else {
    message = {{"role", "assistant"}, {"content", reply.content}};
  }
  if (!reply.reasoning.empty()) message["reasoning_content"] = reply.reasoning;
  std::set<std::string> taken;
  for (const Json& earlier : messages()) {
    for (const Json& call : list_member(earlier, "tool_calls")) taken.insert(string_member(call, "id"));
  }
  for (const ParsedCall& call : calls ? reply.calls : std::vector<ParsedCall>()) {
    std::size_t number = taken.size() + 1;
    while (taken.contains(fmt::format("call_{}", number))) ++number;
    const std::string id = fmt::format("call_{}", number);
    taken.insert(id);
    message["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  messages().push_back(std::move(message));
}

std::vector<Conversation::OpenCall> Conversation::open_calls() const {
  std::size_t end = messages().size();
  while (end > 0 && role_of(messages()[end - 1]) == "tool") --end;
  if (end == 0) return {};
  std::vector<OpenCall> open;
  for (const Json& call : list_member(messages()[end - 1], "tool_calls")) {
    const auto function = call.find("function");
    const bool nested = function != call.end() && function->is_object();
    open.push_back({string_member(call, "id"), string_member(nested ? *function : call, "name")});
  }
  for (std::size_t i = end; i < messages().size() && !open.empty(); ++i) {
    const std::string id = string_member(messages()[i], "tool_call_id");
    const auto answered = std::ranges::find(open, id, &OpenCall::id);
    open.erase(answered == open.end() ? open.begin() : answered);
  }
  return open;
}

void Conversation::add_result(std::string text) {
  const std::vector<OpenCall> open = open_calls();
  if (open.empty()) fail("no call waits for a result");
  Json message = {{"role", "tool"}};
  if (!open.front().id.empty()) message["tool_call_id"] = open.front().id;
  message["content"] = std::move(text);
  messages().push_back(std::move(message));
}

bool Conversation::awaits_reply() const {
  if (messages().empty() || !open_calls().empty()) return false;
  const std::string last = role_of(messages().back());
  return last == "user" || last == "tool" || body_.value("continue_final_message", Json()) == Json(true);
}

bool Conversation::undo() {
  std::size_t end = messages().size();
  while (end > 0 && role_of(messages()[end - 1]) != "user") --end;
  if (end == 0) return false;
  body_.erase("continue_final_message");
  messages().erase(messages().begin() + static_cast<std::ptrdiff_t>(end) - 1, messages().end());
  return true;
}

bool Conversation::drop_reply() {
  Json& all = messages();
  std::size_t end = all.size();
  if (!open_calls().empty()) {
    while (end > 0 && role_of(all[end - 1]) == "tool") --end;
  }
  while (end > 0 && role_of(all[end - 1]) == "assistant") --end;
  if (end == 0 || is_system(role_of(all[end - 1]))) return false;
  body_.erase("continue_final_message");
  all.erase(all.begin() + static_cast<std::ptrdiff_t>(end), all.end());
  return true;
}

void Conversation::clear() {
  Json kept = Json::array();
  for (const Json& message : messages()) {
    if (is_system(role_of(message))) kept.push_back(message);
  }
  messages() = std::move(kept);
  body_.erase("continue_final_message");
}

std::size_t Conversation::size() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(messages(), [](const Json& message) { return !is_system(role_of(message)); }));
}

Value Conversation::value() const { return value_of(body_); }

ChatRequest Conversation::request() const { return checked(body_, {}); }

}  // namespace m3::chat
