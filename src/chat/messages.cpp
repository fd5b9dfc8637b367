#include "src/chat/messages.h"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/chat/request_fields.h"
#include "src/chat/template/json.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

constexpr std::array<std::string_view, 6> roles = {"root", "system", "developer", "user", "assistant", "tool"};

bool is_system(std::string_view role) { return role == "system" || role == "developer"; }

std::string role_of(const Value& message) { return message.as_dict().find("role")->bytes(); }

Value text_value(std::string text) { return Value::string(std::move(text), Origin::message); }

// A content part with its type in the template's words.
Value normalize_part(const Value& part, const std::string& path, bool tool) {
  if (part.is(Kind::string)) return part;
  if (!part.is(Kind::dict)) fail("{}: expected a content part (an object), found {}", path, json_type(part));
  const Dict& dict = part.as_dict();
  const Value* type = dict.find("type");
  if (type == nullptr && tool && dict.find("output") != nullptr) return part;
  if (type == nullptr || !type->is(Kind::string)) fail("{}.type: expected a string", path);
  std::string name = type->bytes();
  if (name == "text") {
    const Value* text = dict.find("text");
    if (text == nullptr || !text->is(Kind::string)) fail("{}.text: expected a string", path);
    return part;
  }
  if (name == "input_image" || name == "input_video") name.erase(0, 6);
  if (name == "image_url" || name == "video_url") name.resize(5);
  if (name != "image" && name != "video") {
    fail(
        "{}.type: unknown part type '{}'; known are text, image_url, image, input_image, video_url, video and "
        "input_video",
        path, shortened(name));
  }
  auto out = std::make_shared<Dict>();
  for (const auto& [key, value] : dict.items) out->set(key, key.bytes() == "type" ? text_value(name) : value);
  return Value::dict(std::move(out), Origin::message);
}

Value normalize_content(const Value& content, const std::string& path, bool tool) {
  if (content.is(Kind::string)) return content;
  if (!content.is(Kind::list)) fail("{}: expected a string or a list of parts, found {}", path, json_type(content));
  std::vector<Value> parts;
  for (std::size_t i = 0; i < content.items().size(); ++i) {
    parts.push_back(normalize_part(content.items()[i], fmt::format("{}[{}]", path, i), tool));
  }
  return Value::list(std::move(parts), Origin::message);
}

Value normalize_arguments(const Value* arguments, const std::string& path) {
  Value none = Value::dict(std::make_shared<Dict>(), Origin::message);
  if (arguments == nullptr || arguments->is(Kind::none)) return none;
  if (arguments->is(Kind::dict)) return *arguments;
  if (!arguments->is(Kind::string)) {
    fail("{}: expected an object or its JSON text, found {}", path, json_type(*arguments));
  }
  if (trim_spaces(arguments->bytes()).empty()) return none;
  Value parsed = parse_json(arguments->bytes(), path);
  if (!parsed.is(Kind::dict)) fail("{}: the JSON text holds {}, not an object", path, json_type(parsed));
  return parsed;
}

// A copy of a dict with one member replaced or added.
Value with_member(const Dict& dict, const char* name, Value value) {
  auto out = std::make_shared<Dict>(dict);
  out->set(text_value(name), std::move(value));
  return Value::dict(std::move(out), Origin::message);
}

Value normalize_call(const Value& call, const std::string& path) {
  if (!call.is(Kind::dict)) fail("{}: expected an object, found {}", path, json_type(call));
  const Value* id = call.as_dict().find("id");
  if (id != nullptr && !id->is(Kind::string) && !id->is(Kind::none)) {
    fail("{}.id: expected a string, found {}", path, json_type(*id));
  }
  const Value* function = call.as_dict().find("function");
  const bool nested = function != nullptr && !function->is(Kind::none);
  const Value& target = nested ? *function : call;
  const std::string where = nested ? path + ".function" : path;
  if (!target.is(Kind::dict)) fail("{}: expected an object, found {}", where, json_type(target));
  const Value* name = target.as_dict().find("name");
  if (name == nullptr || !name->is(Kind::string) || name->bytes().empty()) {
    fail("{}.name: a tool call needs the name of its tool", where);
  }
  Value arguments = normalize_arguments(target.as_dict().find("arguments"), where + ".arguments");
  Value filled = with_member(target.as_dict(), "arguments", std::move(arguments));
  return nested ? with_member(call.as_dict(), "function", std::move(filled)) : filled;
}

