#include <algorithm>
#include <array>

#include "src/chat/template/interpreter.h"
#include "src/chat/template/unicode.h"

namespace m3::chat {

Value Interpreter::eval(const Expr& node, Frame& frame) {
  const Depth depth(*this);
  charge(1);
  at_ = node.at;
  switch (node.kind) {
    case ExprKind::constant: return node.constant;
    case ExprKind::name: return eval_name(node, frame);
    case ExprKind::namespace_target: break;
    case ExprKind::tuple:
    case ExprKind::list: {
      std::vector<Value> items;
      items.reserve(node.children.size());
      for (const auto& child : node.children) items.push_back(eval(*child, frame));
      return node.kind == ExprKind::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case ExprKind::dict: return eval_dict(node, frame);
    case ExprKind::attribute: {
      const Value object = eval(*node.children[0], frame);
      at_ = node.at;
      return attribute(object, node.text);
    }
    case ExprKind::item: {
      const Value object = eval(*node.children[0], frame);
      const Value key = eval(*node.children[1], frame);
      at_ = node.at;
      return item(object, key);
    }
    case ExprKind::slice: return eval_slice(node, frame);
    case ExprKind::call: return eval_call(node, frame, nullptr);
    case ExprKind::filter: return eval_filter(node, frame, nullptr);
    case ExprKind::test: {
      const Value value = eval(*node.children[0], frame);
      const CallArguments arguments = eval_arguments(node.arguments, frame);
      at_ = node.at;
      if (node.test_entry == nullptr) fault(unknown_test(node.text));
      return Value::boolean(node.test_entry->run(*this, value, arguments));
    }
    case ExprKind::unary: {
      const Value value = eval(*node.children[0], frame);
      at_ = node.at;
      if (node.text == "not") return Value::boolean(!truthy(value));
      return negate(value, node.text == "-");
    }
    case ExprKind::binary: {
      const Value left = eval(*node.children[0], frame);
      const Value right = eval(*node.children[1], frame);
      at_ = node.at;
      return apply_binary(*this, node.text, left, right);
    }
    case ExprKind::logical: {
      Value left = eval(*node.children[0], frame);
      if (truthy(left) == (node.text == "or")) return left;
      return eval(*node.children[1], frame);
    }
    case ExprKind::concat: return eval_concat(node, frame);
    case ExprKind::compare: return eval_compare(node, frame);
    case ExprKind::conditional:
      if (truthy(eval(*node.children[0], frame))) return eval(*node.children[1], frame);
      if (node.children[2]) return eval(*node.children[2], frame);
      return Value::undefined("an inline if without else was false");
  }
  fault("this expression cannot be evaluated");
}

Value Interpreter::eval_name(const Expr& node, Frame& frame) {
  const Value& value = slot(node.slot, frame);
  if (value.is(Kind::missing)) return Value::undefined("'" + node.text + "' is undefined");
  return value;
}

Value Interpreter::eval_dict(const Expr& node, Frame& frame) {
  auto dict = std::make_shared<Dict>();
  for (std::size_t i = 0; i + 1 < node.children.size(); i += 2) {
    Value key = eval(*node.children[i], frame);
    Value value = eval(*node.children[i + 1], frame);
    dict->set(std::move(key), std::move(value));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::eval_concat(const Expr& node, Frame& frame) {
  Text out;
  for (const auto& child : node.children) {
    const Value part = eval(*child, frame);
    at_ = node.at;
    if (part.is(Kind::string)) {
      charge_bytes(out.size() + part.text().size());
      out.append(part.text());
    } else {
      out.append(to_text(part));
    }
  }
  return Value::string(std::move(out));
}

Value Interpreter::eval_compare(const Expr& node, Frame& frame) {
  Value left = eval(*node.children[0], frame);
  for (std::size_t i = 0; i < node.operators.size(); ++i) {
    Value right = eval(*node.children[i + 1], frame);
    at_ = node.at;
    const std::string& op = node.operators[i];
    bool holds = false;
    if (op == "==") {
      holds = equal(left, right);
    } else if (op == "!=") {
      holds = !equal(left, right);
    } else if (op == "in") {
      holds = contains(right, left);
    } else if (op == "not in") {
      holds = !contains(right, left);
    } else {
      holds = order(op, left, right);
    }
    if (!holds || i + 1 == node.operators.size()) return Value::boolean(holds);
    left = std::move(right);
  }
  return Value::boolean(true);
}

namespace {

// Python's slice.indices(): start, stop and step made fit for `length`.
struct Bounds {
  std::int64_t start, stop, step;
};

Bounds slice_bounds(const std::array<Value, 3>& given, std::int64_t length) {
  const auto absent = [](const Value& value) { return value.is(Kind::none); };
  Bounds bounds{};
  bounds.step = absent(given[2]) ? 1 : index_of(given[2]);
  if (bounds.step == 0) fault("slice step cannot be zero");
  if (bounds.step < -length - 1) bounds.step = -length - 1;
  if (bounds.step > length + 1) bounds.step = length + 1;
  const bool back = bounds.step < 0;
  const std::int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
  const auto clamp = [&](const Value& value, std::int64_t otherwise) {
    if (absent(value)) return otherwise;
    std::int64_t index = index_of(value);
    if (index < 0) index = std::max<std::int64_t>(index, -length - 1) + length;
    return std::clamp(index, low, high);
  };
  bounds.start = clamp(given[0], back ? high : low);
  bounds.stop = clamp(given[1], back ? low : high);
  return bounds;
}

template <typename Visit>
void walk(const Bounds& bounds, Visit&& visit) {
  if (bounds.step > 0) {
    for (std::int64_t i = bounds.start; i < bounds.stop; i += bounds.step) visit(i);
  } else {
    for (std::int64_t i = bounds.start; i > bounds.stop; i += bounds.step) visit(i);
  }
}

Text slice_text(const String& string, const Bounds& bounds) {
  const Text& text = string.text;
  Text out;
  if (string.ascii) {
    if (bounds.step == 1) {
      if (bounds.start < bounds.stop) {
        out.append(text, static_cast<std::size_t>(bounds.start), static_cast<std::size_t>(bounds.stop));
      }
      return out;
    }
    walk(bounds,
         [&](std::int64_t i) { out.append(text, static_cast<std::size_t>(i), static_cast<std::size_t>(i) + 1); });
    return out;
  }
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < text.size();) {
    starts.push_back(at);
    next_code_point(text.bytes(), at);
  }
  starts.push_back(text.size());
  if (bounds.step == 1) {
    if (bounds.start < bounds.stop) {
      out.append(text, starts[static_cast<std::size_t>(bounds.start)], starts[static_cast<std::size_t>(bounds.stop)]);
    }
    return out;
  }
  walk(bounds, [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    out.append(text, starts[index], starts[index + 1]);
  });
  return out;
}

}  // namespace

Value Interpreter::eval_slice(const Expr& node, Frame& frame) {
  const Value object = eval(*node.children[0], frame);
  std::array<Value, 3> given = {Value::none(), Value::none(), Value::none()};
  for (std::size_t i = 0; i < 3; ++i) {
    if (node.children[i + 1]) given[i] = eval(*node.children[i + 1], frame);
  }
  at_ = node.at;
  switch (object.kind()) {
    case Kind::string: {
      const Bounds bounds = slice_bounds(given, length_of(object));
      charge_bytes(object.text().size());
      return Value::string(slice_text(object.as_string(), bounds), object.as_string().markup);
    }
    case Kind::list:
    case Kind::tuple:
    case Kind::range: {
      const Bounds bounds = slice_bounds(given, length_of(object));
      const std::vector<Value> items = to_items(object);
      charge(items.size());
      std::vector<Value> part;
      walk(bounds, [&](std::int64_t i) { part.push_back(items[static_cast<std::size_t>(i)]); });
      if (object.is(Kind::tuple)) return Value::tuple(std::move(part), object.origin());
      if (object.is(Kind::list)) return Value::list(std::move(part), object.origin());
      const Range& range = object.as<Range>();
      Range* cut = make<Range>();
      cut->start = range.start + bounds.start * range.step;
      cut->stop = range.start + bounds.stop * range.step;
      cut->step = range.step * bounds.step;
      return Value::object(Kind::range, cut);
    }
    case Kind::undefined: fault(object.undefined_message());
    default: fault("'", type_name(object), "' object cannot be sliced");
  }
}

CallArguments Interpreter::eval_arguments(const Arguments& arguments, Frame& frame) {
  CallArguments values;
  values.positional.reserve(arguments.positional.size());
  for (const auto& argument : arguments.positional) values.positional.push_back(eval(*argument, frame));
  if (arguments.star) {
    for (Value& item : to_items(eval(*arguments.star, frame))) values.positional.push_back(std::move(item));
  }
  for (const auto& [name, argument] : arguments.keywords) {
    Value value = eval(*argument, frame);
    values.keywords.emplace_back(name, std::move(value));
  }
  if (arguments.double_star) {
    const Value more = eval(*arguments.double_star, frame);
    if (!more.is(Kind::dict)) fault("argument after ** must be a mapping, not ", type_name(more));
    for (const auto& [key, value] : more.as_dict().items) {
      if (!key.is(Kind::string)) fault("keywords must be strings");
      for (const auto& keyword : values.keywords) {
        if (keyword.first == key.bytes()) fault("got multiple values for keyword argument '", key.bytes(), "'");
      }
      values.keywords.emplace_back(key.bytes(), value);
    }
  }
  return values;
}

Value Interpreter::eval_call(const Expr& node, Frame& frame, const Value* caller) {
  const Expr& callee = *node.children[0];
  const auto arguments_of = [&] {
    CallArguments arguments = eval_arguments(node.arguments, frame);
    if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
    at_ = node.at;
    return arguments;
  };
  if (callee.kind == ExprKind::attribute) {
    const Value object = eval(*callee.children[0], frame);
    at_ = callee.at;
    // The common case, without making a bound method first.
    if (object.is(Kind::string) && has_string_method(callee.text)) {
      return call_string_method(*this, object, callee.text, arguments_of());
    }
    const Value function = attribute(object, callee.text);
    return call(function, arguments_of());
  }
  const Value function = eval(callee, frame);
  return call(function, arguments_of());
}

Value Interpreter::eval_filter(const Expr& node, Frame& frame, const Text* block) {
  // In a filter block the innermost filter has no operand but the block's text.
  const Value input = node.children[0] == nullptr ? Value::string(*block)
                      : block != nullptr && node.children[0]->kind == ExprKind::filter
                          ? eval_filter(*node.children[0], frame, block)
                          : eval(*node.children[0], frame);
  const CallArguments arguments = eval_arguments(node.arguments, frame);
  at_ = node.at;
  charge(1);
  if (node.filter_entry == nullptr) fault(unknown_filter(node.text));
  return node.filter_entry->run(*this, input, arguments);
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
  switch (callee.kind()) {
    case Kind::macro: return call_macro(callee.as<Macro>(), arguments);
    case Kind::function: {
      const Function& function = callee.as<Function>();
      if (function.self) return call_method(*this, *function.self, function.name, arguments);
      return call_global(*this, function.name, arguments);
    }
    case Kind::loop: {
      const Loop& loop = callee.as<Loop>();
      if (loop.recursive == nullptr) fault("the loop must have the 'recursive' marker to be called");
      const auto bound = bind("loop", arguments, {"iterable"}, 1);
      if (++macro_depth_ > limits_.macro_depth) {
        fault("a loop calls itself more than ", std::to_string(limits_.macro_depth), " deep");
      }
      Text out;
      run_loop(*loop.recursive, *loop.frame, *bound[0], loop.depth0 + 1, out);
      --macro_depth_;
      return Value::string(std::move(out));
    }
    case Kind::helper: {
      Helper& helper = callee.as<Helper>();
      if (!helper.joiner) break;
      bind("joiner", arguments, {});
      if (helper.used) return helper.separator;
      helper.used = true;
      return Value::string("");
    }
    case Kind::undefined: fault(callee.undefined_message());
    default: break;
  }
  fault("'", type_name(callee), "' object is not callable");
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is(Kind::undefined)) fault(object.undefined_message());
  if (auto value = builtin_attribute(*this, object, name)) return std::move(*value);
  if (object.is(Kind::dict)) {
    if (const Value* value = object.as_dict().find(name)) return *value;
  }
  return Value::undefined(std::string("'") + type_name(object) + " object' has no attribute '" + name + "'");
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) fault(object.undefined_message());
  const bool index = key.is(Kind::integer) || key.is(Kind::boolean);
  switch (object.kind()) {
    case Kind::dict:
      if (!key.is(Kind::list) && !key.is(Kind::dict) && !key.is(Kind::view)) {
        if (const Value* value = object.as_dict().find(key)) return *value;
      }
      break;
    case Kind::list:
    case Kind::tuple:
    case Kind::string:
    case Kind::range: {
      if (!index) break;
      const std::int64_t length = length_of(object);
      const std::int64_t at = key.as_int() < 0 ? key.as_int() + length : key.as_int();
      if (at < 0 || at >= length) break;
      if (object.is(Kind::string)) {
        return Value::string(slice_text(object.as_string(), {at, at + 1, 1}), object.as_string().markup);
      }
      if (object.is(Kind::range)) {
        const Range& range = object.as<Range>();
        return Value::integer(range.start + at * range.step);
      }
      return object.items()[static_cast<std::size_t>(at)];
    }
    default: break;
  }
  if (key.is(Kind::string)) {
    if (auto value = builtin_attribute(*this, object, key.bytes())) return std::move(*value);
    return Value::undefined(std::string("'") + type_name(object) + " object' has no attribute '" + key.bytes() + "'");
  }
  return Value::undefined(std::string(type_name(object)) + " object has no such element");
}

}  // namespace m3::chat
