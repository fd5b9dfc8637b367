#include "src/chat/reply_rules.h"

#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/chat/request_fields.h"
#include "src/chat/template/json.h"
#include "src/chat/tool_grammar.h"
#include "src/grammar/json_rules.h"
#include "src/grammar/syntax.h"
#include "src/tokenizer/utf8.h"

namespace m3::chat {
namespace {

std::string text_of(const Value& value, const std::string& path) {
  if (!value.is(Kind::string)) fail("{}: expected a string, found {}", path, json_type(value));
  return value.bytes();
}

const Dict& dict_of(const Value& value, const std::string& path) {
  if (!value.is(Kind::dict)) fail("{}: expected an object, found {}", path, json_type(value));
  return value.as_dict();
}

bool flag_of(const Value& value, const std::string& path) {
  if (!value.is(Kind::boolean)) fail("{}: expected true or false, found {}", path, json_type(value));
  return value.as_bool();
}

std::string json_text(const Value& value) { return to_json(value, {}).bytes(); }

// The one form that the whole reply has, from whichever field asks for it.
class Form {
 public:
  void set(Constraint constraint, const std::string& path) {
    if (!path_.empty()) fail("{}: {} already says what the reply looks like; give one of them", path, path_);
    constraint_ = std::move(constraint);
    constraint_.name = path;
    path_ = path;
  }
  void grammar(std::string text, const std::string& path) {
    grammar::check_grammar(text, path);
    set({Constraint::Kind::grammar, std::move(text), {}}, path);
  }
  void regex(std::string text, const std::string& path) {
    grammar::check_regex(text, path);
    set({Constraint::Kind::regex, std::move(text), {}}, path);
  }
  // A schema, as an object or as its JSON text.
  void schema(const Value& value, const std::string& path) {
    std::string text = grammar::json_schema_grammar(value.is(Kind::string) ? value.bytes() : json_text(value), path);
    set({Constraint::Kind::grammar, std::move(text), {}}, path);
  }
  void choices(const Value& value, const std::string& path) {
    if (!value.is(Kind::list) || value.items().empty()) fail("{}: expected a list of strings", path);
    Constraint constraint{Constraint::Kind::choice, {}, {}};
    for (const Value& choice : value.items()) constraint.choices.push_back(text_of(choice, path));
    set(std::move(constraint), path);
  }
  bool given() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  const Constraint& constraint() const { return constraint_; }

