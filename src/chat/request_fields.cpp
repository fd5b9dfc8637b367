#include "src/chat/request_fields.h"

#include <algorithm>
#include <array>

#include "src/base/error.h"
#include "src/chat/schema.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

// Of a request: a reply's calls look for theirs among them one by one.
constexpr std::size_t most_tools = 4096;

constexpr std::array<std::string_view, 7> efforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

std::optional<bool> read_flag(const Dict& dict, const char* name) {
  const Value* value = present(dict, name);
  if (value == nullptr) return std::nullopt;
  if (!value->is(Kind::boolean)) fail("{}: expected true or false, found {}", name, json_type(*value));
  return value->as_bool();
}

ThinkingMode read_mode(const Value& value, std::string_view path) {
  if (!value.is(Kind::string)) fail("{}: expected a string, found {}", path, json_type(value));
  if (const std::optional<ThinkingMode> mode = find_thinking_mode(value.bytes())) return *mode;
  fail("{}: unknown thinking mode '{}'; known are enabled, disabled and adaptive", path, shortened(value.bytes()));
}

// One of several fields that say the same; what two of them say must agree.
class ThinkingChoice {
 public:
  void set(ThinkingMode mode, const std::string& path) {
    if (mode_ && *mode_ != mode) {
      fail("{}: asks for thinking {}, but {} asks for {}", path, thinking_mode_name(mode), path_,
           thinking_mode_name(*mode_));
    }
    mode_ = mode;
    path_ = path;
  }
  std::optional<ThinkingMode> mode() const { return mode_; }

 private:
  std::optional<ThinkingMode> mode_;
  std::string path_;
};

void read_thinking(const Dict& body, const Dict& arguments, ThinkingChoice& choice) {
  if (const Value* mode = present(arguments, "thinking_mode")) {
    choice.set(read_mode(*mode, "chat_template_kwargs.thinking_mode"), "chat_template_kwargs.thinking_mode");
  }
  if (const Value* enable = present(arguments, "enable_thinking")) {
    const std::string path = "chat_template_kwargs.enable_thinking";
    if (!enable->is(Kind::boolean)) fail("{}: expected true or false, found {}", path, json_type(*enable));
    choice.set(enable->as_bool() ? ThinkingMode::enabled : ThinkingMode::disabled, path);
  }
  if (const Value* thinking = present(body, "thinking")) {
    if (!thinking->is(Kind::dict)) fail("thinking: expected an object, found {}", json_type(*thinking));
    if (const Value* type = present(thinking->as_dict(), "type"))
      choice.set(read_mode(*type, "thinking.type"), "thinking.type");
  }
  if (const Value* effort = present(body, "reasoning_effort")) {
    if (!effort->is(Kind::string)) fail("reasoning_effort: expected a string, found {}", json_type(*effort));
    if (std::find(efforts.begin(), efforts.end(), effort->bytes()) == efforts.end()) {
      fail("reasoning_effort: '{}' is unknown; known are none, minimal, low, medium, high, xhigh and max",
           shortened(effort->bytes()));
    }
    if (effort->bytes() == "none") choice.set(ThinkingMode::disabled, "reasoning_effort");
  }
}

void check_tool(const Value& tool, const std::string& path, std::vector<Tool>& parsed) {
  if (!tool.is(Kind::dict)) fail("{}: expected an object, found {}", path, json_type(tool));
  if (const Value* type = present(tool.as_dict(), "type")) {
    if (!type->is(Kind::string) || type->bytes() != "function") fail("{}.type: only 'function' is known", path);
  }
  const Value* function = present(tool.as_dict(), "function");
  if (function == nullptr) fail("{}.function: missing", path);
  if (!function->is(Kind::dict)) fail("{}.function: expected an object, found {}", path, json_type(*function));
  const Value* name = present(function->as_dict(), "name");
  if (name == nullptr || !name->is(Kind::string) || name->bytes().empty()) {
    fail("{}.function.name: a tool needs a name", path);
  }
  if (const Value* description = present(function->as_dict(), "description")) {
    if (!description->is(Kind::string)) {
      fail("{}.function.description: expected a string, found {}", path, json_type(*description));
    }
  }
  Tool out{name->bytes(), {}};
  if (const Value* parameters = present(function->as_dict(), "parameters")) {
    check_schema(*parameters, path + ".function.parameters");
    out.parameters = *parameters;
  }
  parsed.push_back(std::move(out));
}

void read_tools(const Dict& body, ChatRequest& request) {
  std::vector<Tool> parsed;
  request.tools = Value::none(Origin::message);
  if (const Value* tools = present(body, "tools")) {
    if (!tools->is(Kind::list)) fail("tools: expected a list, found {}", json_type(*tools));
    if (tools->items().size() > most_tools) {
      fail("tools: has {} items; at most {} are taken", tools->items().size(), most_tools);
    }
    for (std::size_t i = 0; i < tools->items().size(); ++i) {
      check_tool(tools->items()[i], fmt::format("tools[{}]", i), parsed);
    }
    if (!parsed.empty()) request.tools = *tools;
  }
  request.parsed_tools = std::make_shared<const std::vector<Tool>>(std::move(parsed));
}