Value normalize_calls(const Value& calls, const std::string& path) {
  if (!calls.is(Kind::list)) fail("{}: expected a list, found {}", path, json_type(calls));
  std::vector<Value> out;
  for (std::size_t i = 0; i < calls.items().size(); ++i) {
    out.push_back(normalize_call(calls.items()[i], fmt::format("{}[{}]", path, i)));
  }
  return Value::list(std::move(out), Origin::message);
}

// reasoning_content under any of its names.
void add_reasoning(Dict& message, const Dict& given, const std::string& path) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const Value* value = given.find(name);
    if (value == nullptr || value->is(Kind::none)) continue;
    if (!value->is(Kind::string)) fail("{}.{}: expected a string, found {}", path, name, json_type(*value));
    message.set(text_value("reasoning_content"), *value);
    return;
  }
}

Value normalize_message(const Value& given, const std::string& path) {
  if (!given.is(Kind::dict)) fail("{}: expected an object, found {}", path, json_type(given));
  const Dict& dict = given.as_dict();
  const Value* role = dict.find("role");
  if (role == nullptr || !role->is(Kind::string)) fail("{}.role: expected a string", path);
  const std::string& name = role->bytes();
  if (std::find(roles.begin(), roles.end(), name) == roles.end()) {
    fail("{}.role: unknown role '{}'; known are root, system, developer, user, assistant and tool", path,
         shortened(name));
  }
  const bool assistant = name == "assistant", tool = name == "tool";
  const Value* legacy = dict.find("function_call");
  if (legacy != nullptr && !legacy->is(Kind::none)) {
    fail("{}.function_call: this old form is not known; give tool_calls", path);
  }
  auto out = std::make_shared<Dict>();
  for (const auto& [key, value] : dict.items) {
    if (value.is(Kind::none)) continue;
    const std::string& member = key.bytes();
    if (member == "content") {
      out->set(key, normalize_content(value, path + ".content", tool));
    } else if (member == "tool_calls") {
      if (!assistant) fail("{}.tool_calls: only assistant messages have tool calls", path);
      out->set(key, normalize_calls(value, path + ".tool_calls"));
    } else if (member == "tool_call_id" && !value.is(Kind::string)) {
      fail("{}.tool_call_id: expected a string, found {}", path, json_type(value));
    } else {
      out->set(key, value);
    }
  }
  if (assistant) add_reasoning(*out, dict, path);
  if (tool && out->find("content") == nullptr) out->set(text_value("content"), text_value(""));
  const bool speaks = assistant && (out->find("tool_calls") != nullptr || out->find("reasoning_content") != nullptr);
  if (!speaks && !tool && dict.find("content") == nullptr) fail("{}.content: missing", path);
  return Value::dict(std::move(out), Origin::message);
}

bool is_absent(const Value* content) { return content == nullptr || !truthy(*content); }

// Contents one after another, with a blank line between them.
class JoinedContent {
 public:
  void add(const Value& content) {
    if (is_absent(&content)) return;
    if (++count_ == 1) only_ = content;
    const bool text = content.is(Kind::string);
    if (text && parts_.empty()) {
      if (count_ > 1) text_ += gap;
      text_ += content.bytes();
      return;
    }
    if (parts_.empty() && count_ > 1) parts_.push_back(text_value(text_));
    if (count_ > 1) parts_.push_back(text_value(gap));
    if (text) {
      parts_.push_back(content);
    } else {
      parts_.insert(parts_.end(), content.items().begin(), content.items().end());
    }
  }
  bool empty() const { return count_ == 0; }
  // One content alone stays as it is.
  Value value() && {
    if (count_ == 1) return only_;
    if (parts_.empty()) return text_value(text_);
    // The template takes bare strings as text, but others may not.
    for (Value& part : parts_) {
      if (!part.is(Kind::string)) continue;
      auto dict = std::make_shared<Dict>();
      dict->set(text_value("type"), text_value("text"));
      dict->set(text_value("text"), part);
      part = Value::dict(std::move(dict), Origin::message);
    }
    return Value::list(std::move(parts_), Origin::message);
  }

