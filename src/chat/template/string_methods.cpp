#include <algorithm>
#include <array>
#include <unordered_map>

#include "src/chat/template/builtins.h"
#include "src/chat/template/interpreter.h"
#include "src/chat/template/string_case.h"
#include "src/chat/template/unicode.h"

namespace m3::chat {
namespace {

constexpr auto npos = std::string::npos;

struct Call {
  Interpreter& interpreter;
  const Value& self;
  const std::string& name;
  const CallArguments& arguments;

  const Text& text() const { return self.text(); }
  std::vector<std::optional<Value>> bound(std::initializer_list<const char*> names, std::size_t required = 0) const {
    return bind(name.c_str(), arguments, names, required);
  }
  // A result of the same kind of string.
  Value result(Text out) const {
    interpreter.charge_bytes(out.size());
    return Value::string(std::move(out), self.as_string().markup);
  }
};

const Text& string_argument(const Call& call, const Value& value) {
  if (value.is(Kind::undefined)) fault(value.undefined_message());
  if (!value.is(Kind::string)) fault(call.name, "() needs a string, not ", type_name(value));
  return value.text();
}

std::int64_t optional_index(const std::optional<Value>& value, std::int64_t otherwise) {
  return value && !value->is(Kind::none) ? index_of(*value) : otherwise;
}

Value list_of(const Call& call, std::vector<Text> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (Text& part : parts) items.push_back(Value::string(std::move(part), call.self.as_string().markup));
  call.interpreter.charge(items.size());
  return Value::list(std::move(items), call.text().empty() ? Origin::template_text : call.text().origin_at(0));
}

// --- searching -----------------------------------------------------------------------------------------------------

// The bytes [begin, end) that start and end, in characters, select; npos for begin if start lies behind the end.
struct Window {
  std::size_t begin, end;
};

Window window_of(const Call& call, const std::optional<Value>& start, const std::optional<Value>& end) {
  const auto length = static_cast<std::int64_t>(call.self.as_string().length);
  std::int64_t from = optional_index(start, 0), to = optional_index(end, length);
  if (from < 0) from = std::max<std::int64_t>(from + length, 0);
  if (to < 0) to = std::max<std::int64_t>(to + length, 0);
  to = std::min(to, length);
  if (from > to) return {npos, 0};
  if (call.self.as_string().ascii) return {static_cast<std::size_t>(from), static_cast<std::size_t>(to)};
  return {byte_offset(call.text().bytes(), static_cast<std::size_t>(from)),
          byte_offset(call.text().bytes(), static_cast<std::size_t>(to))};
}

Value find(const Call& call, bool last, bool must) {
  const auto bound = call.bound({"sub", "start", "end"}, 1);
  const std::string& needle = string_argument(call, *bound[0]).bytes();
  const Window window = window_of(call, bound[1], bound[2]);
  std::size_t at = npos;
  if (window.begin != npos) {
    const std::string_view hay = std::string_view(call.text().bytes()).substr(0, window.end);
    if (!last) {
      at = hay.find(needle, window.begin);
    } else if (needle.size() <= hay.size()) {
      at = hay.rfind(needle);
      if (at != npos && at < window.begin) at = npos;
    }
  }
  if (at == npos) {
    if (must) fault("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<std::int64_t>(count_code_points(call.text().bytes().substr(0, at))));
}

Value count(const Call& call) {
  const auto bound = call.bound({"sub", "start", "end"}, 1);
  const std::string& needle = string_argument(call, *bound[0]).bytes();
  const Window window = window_of(call, bound[1], bound[2]);
  if (window.begin == npos) return Value::integer(0);
  const std::string_view hay = std::string_view(call.text().bytes()).substr(window.begin, window.end - window.begin);
  if (needle.empty()) return Value::integer(static_cast<std::int64_t>(count_code_points(hay)) + 1);
  std::int64_t found = 0;
  for (std::size_t at = hay.find(needle); at != npos; at = hay.find(needle, at + needle.size())) ++found;
  return Value::integer(found);
}

Value starts_or_ends(const Call& call, bool at_end) {
  const auto bound = call.bound({"prefix", "start", "end"}, 1);
  const Window window = window_of(call, bound[1], bound[2]);
  const std::string_view hay =
      window.begin == npos ? std::string_view()
                           : std::string_view(call.text().bytes()).substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Value& value) {
    const std::string& part = string_argument(call, value).bytes();
    if (window.begin == npos || part.size() > hay.size()) return false;
    return hay.substr(at_end ? hay.size() - part.size() : 0, part.size()) == part;
  };
  if (!bound[0]->is(Kind::tuple)) return Value::boolean(matches(*bound[0]));
  return Value::boolean(std::any_of(bound[0]->items().begin(), bound[0]->items().end(), matches));
}

// --- splitting and joining -----------------------------------------------------------------------------------------

std::vector<Text> split_space(const Text& text, std::int64_t limit, bool from_right) {
  const Characters characters(text);
  std::vector<Text> parts;
  const auto slice = [&](std::size_t begin, std::size_t end) {
    return text.slice(characters.starts[begin], characters.starts[end]);
  };
  const auto space = [&](std::size_t i) { return is_space(characters.points[i]); };
  if (!from_right) {
    std::size_t at = 0;
    while (true) {
      while (at < characters.size() && space(at)) ++at;
      if (at >= characters.size()) break;
      std::size_t end = at;
      if (limit >= 0 && static_cast<std::int64_t>(parts.size()) >= limit) {
        // What is left keeps its trailing white space.
        parts.push_back(slice(at, characters.size()));
        break;
      }
      while (end < characters.size() && !space(end)) ++end;
      parts.push_back(slice(at, end));
      at = end;
    }
    return parts;
  }
  std::size_t at = characters.size();
  while (true) {
    while (at > 0 && space(at - 1)) --at;
    if (at == 0) break;
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) >= limit) {
      parts.push_back(slice(0, at));
      break;
    }
    std::size_t begin = at;
    while (begin > 0 && !space(begin - 1)) --begin;
    parts.push_back(slice(begin, at));
    at = begin;
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Text> split_on(const Text& text, const std::string& separator, std::int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<Text> parts;
  if (!from_right) {
    std::size_t begin = 0;
    while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
      const std::size_t at = bytes.find(separator, begin);
      if (at == npos) break;
      parts.push_back(text.slice(begin, at));
      begin = at + separator.size();
    }
    parts.push_back(text.slice(begin, bytes.size()));
    return parts;
  }
  std::size_t end = bytes.size();
  while ((limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) && end >= separator.size()) {
    const std::size_t at = bytes.rfind(separator, end - separator.size());
    if (at == npos) break;
    parts.push_back(text.slice(at + separator.size(), end));
    end = at;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(const Call& call, bool from_right) {
  const auto bound = call.bound({"sep", "maxsplit"});
  const std::int64_t limit = bound[1] ? index_of(*bound[1]) : -1;
  call.interpreter.charge_bytes(call.text().size());
  if (!bound[0] || bound[0]->is(Kind::none)) return list_of(call, split_space(call.text(), limit, from_right));
  const std::string& separator = string_argument(call, *bound[0]).bytes();
  if (separator.empty()) fault("empty separator");
  return list_of(call, split_on(call.text(), separator, limit, from_right));
}

Value partition(const Call& call, bool from_right) {
  const auto bound = call.bound({"sep"}, 1);
  const Text& separator = string_argument(call, *bound[0]);
  if (separator.empty()) fault("empty separator");
  const Text& text = call.text();
  const std::size_t at = from_right ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
  const auto string = [&](Text part) { return Value::string(std::move(part), call.self.as_string().markup); };
  if (at == npos) {
    return from_right ? Value::tuple({string({}), string({}), call.self})
                      : Value::tuple({call.self, string({}), string({})});
  }
  const std::size_t end = at + separator.size();
  return Value::tuple({string(text.slice(0, at)), string(text.slice(at, end)), string(text.slice(end, text.size()))});
}

Value join(const Call& call) {
  const auto bound = call.bound({"iterable"}, 1);
  Text out;
  bool first = true;
  auto next = iterate(*bound[0]);
  while (auto item = next()) {
    if (!item->is(Kind::string)) fault("sequence item: expected str instance, ", type_name(*item), " found");
    if (!first) out.append(call.text());
    first = false;
    call.interpreter.charge_bytes(item->text().size() + call.text().size());
    out.append(item->text());
  }
  return call.result(std::move(out));
}

// --- the rest ------------------------------------------------------------------------------------------------------

Value pad(const Call& call, bool left, bool right) {
  const auto bound = call.bound({"width", "fillchar"}, 1);
  const std::int64_t width = index_of(*bound[0]);
  Text fill(" ", Origin::template_text);
  if (bound[1]) fill = string_argument(call, *bound[1]);
  if (count_code_points(fill.bytes()) != 1) fault("the fill character must be exactly one character long");
  const auto length = static_cast<std::int64_t>(call.self.as_string().length);
  if (width <= length) return call.self;
  const std::int64_t total = width - length;
  call.interpreter.charge_bytes(static_cast<std::size_t>(total) * fill.size());
  // str.center's rule for an odd remainder.
  const std::int64_t before = left && right ? total / 2 + (total & width & 1) : left ? total : 0;
  Text out;
  for (std::int64_t i = 0; i < before; ++i) out.append(fill);
  out.append(call.text());
  for (std::int64_t i = before; i < total; ++i) out.append(fill);
  return call.result(std::move(out));
}

Value zfill(const Call& call) {
  const auto bound = call.bound({"width"}, 1);
  const std::int64_t missing = index_of(*bound[0]) - static_cast<std::int64_t>(call.self.as_string().length);
  if (missing <= 0) return call.self;
  const Text& text = call.text();
  call.interpreter.charge_bytes(static_cast<std::size_t>(missing));
  const bool sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  Text out = text.slice(0, sign ? 1 : 0);
  out.append(std::string(static_cast<std::size_t>(missing), '0'), Origin::template_text);
  out.append(text, sign ? 1 : 0, text.size());
  return call.result(std::move(out));
}

Value expand_tabs(const Call& call) {
  const auto bound = call.bound({"tabsize"});
  const std::int64_t size = optional_index(bound[0], 8);
  const Text& text = call.text();
  Text out;
  std::int64_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = next_code_point(text.bytes(), at);
    if (c == '\t') {
      const std::int64_t spaces = size > 0 ? size - column % size : 0;
      call.interpreter.charge_bytes(static_cast<std::size_t>(spaces));
      out.append(std::string(static_cast<std::size_t>(spaces), ' '), text.origin_at(begin));
      column += spaces;
      continue;
    }
    out.append(text, begin, at);
    column = c == '\n' || c == '\r' ? 0 : column + 1;
  }
  return call.result(std::move(out));
}

Value strip_call(const Call& call, Side side) {
  const auto bound = call.bound({"chars"});
  if (!bound[0] || bound[0]->is(Kind::none)) return call.result(strip(call.text(), side, nullptr));
  return call.result(strip(call.text(), side, &string_argument(call, *bound[0])));
}

Value remove(const Call& call, bool suffix) {
  const auto bound = call.bound({"part"}, 1);
  const std::string& part = string_argument(call, *bound[0]).bytes();
  const Text& text = call.text();
  if (part.size() > text.size() || part.empty()) return call.self;
  const std::size_t at = suffix ? text.size() - part.size() : 0;
  if (text.bytes().compare(at, part.size(), part) != 0) return call.self;
  return call.result(suffix ? text.slice(0, at) : text.slice(part.size(), text.size()));
}

template <typename Test>
Value all_characters(const Call& call, Test&& test, bool of_empty = false) {
  call.bound({});
  const Characters characters(call.text());
  if (characters.size() == 0) return Value::boolean(of_empty);
  return Value::boolean(std::all_of(characters.points.begin(), characters.points.end(), test));
}

// isupper, islower: at least one cased character, and none of the other case.
Value has_case(const Call& call, bool upper) {
  call.bound({});
  bool found = false;
  for (const char32_t c : Characters(call.text()).points) {
    if ((upper ? is_lowercase(c) : is_uppercase(c)) || is_titlecase(c)) return Value::boolean(false);
    found = found || (upper ? is_uppercase(c) : is_lowercase(c));
  }
  return Value::boolean(found);
}

Value is_title(const Call& call) {
  call.bound({});
  bool found = false, after_cased = false;
  for (const char32_t c : Characters(call.text()).points) {
    if (is_uppercase(c) || is_titlecase(c)) {
      if (after_cased) return Value::boolean(false);
      after_cased = found = true;
    } else if (is_lowercase(c)) {
      if (!after_cased) return Value::boolean(false);
      found = true;
    } else {
      after_cased = false;
    }
  }
  return Value::boolean(found);
}

Value is_identifier(const Call& call) {
  call.bound({});
  const std::string& bytes = call.text().bytes();
  if (!is_ascii(bytes)) fault("isidentifier() of non-ASCII text is not supported");
  const bool start = !bytes.empty() && !std::isdigit(static_cast<unsigned char>(bytes[0]));
  return Value::boolean(
      start && std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; }));
}

Value format_map(const Call& call) {
  const auto bound = call.bound({"mapping"}, 1);
  if (!bound[0]->is(Kind::dict)) fault("format_map() needs a mapping");
  CallArguments arguments;
  for (const auto& [key, value] : bound[0]->as_dict().items) {
    if (key.is(Kind::string)) arguments.keywords.emplace_back(key.bytes(), value);
  }
  return call.result(format_braces(call.interpreter, call.text(), arguments));
}

using Method = Value (*)(const Call&);

template <Text (*convert)(const Text&)>
Value converted(const Call& call) {
  call.bound({});
  return call.result(convert(call.text()));
}

Value unsupported(const Call& call) { fault("the string method '", call.name, "' is not supported"); }

Text apply_replace(const Call& call) {
  const auto bound = call.bound({"old", "new", "count"}, 2);
  string_argument(call, *bound[1]);
  // An escaped string escapes what it takes in; adding to an empty one does so.
  const Value replacement = call.self.as_string().markup
                                ? apply_binary(call.interpreter, "+", Value::string(Text(), true), *bound[1])
                                : *bound[1];
  return replace_text(call.interpreter, call.text(), string_argument(call, *bound[0]), replacement.text(),
                      bound[2] ? index_of(*bound[2]) : -1);
}

const std::unordered_map<std::string_view, Method>& methods() {
  static const std::unordered_map<std::string_view, Method> table = {
      {"upper", converted<to_upper>},
      {"lower", converted<to_lower>},
      {"title", converted<to_title>},
      {"capitalize", converted<to_capitalized>},
      {"swapcase", converted<swap_case>},
      {"casefold", converted<case_fold>},
      {"strip", [](const Call& c) { return strip_call(c, Side::both); }},
      {"lstrip", [](const Call& c) { return strip_call(c, Side::left); }},
      {"rstrip", [](const Call& c) { return strip_call(c, Side::right); }},
      {"split", [](const Call& c) { return split(c, false); }},
      {"rsplit", [](const Call& c) { return split(c, true); }},
      {"splitlines",
       [](const Call& c) {
         const auto bound = c.bound({"keepends"});
         return list_of(c, split_lines(c.text(), bound[0] && truthy(*bound[0])));
       }},
      {"partition", [](const Call& c) { return partition(c, false); }},
      {"rpartition", [](const Call& c) { return partition(c, true); }},
      {"join", join},
      {"replace", [](const Call& c) { return c.result(apply_replace(c)); }},
      {"find", [](const Call& c) { return find(c, false, false); }},
      {"rfind", [](const Call& c) { return find(c, true, false); }},
      {"index", [](const Call& c) { return find(c, false, true); }},
      {"rindex", [](const Call& c) { return find(c, true, true); }},
      {"count", count},
      {"startswith", [](const Call& c) { return starts_or_ends(c, false); }},
      {"endswith", [](const Call& c) { return starts_or_ends(c, true); }},
      {"removeprefix", [](const Call& c) { return remove(c, false); }},
      {"removesuffix", [](const Call& c) { return remove(c, true); }},
      {"center", [](const Call& c) { return pad(c, true, true); }},
      {"ljust", [](const Call& c) { return pad(c, false, true); }},
      {"rjust", [](const Call& c) { return pad(c, true, false); }},
      {"zfill", zfill},
      {"expandtabs", expand_tabs},
      {"format", [](const Call& c) { return c.result(format_braces(c.interpreter, c.text(), c.arguments)); }},
      {"format_map", format_map},
      {"isalpha", [](const Call& c) { return all_characters(c, is_alphabetic); }},
      {"isdigit", [](const Call& c) { return all_characters(c, is_digit); }},
      {"isdecimal", [](const Call& c) { return all_characters(c, is_decimal); }},
      {"isnumeric", [](const Call& c) { return all_characters(c, is_numeric); }},
      {"isspace", [](const Call& c) { return all_characters(c, is_space); }},
      {"isprintable", [](const Call& c) { return all_characters(c, is_printable, true); }},
      {"isascii",
       [](const Call& c) {
         return all_characters(
             c, [](char32_t p) { return p < 0x80; }, true);
       }},
      {"isalnum",
       [](const Call& c) {
         return all_characters(
             c, [](char32_t p) { return is_alphabetic(p) || is_decimal(p) || is_digit(p) || is_numeric(p); });
       }},
      {"isupper", [](const Call& c) { return has_case(c, true); }},
      {"islower", [](const Call& c) { return has_case(c, false); }},
      {"istitle", is_title},
      {"isidentifier", is_identifier},
      {"encode", unsupported},
      {"translate", unsupported},
      {"maketrans", unsupported},
  };
  return table;
}

}  // namespace

