#include "src/chat/template/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/chat/template/unicode.h"

namespace m3::chat {
namespace {

using nlohmann::json;

// Builds values while nlohmann reads; the text of a number is at hand here and nowhere else.
class Builder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return add(Value::none(Origin::message)); }
  bool boolean(bool value) override { return add(Value::boolean(value, Origin::message)); }
  bool number_integer(std::int64_t value) override { return add(Value::integer(value, Origin::message)); }
  bool number_unsigned(std::uint64_t value) override {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) {
      return add(Value::big_integer(std::to_string(value), Origin::message));
    }
    return add(Value::integer(static_cast<std::int64_t>(value), Origin::message));
  }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return add(Value::big_integer(text, Origin::message));
    return add(Value::floating(value, Origin::message));
  }
  bool string(std::string& value) override { return add(Value::string(std::move(value), Origin::message)); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool key(std::string& name) override {
    levels_.back().key = Value::string(std::move(name), Origin::message);
    return true;
  }
  bool end_object() override {
    Value value = Value::dict(std::move(levels_.back().dict), Origin::message);
    levels_.pop_back();
    return add(std::move(value));
  }
  bool end_array() override {
    Value value = Value::list(std::move(levels_.back().list), Origin::message);
    levels_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& exception) override {
    // nlohmann's own prefix names its exception class; what follows the second colon is for people.
    error_ = exception.what();
    const auto detail = error_.find("syntax error");
    if (detail != std::string::npos) {
      error_.erase(0, detail);
    } else if (error_.starts_with('[')) {
      error_.erase(0, error_.find(']') + 1);  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
      error_.erase(0, error_.find_first_not_of(' '));
    }
    std::replace(error_.begin(), error_.end(), '\n', ' ');
    error_ += fmt::format(" (byte {})", position);
    return false;
  }

  Value result;
  std::string& error() { return error_; }

 private:
  struct Level {
    bool object;
    std::shared_ptr<Dict> dict;
    std::vector<Value> list;
    Value key;
  };

  bool open(bool object) {
    if (levels_.size() + 2 > max_value_depth) {
      error_ = fmt::format("nested more than {} deep", max_value_depth - 1);
      return false;
    }
    levels_.push_back({object, object ? std::make_shared<Dict>() : nullptr, {}, {}});
    return true;
  }

  bool add(Value value) {
    if (levels_.empty()) {
      result = std::move(value);
    } else if (levels_.back().object) {
      levels_.back().dict->set(std::move(levels_.back().key), std::move(value));
    } else {
      levels_.back().list.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Level> levels_;
  std::string error_;
};

void write_string(Text& out, const Text& text, bool ensure_ascii) {
  const std::string& bytes = text.bytes();
  const Origin edge = bytes.empty() ? Origin::template_text : text.origin_at(0);
  out.append("\"", edge);
  std::size_t at = 0, plain = 0;
  while (at < bytes.size()) {
    const std::size_t begin = at;
    const auto byte = static_cast<unsigned char>(bytes[at]);
    std::string escaped;
    if (byte < 0x80) {
      ++at;
      switch (byte) {
        case '"': escaped = "\\\""; break;
        case '\\': escaped = "\\\\"; break;
        case '\n': escaped = "\\n"; break;
        case '\r': escaped = "\\r"; break;
        case '\t': escaped = "\\t"; break;
        case '\b': escaped = "\\b"; break;
        case '\f': escaped = "\\f"; break;
        default:
          if (byte >= 0x20 && !(ensure_ascii && byte == 0x7f)) continue;
          escaped = fmt::format("\\u{:04x}", byte);
      }
    } else {
      const auto c = static_cast<unsigned>(next_code_point(bytes, at));
      if (!ensure_ascii) continue;
      escaped = c < 0x10000 ? fmt::format("\\u{:04x}", c)
                            : fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10),
                                          0xdc00 + ((c - 0x10000) & 0x3ff));
    }
    out.append(text, plain, begin);
    out.append(escaped, text.origin_at(begin));
    plain = at;
  }
  out.append(text, plain, bytes.size());
  out.append("\"", edge);
}

class Writer {
 public:
  Writer(Text& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::none: return out_.append("null", value.origin());
      case Kind::boolean: return out_.append(value.as_bool() ? "true" : "false", value.origin());
      case Kind::integer: return out_.append(std::to_string(value.as_int()), value.origin());
      case Kind::big_integer: return out_.append(value.digits(), value.origin());
      case Kind::floating: return out_.append(number(value.as_double()), value.origin());
      case Kind::string: return write_string(out_, value.text(), style_.ensure_ascii);
      case Kind::list:
      case Kind::tuple: return write_list(value, level);
      case Kind::dict: return write_dict(value, level);
      default: fault("Object of type ", type_name(value), " is not JSON serializable");
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void new_line(int level, Origin origin) {
    if (!style_.indent) return;
    out_.append("\n", origin);
    for (int i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  void write_list(const Value& value, int level) {
    if (value.items().empty()) return out_.append("[]", value.origin());
    out_.append("[", value.origin());
    bool first = true;
    for (const Value& item : value.items()) {
      if (!first) separator(style_.item_separator, value.origin());
      first = false;
      new_line(level + 1, value.origin());
      write(item, level + 1);
    }
    new_line(level, value.origin());
    out_.append("]", value.origin());
  }

  void write_dict(const Value& value, int level) {
    std::vector<std::pair<Value, Value>> items = value.as_dict().items;
    if (items.empty()) return out_.append("{}", value.origin());
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return less(a.first, b.first); });
    }
    out_.append("{", value.origin());
    bool first = true;
    for (const auto& [key, item] : items) {
      if (!first) separator(style_.item_separator, value.origin());
      first = false;
      new_line(level + 1, value.origin());
      write_key(key);
      separator(style_.key_separator, value.origin());
      write(item, level + 1);
    }
    new_line(level, value.origin());
    out_.append("}", value.origin());
  }

  void write_key(const Value& key) {
    if (key.is(Kind::string)) return write_string(out_, key.text(), style_.ensure_ascii);
    if (!key.is_number() && !key.is(Kind::none)) {
      fault("keys must be str, int, float, bool or None, not ", type_name(key));
    }
    out_.append("\"", key.origin());
    write(key, 0);
    out_.append("\"", key.origin());
  }

  // The default separators belong to the value; others are text somebody chose.
  void separator(const Text& text, Origin origin) {
    if (text.has_one_origin() && (text.empty() || text.origin_at(0) == Origin::template_text)) {
      out_.append(text.bytes(), origin);
    } else {
      out_.append(text);
    }
  }

  Text& out_;
  const JsonStyle& style_;
};

}  // namespace

std::optional<Value> try_parse_json(std::string_view text, std::string& error) {
  Builder builder;
  if (json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.result);
  error = builder.error().empty() ? "not JSON" : builder.error();
  return std::nullopt;
}

Value parse_json(std::string_view text, std::string_view what) {
  std::string error;
  if (auto value = try_parse_json(text, error)) return std::move(*value);
  fail("{} is not valid JSON: {}", what, error);
}

Text to_json(const Value& value, const JsonStyle& style) {
  Text out;
  Writer(out, style).write(value, 0);
  return out;
}

}  // namespace m3::chat
