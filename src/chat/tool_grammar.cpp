#include "src/chat/tool_grammar.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "src/base/error.h"
#include "src/chat/template/json.h"
#include "src/grammar/json_rules.h"

namespace m3::chat {
namespace {

using grammar::choose;
using grammar::join;
using grammar::JsonRules;
using grammar::Parts;
using grammar::quote;
using grammar::Rules;
using grammar::Schema;
using grammar::Shape;
using grammar::Strictness;

constexpr std::string_view mark = "]<]minimax[>[";  // N: before every tag
constexpr std::size_t max_name = 512;               // bytes; the parser takes longer tags for text

// Text, of an argument or between calls: whatever does not hold the beginning of N in letters, "]<]".
constexpr std::string_view text_pattern = R"(([^\]]|\]+([^\]<]|<[^\]]))*(\]+<?)?)";

std::string tag(std::string_view body) { return fmt::format("{}<{}>", mark, body); }

// Whether a tag or an attribute can hold the name as it is.
bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= max_name && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '<' || c == '>' || c == ']' || c == '"' || static_cast<unsigned char>(c) < 0x20;
  });
}

void check_argument_name(const std::string& name, const std::string& path) {
  // The words by which the format tells calls apart.
  const bool taken = name == "tool_call" || name == "invoke" || name.starts_with("invoke ");
  if (is_plain(name) && !taken && name.front() != '/' && name.front() != ' ' && name.back() != ' ') return;
  fail("{}: M3's tool-call format cannot hold an argument of the name '{}'", path, name);
}

// The arguments of one tool as tags, typed the way arguments.cpp reads them back.
class ArgumentRules {
 public:
  ArgumentRules(const Schema& schema, Rules& rules, std::string prefix)
      : schema_(schema), rules_(rules), prefix_(std::move(prefix)), json_(schema, rules, prefix_ + "j", false) {}

  // An expression for all arguments.
  std::string arguments(const std::string& path) {
    std::vector<std::string> alternatives;
    for (const Shape& shape : schema_.shapes(schema_.root())) {
      if ((shape.kinds & grammar::kind_object) != 0 && !shape.values) alternatives.push_back(members(shape));
    }
    if (alternatives.empty()) fail("{}: the arguments of a tool are an object", path);
    return choose(alternatives);
  }

  void finish() {
    while (!waiting_.empty()) {
      const auto [name, parts] = std::move(waiting_.front());
      waiting_.pop_front();
      rules_.define(name, value_body(parts));
    }
    json_.finish();
  }

 private:
  std::string fresh() { return fmt::format("{}{}", prefix_, count_++); }

  std::string value(const Parts& parts) {
    if (parts.empty()) return "m3-text";
    const auto [found, added] = named_.emplace(Schema::key(parts), "");
    if (added) {
      found->second = fresh();
      waiting_.emplace_back(found->second, parts);
    }
    return found->second;
  }

  std::string value_body(const Parts& parts) {
    const std::vector<Shape> shapes = schema_.shapes(parts);
    unsigned kinds = 0;
    for (const Shape& shape : shapes) {
      kinds |= shape.values ? 0 : shape.kinds;
      if (!shape.values) continue;
      for (const grammar::Json& one : *shape.values) kinds |= grammar::kind_of(one);
    }
    std::vector<std::string> alternatives;
    for (const Shape& shape : shapes) {
      if (shape.values) {
        for (const grammar::Json& one : *shape.values) alternatives.push_back(literal(one, parts.front().path));
      } else {
        add_alternatives(shape, kinds, alternatives);
      }
    }
    return choose(alternatives);
  }

  static std::string literal(const grammar::Json& value, const std::string& path) {
    const std::string text = value.is_string() ? value.get<std::string>()
                                               : value.dump(-1, ' ', false, grammar::Json::error_handler_t::replace);
    if (text.find(mark) != std::string::npos) fail("{}: M3's tool-call format cannot hold the value '{}'", path, text);
    return quote(text);
  }

  // `kinds`: of all shapes of the value.
  void add_alternatives(const Shape& shape, unsigned kinds, std::vector<std::string>& alternatives) {
    // Without a type, text is read as a string.
    if (shape.kinds == grammar::kind_any) return alternatives.push_back(strings(shape, grammar::kind_string));
    if ((shape.kinds & grammar::kind_string) != 0) alternatives.push_back(strings(shape, kinds));
    if ((shape.kinds & grammar::kind_array) != 0) alternatives.push_back(items(shape));
    Shape written = shape;
    written.kinds &= grammar::kind_number | grammar::kind_boolean | grammar::kind_null;
    if ((shape.kinds & grammar::kind_object) != 0) {
      if (shape.properties.empty()) {
        written.kinds |= grammar::kind_object;  // names that are not known stand in JSON
      } else {
        alternatives.push_back(members(shape));
      }
    }
    if (written.kinds != 0) alternatives.push_back(json_.shape(written));
  }

  std::string strings(const Shape& shape, unsigned kinds) const {
    if (!shape.pattern.empty()) return grammar::regex(shape.pattern);
    if (!shape.format.empty()) return grammar::regex(grammar::format_pattern(shape.format));
    if (shape.min_length > 0 || shape.max_length) {
      // Counted and free of N: without the character that begins it.
      return fmt::format("m3-counted-text{{{},{}}}", shape.min_length,
                         shape.max_length ? std::to_string(*shape.max_length) : "");
    }
    // Where an object or a list is allowed too, text that looks like one is read as one.
    const bool beside = (kinds & (grammar::kind_object | grammar::kind_array)) != 0;
    return beside ? R"(("" | [^\[\]{ \t\r\n] m3-text))" : "m3-text";
  }