ToolChoice read_tool_choice(const Value& choice, const std::vector<Tool>& tools) {
  using Choice = ToolChoice::Kind;
  if (choice.is(Kind::string)) {
    const std::string& word = choice.bytes();
    if (word == "auto") return {};
    if (word == "none") return {Choice::none, {}};
    if (word != "required") {
      fail("tool_choice: '{}' is unknown; known are none, auto, required and a named function", shortened(word));
    }
    if (tools.empty()) fail("tool_choice: 'required' needs tools");
    return {Choice::required, {}};
  }
  if (!choice.is(Kind::dict)) fail("tool_choice: expected a string or an object, found {}", json_type(choice));
  if (const Value* type = present(choice.as_dict(), "type")) {
    if (!type->is(Kind::string) || type->bytes() != "function") fail("tool_choice.type: only 'function' is known");
  }
  const Value* function = present(choice.as_dict(), "function");
  const Value* name = function != nullptr && function->is(Kind::dict) ? present(function->as_dict(), "name") : nullptr;
  if (name == nullptr || !name->is(Kind::string)) fail("tool_choice.function.name: expected a string");
  const bool known =
      std::any_of(tools.begin(), tools.end(), [&](const Tool& tool) { return tool.name == name->bytes(); });
  if (!known) fail("tool_choice.function.name: no tool is named '{}'", shortened(name->bytes()));
  return {Choice::named, name->bytes()};
}

// Whether a field asks for a form of the answer. What is wrong with such a field is for apply_reply_rules() to say.
bool asks_for_form(const Dict& body) {
  const auto dict = [&](const char* name) -> const Dict* {
    const Value* value = present(body, name);
    return value != nullptr && value->is(Kind::dict) ? &value->as_dict() : nullptr;
  };
  if (const Dict* format = dict("response_format")) {
    const Value* type = present(*format, "type");
    if (type != nullptr && type->is(Kind::string) && type->bytes() != "text") return true;
  }
  if (const Dict* outputs = dict("structured_outputs")) {
    const bool any = std::any_of(outputs->items.begin(), outputs->items.end(), [](const auto& item) {
      const Value& value = item.second;
      return !value.is(Kind::none) && !(value.is(Kind::boolean) && !value.as_bool());  // "json_object": false
    });
    if (any) return true;
  }
  constexpr std::array<const char*, 4> guided = {"guided_json", "guided_regex", "guided_choice", "guided_grammar"};
  return std::any_of(guided.begin(), guided.end(), [&](const char* name) { return present(body, name) != nullptr; });
}

}  // namespace

const Value* present(const Dict& dict, std::string_view name) {
  const Value* value = dict.find(name);
  return value == nullptr || value->is(Kind::none) ? nullptr : value;
}

const char* json_type(const Value& value) {
  switch (value.kind()) {
    case Kind::none: return "null";
    case Kind::boolean: return "a boolean";
    case Kind::integer:
    case Kind::big_integer:
    case Kind::floating: return "a number";
    case Kind::string: return "a string";
    case Kind::list: return "a list";
    default: return "an object";
  }
}

void read_request_fields(const Dict& body, ChatRequest& request) {
  read_tools(body, request);
  if (const Value* choice = present(body, "tool_choice")) {
    request.tool_choice = read_tool_choice(*choice, *request.parsed_tools);
  }
  if (asks_for_form(body)) {
    const bool calls = !request.parsed_tools->empty() && request.tool_choice.kind != ToolChoice::Kind::none;
    request.answer = calls ? AnswerForm::held_or_calls : AnswerForm::held;
  }
  request.parallel_tool_calls = read_flag(body, "parallel_tool_calls").value_or(true);
  auto arguments = std::make_shared<Dict>();
  if (const Value* given = present(body, "chat_template_kwargs")) {
    if (!given->is(Kind::dict)) fail("chat_template_kwargs: expected an object, found {}", json_type(*given));
    *arguments = given->as_dict();
  }
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}) {
    if (arguments->find(name) != nullptr) fail("chat_template_kwargs.{}: give it at the top of the request", name);
  }
  ThinkingChoice choice;
  read_thinking(body, *arguments, choice);
  request.thinking = choice.mode();
  Dict filled;
  for (const auto& [key, value] : arguments->items) {
    const bool empty_mode = key.bytes() == "thinking_mode" && value.is(Kind::none);
    if (!empty_mode) filled.set(key, value);
  }
  if (request.thinking)
    filled.set(Value::string("thinking_mode"), Value::string(thinking_mode_name(*request.thinking)));
  request.template_arguments = std::make_shared<const Dict>(std::move(filled));

  const std::optional<bool> generation = read_flag(body, "add_generation_prompt");
  request.continue_final_message = read_flag(body, "continue_final_message").value_or(false);
  if (request.continue_final_message && generation.value_or(false)) {
    fail("continue_final_message: contradicts add_generation_prompt; give one of them");
  }
  request.add_generation_prompt = generation.value_or(!request.continue_final_message);
}

}  // namespace m3::chat
