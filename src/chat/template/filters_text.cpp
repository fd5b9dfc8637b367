// Filters that make text.
#include <algorithm>

#include "src/base/error.h"
#include "src/chat/template/filters.h"
#include "src/chat/template/interpreter.h"
#include "src/chat/template/json.h"
#include "src/chat/template/string_case.h"
#include "src/chat/template/unicode.h"

namespace m3::chat {
namespace {

bool is_markup(const Value& value) { return value.is(Kind::string) && value.as_string().markup; }

template <Text (*convert)(const Text&)>
Value converted(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("filter", arguments, {});
  const Text text = soft_text(input);
  interpreter.charge_bytes(text.size());
  return Value::string(convert(text), is_markup(input));
}

Value escape(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("escape", arguments, {});
  if (is_markup(input)) return input;
  // Adding to an empty markup string escapes, and is where the rule lives.
  return apply_binary(interpreter, "+", Value::string(Text(), true), Value::string(soft_text(input)));
}

Value force_escape(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  if (is_markup(input)) return input;
  return escape(interpreter, input, arguments);
}

Value safe(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("safe", arguments, {});
  return Value::string(soft_text(input), true);
}

Value string(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("string", arguments, {});
  return input.is(Kind::string) ? input : Value::string(soft_text(input));
}

Value trim(Interpreter&, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("trim", arguments, {"chars"});
  if (!given(bound[0])) return Value::string(strip(soft_text(input), Side::both, nullptr), is_markup(input));
  if (!bound[0]->is(Kind::string)) fault("trim needs its characters as a string");
  return Value::string(strip(soft_text(input), Side::both, &bound[0]->text()), is_markup(input));
}

Value replace(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("replace", arguments, {"old", "new", "count"}, 2);
  return Value::string(replace_text(interpreter, to_text(input), to_text(*bound[0]), to_text(*bound[1]),
                                    given(bound[2]) ? index_of(*bound[2]) : -1));
}

Value center(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("center", arguments, {"width"});
  const Value width = bound[0] ? *bound[0] : Value::integer(80);
  return call_string_method(interpreter, Value::string(soft_text(input)), "center", {{width}, {}});
}

Value format(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  if (!arguments.positional.empty() && !arguments.keywords.empty()) {
    fault("can't handle positional and keyword arguments at the same time");
  }
  Value values = Value::tuple(arguments.positional);
  if (!arguments.keywords.empty()) {
    auto dict = std::make_shared<Dict>();
    for (const auto& [name, value] : arguments.keywords) dict->set(Value::string(name), value);
    values = Value::dict(std::move(dict));
  }
  Text out = format_percent(soft_text(input), values);
  interpreter.charge_bytes(out.size());
  return Value::string(std::move(out));
}

Value indent(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("indent", arguments, {"width", "first", "blank"});
  if (!input.is(Kind::string)) {
    if (input.is(Kind::undefined)) fault(input.undefined_message());
    fault("indent needs a string, not ", type_name(input));
  }
  Text indention("    ", Origin::template_text);
  if (bound[0]) {
    if (bound[0]->is(Kind::string)) {
      indention = bound[0]->text();
    } else {
      const auto width = static_cast<std::size_t>(std::max<std::int64_t>(index_of(*bound[0]), 0));
      interpreter.charge_bytes(width);
      indention = Text(std::string(width, ' '), Origin::template_text);
    }
  }
  const bool first = bound[1] && truthy(*bound[1]), blank = bound[2] && truthy(*bound[2]);
  Text text = input.text();
  text.append("\n", Origin::template_text);
  const std::vector<Text> lines = split_lines(text, false);
  interpreter.charge_bytes(text.size() + lines.size() * indention.size());
  Text out;
  if (first) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", Origin::template_text);
      if (blank || !lines[i].empty()) out.append(indention);
    }
    out.append(lines[i]);
  }
  return Value::string(std::move(out), is_markup(input));
}

Value truncate(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::int64_t length = bound[0] ? index_of(*bound[0]) : 255;
  const Text end = bound[2] ? to_text(*bound[2]) : Text("...", Origin::template_text);
  const std::int64_t leeway = given(bound[3]) ? index_of(*bound[3]) : 5;
  const auto end_length = static_cast<std::int64_t>(count_code_points(end.bytes()));
  if (length < end_length) fault("truncate: expected length >= ", std::to_string(end_length));
  if (leeway < 0) fault("truncate: expected leeway >= 0");
  if (length_of(input) <= length + leeway) return input;
  if (!input.is(Kind::string)) fault("truncate needs a string, not ", type_name(input));
  const Text& text = input.text();
  Text kept = text.slice(0, byte_offset(text.bytes(), static_cast<std::size_t>(length - end_length)));
  if (!(bound[1] && truthy(*bound[1]))) {
    const std::size_t space = kept.bytes().rfind(' ');
    if (space != std::string::npos) kept = kept.slice(0, space);
  }
  kept.append(end);
  interpreter.charge_bytes(kept.size());
  return Value::string(std::move(kept));
}