 private:
  static constexpr const char* gap = "\n\n";
  std::size_t count_ = 0;
  Value only_;
  std::string text_;          // as long as all were strings
  std::vector<Value> parts_;  // from the first list on
};

// root first, then one message with all system text, then the conversation.
std::vector<Value> order_system_messages(const std::vector<Value>& messages, const ChatRequestOptions& options) {
  std::vector<Value> head, rest;
  std::optional<Value> developer;
  JoinedContent joined;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Value& message = messages[i];
    const std::string role = role_of(message);
    if (role == "root") {
      if (i > 0) fail("messages[{}].role: a root message may only stand first, once", i);
      head.push_back(message);
      continue;
    }
    if (!is_system(role)) {
      rest.push_back(message);
      continue;
    }
    const bool leads = i == head.size();
    if (!leads && options.refuse_late_system) {
      fail("messages[{}].role: a {} message behind the first is refused here", i, role);
    }
    if (!developer) developer = message;
    if (const Value* content = message.as_dict().find("content")) joined.add(*content);
  }
  if (developer && !joined.empty()) {
    developer = with_member(developer->as_dict(), "content", std::move(joined).value());
  }
  if (developer) head.push_back(*developer);
  head.insert(head.end(), rest.begin(), rest.end());
  return head;
}

std::string id_of(const Value& holder, const char* name) {
  const Value* id = holder.as_dict().find(name);
  return id != nullptr && id->is(Kind::string) ? id->bytes() : std::string();
}

// Calls that wait for their results, in order.
class OpenCalls {
 public:
  void add(std::string id) {
    const auto at = ids_.insert(ids_.end(), std::move(id));
    by_id_[*at].push_back(at);
  }
  // False: none of that id waits.
  bool take(const std::string& id) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) return false;
    ids_.erase(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) by_id_.erase(found);
    return true;
  }
  void take_first() { take(std::string(ids_.front())); }
  bool empty() const { return ids_.empty(); }
  std::size_t size() const { return ids_.size(); }
  const std::string& first() const { return ids_.front(); }

 private:
  std::list<std::string> ids_;
  std::unordered_map<std::string, std::list<std::list<std::string>::iterator>> by_id_;
};

// `more`: the model goes on behind the last message.
void check_tool_results(const std::vector<Value>& messages, bool more) {
  OpenCalls open;
  std::size_t asked_at = 0;
  const auto check_none_open = [&] {
    if (open.empty()) return;
    fail("messages[{}].tool_calls: {} of them without a result (the first has the id '{}'); each needs a tool message",
         asked_at, open.size(), shortened(open.first()));
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string role = role_of(messages[i]);
    if (is_system(role)) continue;  // it moves to the front
    if (role != "tool") {
      check_none_open();
      const Value* calls = messages[i].as_dict().find("tool_calls");
      if (calls == nullptr) continue;
      asked_at = i;
      for (const Value& call : calls->items()) open.add(id_of(call, "id"));
      continue;
    }
    const std::string id = id_of(messages[i], "tool_call_id");
    if (open.empty() && id.empty()) fail("messages[{}]: a tool result without a call before it", i);
    if (open.take(id)) continue;
    if (!id.empty()) {
      fail("messages[{}].tool_call_id: no open call of the assistant message before it has the id '{}'", i,
           shortened(id));
    }
    open.take_first();
  }
  if (more || asked_at + 1 < messages.size()) check_none_open();
}