 private:
  Constraint constraint_;
  std::string path_;
};

void read_response_format(const Value& value, Form& form) {
  const std::string path = "response_format";
  const Dict& format = dict_of(value, path);
  const Value* type = present(format, "type");
  if (type == nullptr) fail("{}.type: missing", path);
  const std::string name = text_of(*type, path + ".type");
  if (name == "text") return;
  const Value* own_schema = present(format, "schema");
  if (name == "json_object") {
    // llama.cpp's clients give a schema here.
    if (own_schema != nullptr) return form.schema(*own_schema, path + ".schema");
    return form.set({Constraint::Kind::json_object, {}, {}}, path);
  }
  if (own_schema != nullptr) fail("{}.schema: only with the type json_object; give {}.json_schema.schema", path, path);
  if (name != "json_schema") {
    fail("{}.type: '{}' is unknown; known are text, json_object and json_schema", path, shortened(name));
  }
  const std::string inner = path + ".json_schema";
  const Value* holder = present(format, "json_schema");
  if (holder == nullptr) fail("{}: missing", inner);
  const Dict& described = dict_of(*holder, inner);
  if (const Value* strict = present(described, "strict")) flag_of(*strict, inner + ".strict");
  const Value* schema = present(described, "schema");
  if (schema == nullptr) fail("{}.schema: missing", inner);
  form.schema(*schema, inner + ".schema");
}

void read_structured_outputs(const Value& value, Form& form) {
  const std::string path = "structured_outputs";
  for (const auto& [key, member] : dict_of(value, path).items) {
    const std::string& name = key.bytes();
    const std::string inner = fmt::format("{}.{}", path, name);
    if (member.is(Kind::none)) continue;
    if (name == "json") {
      form.schema(member, inner);
    } else if (name == "json_object") {
      if (flag_of(member, inner)) form.set({Constraint::Kind::json_object, {}, {}}, inner);
    } else if (name == "regex") {
      form.regex(text_of(member, inner), inner);
    } else if (name == "grammar") {
      form.grammar(text_of(member, inner), inner);
    } else if (name == "choice") {
      form.choices(member, inner);
    } else {
      fail("{}: unknown; known are json, json_object, regex, choice and grammar", path + "." + shortened(name));
    }
  }
}

Form read_form(const Dict& body) {
  Form form;
  if (const Value* format = present(body, "response_format")) read_response_format(*format, form);
  if (const Value* outputs = present(body, "structured_outputs")) read_structured_outputs(*outputs, form);
  if (const Value* schema = present(body, "guided_json")) form.schema(*schema, "guided_json");
  if (const Value* regex = present(body, "guided_regex")) {
    form.regex(text_of(*regex, "guided_regex"), "guided_regex");
  }
  if (const Value* choices = present(body, "guided_choice")) form.choices(*choices, "guided_choice");
  if (const Value* grammar = present(body, "guided_grammar")) {
    form.grammar(text_of(*grammar, "guided_grammar"), "guided_grammar");
  }
  return form;
}

ToolRules read_tool_rules(const Dict& body, const ChatRequest& chat) {
  ToolRules rules{chat.tool_choice, chat.parallel_tool_calls, {}, {}};
  const std::vector<Tool>& tools = *chat.parsed_tools;
  const Value* listed = present(body, "tools");
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Dict& function = listed->items()[i].as_dict().find("function")->as_dict();
    const Value* strict = present(function, "strict");
    if (strict != nullptr && flag_of(*strict, fmt::format("tools[{}].function.strict", i))) {
      rules.strict.push_back(tools[i].name);
    }
  }
  return rules;
}

// The grammar of a form that tools stand beside.
std::string grammar_of(const Form& form) {
  const Constraint& constraint = form.constraint();
  switch (constraint.kind) {
    case Constraint::Kind::json_object: return grammar::json_object_grammar();
    case Constraint::Kind::grammar: return constraint.text;
    case Constraint::Kind::choice: return grammar::choice_grammar(constraint.choices);
    default: return fmt::format("root ::= {}\n", grammar::regex(constraint.text));
  }
}

std::optional<std::int64_t> read_budget(const Dict& body, const ChatRequest& chat) {
  std::optional<std::int64_t> budget;
  std::string given;
  const auto read = [&](const Value* value, const std::string& path) {
    if (value == nullptr) return;
    if (!value->is(Kind::integer) || value->as_int() < 0) fail("{}: expected a whole number from 0", path);
    if (budget && *budget != value->as_int()) fail("{}: {} says {}", path, given, *budget);
    budget = value->as_int();
    given = path;
  };
  read(present(body, "thinking_budget"), "thinking_budget");
  read(present(body, "thinking_token_budget"), "thinking_token_budget");
  if (const Value* thinking = present(body, "thinking")) {
    read(present(thinking->as_dict(), "budget_tokens"), "thinking.budget_tokens");
  }
  if (budget && chat.mode() == ThinkingMode::disabled)
    fail("{}: thinking is disabled, so there is nothing to limit", given);
  return budget;
}

}  // namespace

void apply_reply_rules(const Value& body, const ChatRequest& chat, const Tokenizer& tokenizer, Request& request) {
  const Dict& fields = dict_of(body, "the request");
  const Form form = read_form(fields);
  ToolRules rules = read_tool_rules(fields, chat);
  const auto choice = rules.choice.kind;
  const bool forced = choice == ToolChoice::Kind::required || choice == ToolChoice::Kind::named;
  if (form.given() && forced) fail("{}: contradicts tool_choice, which asks for a call", form.path());
  request.constraint = form.constraint();
  if (!chat.parsed_tools->empty() && !(form.given() && choice == ToolChoice::Kind::none)) {
    if (form.given()) rules.otherwise = grammar_of(form);
    if (auto text = tool_grammar(*chat.parsed_tools, rules)) {
      request.constraint = {Constraint::Kind::grammar, std::move(*text), {}, form.given() ? form.path() : "tools"};
    }
  }

  request.reasoning = {};
  request.reasoning.budget = read_budget(fields, chat);
  if (chat.mode() == ThinkingMode::disabled || chat.continue_final_message) return;
  request.reasoning.start = chat.mode() == ThinkingMode::enabled ? Reasoning::Start::inside : Reasoning::Start::either;
  request.reasoning.begin_id = tokenizer.id_of("<mm:think>");
  request.reasoning.end_id = tokenizer.id_of("</mm:think>");
  const bool needed = request.constraint.kind != Constraint::Kind::none || request.reasoning.budget;
  if (needed && (request.reasoning.begin_id < 0 || request.reasoning.end_id < 0)) {
    fail(
        "the tokenizer has no <mm:think> and </mm:think>, so a reply cannot be constrained behind its reasoning; "
        "disable thinking");
  }
}

}  // namespace m3::chat
