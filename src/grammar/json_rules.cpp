#include "src/grammar/json_rules.h"

#include <algorithm>

#include "src/base/error.h"

namespace m3::grammar {
namespace {

// Between tokens: nothing, a space, or a new line with its indentation. Never more, so that no model can go on writing
// blanks for ever.
constexpr std::string_view space_body = R"(("" | " " | "\n" {}{{0,64}}))";

// Rules that are repeated by counts have this in their names: the compiler keeps the count instead of copies
// (cmake/M3Xgrammar.cmake). Each tells by its own text where it ends.
constexpr std::string_view blank = "m3-counted-blank";
constexpr std::string_view character = "m3-counted-character";

// Escapes stand for whole characters: surrogates come in pairs.
constexpr std::string_view escape_pattern = R"(\\(["\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|)"
                                            R"([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))";

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

JsonRules::JsonRules(const Schema& schema, Rules& rules, std::string prefix, bool brackets)
    : schema_(schema), rules_(rules), prefix_(std::move(prefix)), brackets_(brackets) {}

std::string JsonRules::helper(std::string_view name) {
  helpers_.emplace(std::string(name), false);
  return prefix_ + std::string(name);
}

std::string JsonRules::fresh() { return fmt::format("{}{}", prefix_, count_++); }

std::string JsonRules::value(const Parts& parts) {
  if (parts.empty()) return helper("value");
  const auto [found, added] = named_.emplace(Schema::key(parts), "");
  if (added) {
    found->second = fresh();
    waiting_.emplace_back(found->second, parts);
  }
  return found->second;
}

std::string JsonRules::strings(const Shape& shape) {
  if (!shape.pattern.empty()) return fmt::format("\"\\\"\" Regex({}, json_string=true) \"\\\"\"", quote(shape.pattern));
  if (!shape.format.empty()) return "\"\\\"\" " + regex(format_pattern(shape.format)) + " \"\\\"\"";
  if (shape.min_length == 0 && !shape.max_length) return helper("string");
  const std::string most = shape.max_length ? std::to_string(*shape.max_length) : "";
  return fmt::format("\"\\\"\" {}{{{},{}}} \"\\\"\"", helper(character), shape.min_length, most);
}

std::string JsonRules::numbers(const Shape& shape) {
  const bool fractions = (shape.kinds & kind_fraction) != 0;
  if (fractions && shape.fraction_digits) return fixed_point_expression(*shape.fraction_digits);
  if (shape.multiple_of && *shape.multiple_of > 1) {
    const std::int64_t multiple = *shape.multiple_of;
    const std::string name = fresh();
    const auto rest = [&](std::int64_t remainder) { return fmt::format("{}-{}", name, remainder); };
    std::vector<std::string> first;
    for (std::int64_t remainder = 0; remainder < multiple; ++remainder) {
      std::vector<std::string> next;
      if (remainder == 0) next.emplace_back("\"\"");
      for (int digit = 0; digit < 10; ++digit) {
        next.push_back(fmt::format("\"{}\" {}", digit, rest((remainder * 10 + digit) % multiple)));
      }
      rules_.define(rest(remainder), choose(next));
    }
    for (int digit = 1; digit < 10; ++digit) first.push_back(fmt::format("\"{}\" {}", digit, rest(digit % multiple)));
    return fmt::format("\"-\"? (\"0\" | {})", choose(first));
  }
  if (fractions && !shape.low && !shape.high) return helper("number");
  const auto expression =
      fractions ? number_expression(shape.low, shape.high) : integer_expression(shape.low, shape.high);
  return expression.value_or("");
}

std::string JsonRules::array(const Shape& shape) {
  const std::string space = helper("space");
  const auto count = static_cast<std::int64_t>(shape.prefix.size());
  const auto element = [&](const Parts& parts) { return value(parts) + " " + space; };
  const auto comma = fmt::format("\",\" {} ", space);
  const auto most = [&](std::int64_t used) {
    return shape.max_items ? std::to_string(std::max<std::int64_t>(0, *shape.max_items - used)) : std::string();
  };
  // What may follow `count` elements.
  std::string tail = "\"\"";
  const bool room = !shape.max_items || *shape.max_items > count;
  if (shape.items && room) {
    const std::string item = element(*shape.items);
    const std::int64_t needed = std::max<std::int64_t>(0, shape.min_items - count);
    if (count > 0) {
      tail = fmt::format("({}{}){{{},{}}}", comma, item, needed, most(count));
    } else {
      tail = fmt::format("{} ({}{}){{{},{}}}", item, comma, item, std::max<std::int64_t>(0, needed - 1), most(1));
      if (needed == 0) tail = fmt::format("(\"\" | {})", tail);
    }
  }
  for (std::int64_t i = count; i-- > 0;) {
    std::string next = (i > 0 ? comma : "") + element(shape.prefix[static_cast<std::size_t>(i)]) + " " + tail;
    if (shape.max_items && i >= *shape.max_items) next = "\"\"";
    const std::string name = fresh();
    rules_.define(name, i >= shape.min_items ? fmt::format("\"\" | {}", next) : next);
    tail = name;
  }
  return fmt::format("\"[\" {} {} \"]\"", space, tail);
}

// Names, in quotes, that are none of the declared ones. No escapes, which could spell a declared name in another way.
std::string JsonRules::other_names(const Shape& shape) {
  if (shape.properties.empty()) return helper("string");
  struct Node {
    std::map<char32_t, std::size_t> next;
    bool name = false;
  };
  std::vector<Node> nodes(1);
  for (const Property& property : shape.properties) {
    std::size_t at = 0;
    for (const char32_t c : characters(property.name)) {
      const auto [found, added] = nodes[at].next.emplace(c, nodes.size());
      at = found->second;
      if (added) nodes.emplace_back();
    }
    nodes[at].name = true;
  }
  const std::string base = fresh();
  const std::string always = brackets_ ? R"("\\\x00-\x1f)" : R"("\\\]\x00-\x1f)";
  const std::string rest = base + "-rest";
  rules_.define(rest, fmt::format("[^{}]* \"\\\"\"", always));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::vector<std::string> alternatives;
    std::vector<char32_t> taken;
    if (!nodes[i].name) alternatives.emplace_back("\"\\\"\"");
    for (const auto& [c, next] : nodes[i].next) {
      taken.push_back(c);
      const bool plain = c >= 0x20 && c != '"' && c != '\\' && (brackets_ || c != ']');
      if (plain) alternatives.push_back(fmt::format("{} {}-{}", class_of(c), base, next));
    }
    alternatives.push_back(fmt::format("{} {}", class_without(taken, always), rest));
    rules_.define(fmt::format("{}-{}", base, i), choose(alternatives));
  }
  return fmt::format("\"\\\"\" {}-0", base);
}