void check_continued(const std::vector<Value>& messages) {
  const std::size_t last = messages.size() - 1;
  const std::string role = role_of(messages[last]);
  if (role != "assistant") {
    fail("continue_final_message: messages[{}] is of the role {}; only an assistant message can be continued", last,
         role);
  }
  const Value* calls = messages[last].as_dict().find("tool_calls");
  if (calls != nullptr && !calls->items().empty()) {
    fail("continue_final_message: messages[{}] has tool calls, so it is complete", last);
  }
}

// Calls `visit` with each content part of a message that is a picture or video, and its number.
template <typename Visit>
void for_each_media(const Value& message, Visit visit) {
  const Value* content = message.as_dict().find("content");
  if (content == nullptr || !content->is(Kind::list)) return;
  for (std::size_t i = 0; i < content->items().size(); ++i) {
    const Value& part = content->items()[i];
    const Value* type = part.is(Kind::dict) ? part.as_dict().find("type") : nullptr;
    if (type == nullptr || !type->is(Kind::string)) continue;
    if (type->bytes() == "image" || type->bytes() == "video") visit(i, part, type->bytes() == "video");
  }
}

// The prompt ends with the last text of a message that is continued.
void check_media_before_text(const std::vector<Value>& messages) {
  const Value& last = messages.back();
  std::size_t texts_end = 0;
  const Value* content = last.as_dict().find("content");
  if (content == nullptr || !content->is(Kind::list)) return;
  for (std::size_t i = 0; i < content->items().size(); ++i) {
    const Value& part = content->items()[i];
    if (part.is(Kind::dict) && part.as_dict().find("text") != nullptr) texts_end = i + 1;
  }
  for_each_media(last, [&](std::size_t i, const Value&, bool video) {
    if (i < texts_end) return;
    fail(
        "messages[{}].content[{}]: a {} behind the text that continue_final_message continues; put it before that text",
        messages.size() - 1, i, video ? "video" : "picture");
  });
}

// Those of `ordered`, under the paths that they had among `given`: parts keep their identity when messages move.
std::vector<MediaPart> find_media(const std::vector<Value>& given, const std::vector<Value>& ordered) {
  std::map<const void*, std::string> paths;
  for (std::size_t i = 0; i < given.size(); ++i) {
    for_each_media(given[i], [&](std::size_t number, const Value& part, bool) {
      paths.emplace(part.identity(), fmt::format("messages[{}].content[{}]", i, number));
    });
  }
  std::vector<MediaPart> media;
  for (const Value& message : ordered) {
    for_each_media(message, [&](std::size_t, const Value& part, bool video) {
      media.push_back({video, paths.at(part.identity()), part});
    });
  }
  return media;
}

}  // namespace

ChatRequest parse_chat_request(const Value& body, const ChatRequestOptions& options) try {
  if (!body.is(Kind::dict)) fail("the request: expected a JSON object, found {}", json_type(body));
  const Dict& dict = body.as_dict();
  const Value* messages = dict.find("messages");
  if (messages == nullptr) fail("messages: missing");
  if (!messages->is(Kind::list)) fail("messages: expected a list, found {}", json_type(*messages));
  if (messages->items().empty()) fail("messages: at least one message is needed");
  std::vector<Value> normalized;
  for (std::size_t i = 0; i < messages->items().size(); ++i) {
    normalized.push_back(normalize_message(messages->items()[i], fmt::format("messages[{}]", i)));
  }
  ChatRequest request;
  read_request_fields(dict, request);
  if (request.continue_final_message) {
    check_continued(normalized);
    check_media_before_text(normalized);
  }
  if (options.check_tool_results) check_tool_results(normalized, request.add_generation_prompt);
  std::vector<Value> ordered = order_system_messages(normalized, options);
  request.media = find_media(normalized, ordered);
  request.messages = Value::list(std::move(ordered), Origin::message);
  return request;
} catch (const Fault& problem) {
  fail("the request: {}", problem.what);  // nested too deep once arguments are in their place
}

}  // namespace m3::chat