Text replace_text(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
                  std::int64_t limit) {
  const std::string& bytes = text.bytes();
  Text out;
  std::size_t begin = 0;
  std::int64_t done = 0;
  interpreter.charge_bytes(bytes.size());
  while (limit < 0 || done < limit) {
    std::size_t at = begin, behind = 0;
    if (old.empty()) {
      // An empty pattern matches before every character and at the end.
      if (done > 0) {
        if (begin >= bytes.size()) break;
        at = begin;
        next_code_point(bytes, at);
      }
      behind = at;
    } else {
      at = bytes.find(old.bytes(), begin);
      if (at == npos) break;
      behind = at + old.size();
    }
    interpreter.charge_bytes(out.size() / 64 + replacement.size());
    out.append(text, begin, at);
    out.append(replacement);
    begin = behind;
    ++done;
  }
  out.append(text, begin, bytes.size());
  interpreter.charge_bytes(out.size());
  return out;
}

bool has_string_method(std::string_view name) { return methods().count(name) != 0; }

Value call_string_method(Interpreter& interpreter, const Value& self, const std::string& name,
                         const CallArguments& arguments) {
  // On escaped strings these escape their arguments, which no chat template needs.
  static constexpr std::string_view escaping[] = {"join", "format", "format_map"};
  if (self.as_string().markup && std::find(std::begin(escaping), std::end(escaping), name) != std::end(escaping)) {
    fault("the method '", name, "' of an escaped string is not supported");
  }
  return methods().at(name)(Call{interpreter, self, name, arguments});
}

}  // namespace m3::chat