std::string JsonRules::object(const Shape& shape) {
  const std::string space = helper("space");
  const auto comma = fmt::format("\",\" {} ", space);
  const auto member = [&](const std::string& name, const Parts& parts) {
    return fmt::format("{} {} \":\" {} {} {}", name, space, space, value(parts), space);
  };
  // What may follow where no member is written yet, and where some is.
  std::string first = "\"\"", later = "\"\"";
  if (shape.additional) {
    const std::string name = fresh();
    rules_.define(name, member(other_names(shape), *shape.additional));
    std::string most = shape.max_properties ? std::to_string(std::max<std::int64_t>(0, *shape.max_properties - 1)) : "";
    later = fmt::format("({}{}){{0,{}}}", comma, name, shape.properties.empty() ? most : "");
    first = fmt::format("{} {}", name, later);
    if (shape.min_properties == 0) first = fmt::format("(\"\" | {})", first);
    if (shape.max_properties && *shape.max_properties == 0) first = "\"\"";
  }
  const bool split = std::any_of(shape.properties.begin(), shape.properties.end(),
                                 [](const Property& property) { return !property.required; });
  for (std::size_t i = shape.properties.size(); i-- > 0;) {
    const Property& property = shape.properties[i];
    const std::string written = member(quote(dump(Json(property.name))), property.schemas);
    if (!split) {  // all are required: one sequence
      first = (i > 0 ? comma : "") + written + " " + (i + 1 == shape.properties.size() ? later : first);
      continue;
    }
    const std::string name = fresh();
    const std::string next_first = first, next_later = later;
    first = name + "-first";
    later = name + "-later";
    rules_.define(first, fmt::format("{} {}{}", written, next_later, property.required ? "" : " | " + next_first));
    rules_.define(later,
                  fmt::format("{}{} {}{}", comma, written, next_later, property.required ? "" : " | " + next_later));
  }
  return fmt::format("\"{{\" {} {} \"}}\"", space, first);
}