Value word_count(Interpreter&, const Value& input, const CallArguments& arguments) {
  bind("wordcount", arguments, {});
  std::int64_t words = 0;
  bool inside = false;
  for (const char32_t c : Characters(soft_text(input)).points) {
    const bool word = c == '_' || is_alphabetic(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::integer(words);
}

Text quote_url(const Text& text, bool for_query) {
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text.bytes()[i]);
    const bool plain =
        std::isalnum(byte) || byte == '_' || byte == '.' || byte == '-' || byte == '~' || (byte == '/' && !for_query);
    if (plain && byte < 0x80) {
      out.append(text, i, i + 1);
    } else {
      out.append(for_query && byte == ' ' ? "+" : fmt::format("%{:02X}", byte), text.origin_at(i));
    }
  }
  return out;
}

Value url_encode(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  bind("urlencode", arguments, {});
  if (input.is(Kind::string) || !is_iterable(input)) return Value::string(quote_url(to_text(input), false));
  std::vector<std::pair<Value, Value>> pairs;
  if (input.is(Kind::dict)) {
    pairs = input.as_dict().items;
  } else {
    for (const Value& item : to_items(input)) {
      const auto pair = to_items(item);
      if (pair.size() != 2) fault("urlencode needs pairs");
      pairs.emplace_back(pair[0], pair[1]);
    }
  }
  Text out;
  for (const auto& [key, value] : pairs) {
    if (!out.empty()) out.append("&", Origin::template_text);
    out.append(quote_url(to_text(key), true));
    out.append("=", Origin::template_text);
    out.append(quote_url(to_text(value), true));
    interpreter.charge_bytes(out.size() / 32);
  }
  return Value::string(std::move(out));
}

Value to_json_filter(Interpreter& interpreter, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound[0] && truthy(*bound[0]);
  style.sort_keys = bound[3] && truthy(*bound[3]);
  if (given(bound[1])) {
    if (bound[1]->is(Kind::string)) {
      style.indent = bound[1]->text();
    } else {
      const std::int64_t width = std::max<std::int64_t>(index_of(*bound[1]), 0);
      if (width > 1000) fault("tojson: an indent of more than 1000");
      style.indent = Text(std::string(static_cast<std::size_t>(width), ' '), Origin::template_text);
    }
    style.item_separator = Text(",", Origin::template_text);
  }
  if (given(bound[2])) {
    const std::vector<Value> separators = to_items(*bound[2]);
    const bool strings = separators.size() == 2 && separators[0].is(Kind::string) && separators[1].is(Kind::string);
    if (!strings) fault("tojson: separators must be two strings");
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  Text out = to_json(input, style);
  interpreter.charge_bytes(out.size());
  return Value::string(std::move(out));
}

Value file_size(Interpreter&, const Value& input, const CallArguments& arguments) {
  const auto bound = bind("filesizeformat", arguments, {"binary"});
  double bytes = 0;
  if (input.is_number()) {
    bytes = input.as_double();
  } else if (const auto parsed = input.is(Kind::string) ? parse_float(input.bytes()) : std::nullopt) {
    bytes = *parsed;
  } else {
    fault("filesizeformat needs a number");
  }
  const bool binary = bound[0] && truthy(*bound[0]);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base) return Value::string(fmt::format("{} Bytes", static_cast<std::int64_t>(bytes)));
  static constexpr std::string_view prefixes[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base * base;
  std::size_t i = 0;
  for (; i + 1 < std::size(prefixes) && bytes >= unit; ++i) unit *= base;
  const std::string prefix = binary && i == 0 ? "K" : std::string(prefixes[i]);
  return Value::string(fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
}

constexpr FilterEntry entries[] = {
    {"upper", converted<to_upper>},
    {"lower", converted<to_lower>},
    {"title", converted<to_filter_title>},
    {"capitalize", converted<to_capitalized>},
    {"escape", escape},
    {"e", escape},
    {"forceescape", force_escape},
    {"safe", safe},
    {"string", string},
    {"trim", trim},
    {"replace", replace},
    {"center", center},
    {"format", format},
    {"indent", indent},
    {"truncate", truncate},
    {"wordcount", word_count},
    {"urlencode", url_encode},
    {"tojson", to_json_filter},
    {"filesizeformat", file_size},
};

}  // namespace

std::span<const FilterEntry> text_filters() { return entries; }

}  // namespace m3::chat