  std::string element(std::string_view name, const Parts& parts) {
    return fmt::format("{} {} {}", quote(tag(name)), value(parts), quote(tag(fmt::format("/{}", name))));
  }

  std::string members(const Shape& shape) {
    std::vector<std::string> sequence;
    for (const grammar::Property& property : shape.properties) {
      const std::string path = property.schemas.empty() ? prefix_ : property.schemas.front().path;
      check_argument_name(property.name, path);
      const std::string written = element(property.name, property.schemas);
      if (property.required) {
        sequence.push_back(written);
      } else {
        const std::string name = fresh();
        rules_.define(name, fmt::format("\"\" | {}", written));
        sequence.push_back(name);
      }
    }
    return join(sequence);
  }

  std::string items(const Shape& shape) {
    const auto count = static_cast<std::int64_t>(shape.prefix.size());
    std::string tail = "\"\"";
    if (shape.items && (!shape.max_items || *shape.max_items > count)) {
      const std::string most = shape.max_items ? std::to_string(*shape.max_items - count) : "";
      tail = fmt::format("({}){{{},{}}}", element("item", *shape.items),
                         std::max<std::int64_t>(0, shape.min_items - count), most);
    }
    for (std::int64_t i = count; i-- > 0;) {
      const std::string name = fresh();
      const std::string next = fmt::format("{} {}", element("item", shape.prefix[static_cast<std::size_t>(i)]), tail);
      const bool may_stop = i >= shape.min_items, may_go_on = !shape.max_items || i < *shape.max_items;
      std::string body = "\"\"";
      if (may_go_on) body = may_stop ? fmt::format("\"\" | {}", next) : next;
      rules_.define(name, body);
      tail = name;
    }
    return tail;
  }

  const Schema& schema_;
  Rules& rules_;
  std::string prefix_;
  JsonRules json_;
  std::size_t count_ = 0;
  std::map<std::string, std::string> named_;
  std::deque<std::pair<std::string, Parts>> waiting_;
};

// What stands in a call of this tool behind the beginning of its name. Names are branches of one rule, so that fifty
// tools are one state of the automaton where they agree and not fifty.
std::string call_body(const Tool& tool, std::size_t index, Strictness strictness, Rules& rules) {
  if (!is_plain(tool.name)) {
    fail("tools[{}].function.name: M3's tool-call format cannot hold the name '{}'", index, tool.name);
  }
  const std::string name = quote(fmt::format("{}\">", tool.name));
  if (!tool.parameters.is(Kind::dict)) return name;
  const std::string path = fmt::format("tools[{}].function.parameters", index);
  const grammar::Json json = grammar::parse_schema(to_json(tool.parameters, {}).bytes(), path);
  const Schema schema(json, path, strictness);
  ArgumentRules made(schema, rules, fmt::format("m3-{}-", index));
  const std::string arguments = fmt::format("m3-arguments-{}", index);
  rules.define(arguments, made.arguments(path));
  made.finish();
  return join({name, arguments});
}

}  // namespace

std::optional<std::string> tool_grammar(const std::vector<Tool>& tools, const ToolRules& request) {
  using Choice = ToolChoice::Kind;
  const Choice choice = request.choice.kind;
  if (tools.empty()) return std::nullopt;
  if (choice == Choice::none) {
    return fmt::format("root ::= {}\n", grammar::regex(text_pattern));
  }
  if (choice == Choice::automatic && request.strict.empty() && request.otherwise.empty()) return std::nullopt;

  Rules rules;
  rules.define("m3-text", grammar::regex(text_pattern));
  rules.define("m3-counted-text", "[^\\]]");  // as json_rules.cpp has it
  std::vector<std::string> calls;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    if (choice == Choice::named && tools[i].name != request.choice.name) continue;
    const bool strict = std::find(request.strict.begin(), request.strict.end(), tools[i].name) != request.strict.end();
    calls.push_back(call_body(tools[i], i, strict ? Strictness::strict : Strictness::lenient, rules));
  }
  rules.define("m3-named", choose(calls));
  rules.define("m3-call", fmt::format("{} m3-named {}", quote(fmt::format("{}<invoke name=\"", mark)),
                                      quote(fmt::format("{}\n", tag("/invoke")))));
  const bool several = request.parallel && choice != Choice::named;
  // What stands behind the first N.
  rules.define("m3-block",
               fmt::format("\"<tool_call>\\n\" {} {}", several ? "m3-call+" : "m3-call", quote(tag("/tool_call"))));
  const std::string block = quote(mark) + " m3-block";
  std::string root;
  if (choice != Choice::automatic) {
    root = fmt::format("\"\\n\"{{0,2}} {}", block);
  } else if (!request.otherwise.empty()) {
    root = fmt::format("m3-form | \"\\n\"{{0,2}} {}", block);
  } else {
    root = fmt::format("m3-text ({} m3-text){}", block, request.parallel ? "*" : "?");
  }
  std::string text = fmt::format("root ::= {}\n{}", root, rules.text());
  if (choice == Choice::automatic && !request.otherwise.empty()) {
    text += grammar::rename_rule(request.otherwise, "root", "m3-form");
  }
  return text;
}

}  // namespace m3::chat