std::string JsonRules::shape(const Shape& shape) {
  std::vector<std::string> alternatives;
  if (shape.values) {
    for (const Json& value : *shape.values) alternatives.push_back(quote(dump(value)));
    return choose(alternatives);
  }
  if ((shape.kinds & kind_string) != 0) alternatives.push_back(strings(shape));
  if ((shape.kinds & kind_number) != 0) alternatives.push_back(numbers(shape));
  if ((shape.kinds & kind_object) != 0) alternatives.push_back(object(shape));
  if ((shape.kinds & kind_array) != 0) alternatives.push_back(array(shape));
  if ((shape.kinds & kind_boolean) != 0) alternatives.emplace_back("\"true\" | \"false\"");
  if ((shape.kinds & kind_null) != 0) alternatives.emplace_back("\"null\"");
  return choose(alternatives);
}

void JsonRules::finish() {
  while (!waiting_.empty()) {
    const auto [name, parts] = std::move(waiting_.front());
    waiting_.pop_front();
    std::vector<std::string> alternatives;
    for (const Shape& one : schema_.shapes(parts)) alternatives.push_back(shape(one));
    rules_.define(name, choose(alternatives));
  }
  const std::string plain = brackets_ ? R"([^"\\\x00-\x1f])" : R"([^"\\\]\x00-\x1f])";
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& [name, defined] : helpers_) {
      if (defined) continue;
      defined = changed = true;
      std::string body;
      if (name == "space") {
        body = fmt::format(space_body, helper(blank));
      } else if (name == blank) {
        body = R"([ \t])";
      } else if (name == character) {  // one code point, in whatever spelling
        body = plain + R"( | "\\" ["\\/bfnrt])";
      } else if (name == "string") {
        body = regex(fmt::format("\"({}|{})*\"", plain, escape_pattern));
      } else if (name == "number") {
        body = *number_expression({}, {});
      } else {
        Shape any;
        any.items = Parts();
        any.additional = Parts();
        body = shape(any);
      }
      rules_.define(prefix_ + name, body);
    }
  }
}

Json parse_schema(std::string_view text, const std::string& path) {
  constexpr std::size_t max_bytes = std::size_t{1} << 20;
  constexpr int max_nesting = 128;
  if (text.size() > max_bytes) fail("{}: more than {} MiB", path, max_bytes >> 20);
  bool deep = false;
  try {
    Json schema = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      deep = deep || depth > max_nesting;
      if (deep) fail("{}: nested deeper than {}", path, max_nesting);
      return true;
    });
    return schema;
  } catch (const Json::exception&) {
    fail("{}: not JSON", path);
  }
}

std::string json_schema_grammar(std::string_view text, const std::string& path, Strictness strictness) {
  const Json json = parse_schema(text, path);
  const Schema schema(json, path, strictness);
  Rules rules;
  JsonRules made(schema, rules, "v");
  const std::string root = made.value(schema.root());
  made.finish();
  return fmt::format("root ::= \"\\n\"{{0,2}} {}\n{}", root, rules.text());
}

std::string json_object_grammar() { return json_schema_grammar(R"({"type": "object"})", "json_object"); }

std::string choice_grammar(const std::vector<std::string>& choices) {
  std::vector<std::string> alternatives;
  for (const std::string& choice : choices) alternatives.push_back(quote(choice));
  return fmt::format("root ::= {}\n", choose(alternatives));
}

}  // namespace m3::grammar
