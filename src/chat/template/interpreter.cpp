#include "src/chat/template/interpreter.h"

#include <algorithm>
#include <ctime>

#include "src/base/error.h"

namespace m3::chat {
namespace {

// Levels of the interpreter's own recursion, about 1 KB of stack each.
constexpr int max_run_depth = 2500;

std::string local_time(const std::string& format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::string text(256 + 4 * format.size(), '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return text;
}

void mark_captured(Frame* frame) {
  for (; frame != nullptr && !frame->captured; frame = frame->parent) frame->captured = true;
}

}  // namespace

Interpreter::Depth::Depth(Interpreter& owner) : interpreter(owner) {
  if (interpreter.depth_ >= max_run_depth) fault("the template recurses too deep");
  ++interpreter.depth_;
}

Interpreter::Interpreter(const ParsedTemplate& parsed, const Dict& context, const RenderLimits& limits,
                         const std::function<std::string(const std::string&)>& strftime_now)
    : parsed_(parsed), context_(context), limits_(limits), strftime_now_(strftime_now) {}

std::string Interpreter::format_time(const std::string& format) const {
  return strftime_now_ ? strftime_now_(format) : local_time(format);
}

Text Interpreter::run() {
  Text out;
  try {
    Frame& root = enter(parsed_.frame, nullptr);
    run_body(parsed_.body, root, out);
  } catch (const Fault& problem) {
    fail_at(at_, problem.what);
  }
  return out;
}

void Interpreter::charge(std::size_t work) {
  work_ += work;
  if (work_ > limits_.work) fault("the template does more work than a chat template may");
}

void Interpreter::charge_bytes(std::size_t bytes) {
  if (bytes > limits_.output_bytes) fault("a text of more than ", std::to_string(limits_.output_bytes), " bytes");
  charge(1 + bytes / 8);
}

Frame& Interpreter::enter(const FrameLayout& layout, Frame* parent) {
  Frame* frame;
  if (free_frames_.empty()) {
    frames_.push_back(std::make_unique<Frame>());
    frame = frames_.back().get();
  } else {
    frame = free_frames_.back();
    free_frames_.pop_back();
  }
  frame->parent = parent;
  frame->captured = false;
  frame->slots.assign(layout.loads.size(), Value::missing());
  load_slots(layout, *frame);
  return *frame;
}

void Interpreter::leave(Frame& frame) {
  if (frame.captured) return;
  frame.slots.clear();
  free_frames_.push_back(&frame);
}

void Interpreter::load_slots(const FrameLayout& layout, Frame& frame) {
  for (std::size_t i = 0; i < layout.loads.size(); ++i) {
    const Load& load = layout.loads[i];
    switch (load.kind) {
      case LoadKind::parameter: break;
      case LoadKind::missing: frame.slots[i] = Value::missing(); break;
      case LoadKind::context: frame.slots[i] = context_value(load.name); break;
      case LoadKind::alias: {
        const Frame* outer = &frame;
        for (int hop = 0; hop < load.outer.hops; ++hop) outer = outer->parent;
        frame.slots[i] = outer->slots[static_cast<std::size_t>(load.outer.index)];
        break;
      }
    }
  }
}

Value Interpreter::context_value(const std::string& name) {
  if (const Value* value = context_.find(name)) return *value;
  if (const auto known = globals_.find(name); known != globals_.end()) return known->second;
  Value value = global_value(*this, name);
  if (value.is(Kind::undefined)) value = Value::missing();
  globals_.emplace(name, value);
  return value;
}

void Interpreter::print(Text& out, const Text& text) {
  charge_bytes(text.size());
  if (out.size() + text.size() > limits_.output_bytes) {
    fault("the output is longer than ", std::to_string(limits_.output_bytes), " bytes");
  }
  out.append(text);
}

void Interpreter::print(Text& out, const Value& value) {
  if (value.is(Kind::string)) return print(out, value.text());
  print(out, to_text(value));
}

Flow Interpreter::run_body(const Body& body, Frame& frame, Text& out) {
  for (const auto& statement : body) {
    const Flow flow = run_statement(*statement, frame, out);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Flow Interpreter::run_statement(const Stmt& statement, Frame& frame, Text& out) {
  const Depth depth(*this);
  charge(1);
  at_ = statement.at;
  switch (statement.kind) {
    case StmtKind::text:
      charge_bytes(statement.text.size());
      if (out.size() + statement.text.size() > limits_.output_bytes) {
        fault("the output is longer than ", std::to_string(limits_.output_bytes), " bytes");
      }
      out.append(statement.text, Origin::template_text);
      return Flow::normal;
    case StmtKind::print:
      for (const auto& value : statement.values) {
        const Value result = eval(*value, frame);
        at_ = value->at;
        print(out, result);
      }
      return Flow::normal;
    case StmtKind::if_: return run_if(statement, frame, out);
    case StmtKind::for_: return run_for(statement, frame, out);
    case StmtKind::set: assign(*statement.target, eval(*statement.value, frame), frame); return Flow::normal;
    case StmtKind::set_block: return run_set_block(statement, frame);
    case StmtKind::with_: return run_with(statement, frame, out);
    case StmtKind::macro: slot(statement.name_slot, frame) = make_macro(statement, frame); return Flow::normal;
    case StmtKind::call_block: run_call_block(statement, frame, out); return Flow::normal;
    case StmtKind::generation: print(out, call(make_macro(statement, frame), {})); return Flow::normal;
    case StmtKind::filter_block: return run_filter_block(statement, frame, out);
    case StmtKind::break_: return Flow::break_;
    case StmtKind::continue_: return Flow::continue_;
  }
  return Flow::normal;
}

Flow Interpreter::run_if(const Stmt& statement, Frame& frame, Text& out) {
  for (const auto& [condition, body] : statement.branches) {
    if (truthy(eval(*condition, frame))) return run_body(body, frame, out);
  }
  return run_body(statement.else_body, frame, out);
}

Flow Interpreter::run_for(const Stmt& statement, Frame& frame, Text& out) {
  const Value iterable = eval(*statement.value, frame);
  at_ = statement.at;
  if (!statement.recursive) return run_loop(statement, frame, iterable, 0, out);
  Text rendered;
  const Flow flow = run_loop(statement, frame, iterable, 0, rendered);
  print(out, rendered);
  return flow;
}

Flow Interpreter::run_loop(const Stmt& statement, Frame& frame, const Value& iterable, std::int64_t depth0, Text& out) {
  auto source = iterate(iterable);
  if (statement.condition) {
    Frame& test = enter(statement.test_frame, &frame);
    source = [this, source, &statement, &test]() -> std::optional<Value> {
      while (auto item = source()) {
        charge(1);
        assign(*statement.test_target, *item, test);
        if (truthy(eval(*statement.condition, test))) return item;
      }
      return std::nullopt;
    };
  }
  Frame& body = enter(statement.frame, &frame);
  Loop* loop = nullptr;
  if (statement.loop_slot >= 0) {
    loop = make<Loop>();
    loop->source = source;
    loop->depth0 = depth0;
    if (!statement.condition && !iterable.is(Kind::generator)) loop->length = length_of(iterable);
    if (statement.recursive) {
      loop->recursive = &statement;
      loop->frame = &frame;
      mark_captured(&frame);
    }
  }
  bool none_completed = true;
  while (true) {
    std::optional<Value> item;
    if (loop == nullptr) {
      item = source();
    } else if (loop->advance()) {
      item = loop->current;
    }
    if (!item) break;
    charge(1);
    at_ = statement.at;
    assign(*statement.target, *item, body);
    if (loop != nullptr) body.slots[static_cast<std::size_t>(statement.loop_slot)] = Value::object(Kind::loop, loop);
    load_slots(statement.frame, body);
    const Flow flow = run_body(statement.body, body, out);
    if (flow == Flow::break_) break;
    if (flow == Flow::normal) none_completed = false;
  }
  leave(body);
  if (!none_completed || statement.else_body.empty()) return Flow::normal;
  Frame& otherwise = enter(statement.else_frame, &frame);
  const Flow flow = run_body(statement.else_body, otherwise, out);  // a break here is the outer loop's
  leave(otherwise);
  return flow;
}

Flow Interpreter::run_with(const Stmt& statement, Frame& frame, Text& out) {
  std::vector<Value> values;
  for (const auto& value : statement.values) values.push_back(eval(*value, frame));
  Frame& inner = enter(statement.frame, &frame);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*statement.targets[i], values[i], inner);
  const Flow flow = run_body(statement.body, inner, out);
  leave(inner);
  return flow;
}

Flow Interpreter::run_set_block(const Stmt& statement, Frame& frame) {
  Frame& inner = enter(statement.frame, &frame);
  Text text;
  const Flow flow = run_body(statement.body, inner, text);
  if (flow != Flow::normal) return flow;
  const Value value = statement.value ? eval_filter(*statement.value, inner, &text) : Value::string(std::move(text));
  assign(*statement.target, value, frame);
  leave(inner);
  return Flow::normal;
}

Flow Interpreter::run_filter_block(const Stmt& statement, Frame& frame, Text& out) {
  Frame& inner = enter(statement.frame, &frame);
  Text text;
  const Flow flow = run_body(statement.body, inner, text);
  if (flow != Flow::normal) return flow;
  print(out, eval_filter(*statement.value, inner, &text));
  leave(inner);
  return Flow::normal;
}

Value Interpreter::make_generator(std::function<std::optional<Value>()> next) {
  Generator* generator = make<Generator>();
  generator->next = std::move(next);
  return Value::object(Kind::generator, generator);
}

Value Interpreter::make_macro(const Stmt& statement, Frame& frame) {
  Macro* macro = make<Macro>();
  macro->statement = &statement;
  macro->closure = &frame;
  mark_captured(&frame);
  return Value::object(Kind::macro, macro);
}

void Interpreter::run_call_block(const Stmt& statement, Frame& frame, Text& out) {
  const Value caller = make_macro(statement, frame);
  print(out, eval_call(*statement.value, frame, &caller));
}

Value& Interpreter::slot(const Slot& slot, Frame& frame) {
  Frame* owner = &frame;
  for (int hop = 0; hop < slot.hops; ++hop) owner = owner->parent;
  return owner->slots[static_cast<std::size_t>(slot.index)];
}

void Interpreter::assign(const Expr& target, const Value& value, Frame& frame) {
  if (target.kind == ExprKind::name) {
    slot(target.slot, frame) = value;
    return;
  }
  if (target.kind == ExprKind::namespace_target) {
    const Value& owner = slot(target.slot, frame);
    if (!owner.is(Kind::name_space)) fault("cannot assign attribute on non-namespace object");
    if (target.attribute[0] == '_') fault("namespace attributes may not begin with an underscore");
    owner.as<NameSpace>().attributes.set(Value::string(target.attribute), value);
    return;
  }
  const std::vector<Value> items = to_items(value);
  if (items.size() != target.children.size()) {
    fault("cannot unpack ", std::to_string(items.size()), " values into ", std::to_string(target.children.size()),
          " names");
  }
  for (std::size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i], frame);
}

Value Interpreter::call_macro(const Macro& macro, const CallArguments& arguments) {
  if (++macro_depth_ > limits_.macro_depth) {
    --macro_depth_;
    fault("macros call each other more than ", std::to_string(limits_.macro_depth), " deep");
  }
  const Stmt& statement = *macro.statement;
  const Signature& signature = statement.signature;
  const std::size_t count = signature.parameters.size();
  const std::string& name = statement.text;
  Frame& frame = enter(statement.frame, macro.closure);
  std::vector<bool> used(arguments.keywords.size(), false);
  const auto take = [&](const std::string& keyword) -> const Value* {
    for (std::size_t i = 0; i < arguments.keywords.size(); ++i) {
      if (used[i] || arguments.keywords[i].first != keyword) continue;
      used[i] = true;
      return &arguments.keywords[i].second;
    }
    return nullptr;
  };
  const auto at = [&](int index) -> Value& { return frame.slots[static_cast<std::size_t>(index)]; };
  for (std::size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) {
    at(signature.slots[i]) = arguments.positional[i];
  }
  for (std::size_t i = arguments.positional.size(); i < count; ++i) {
    if (const Value* value = take(signature.parameters[i])) at(signature.slots[i]) = *value;
  }
  if (signature.caller_slot >= 0) {
    const Value* caller = take("caller");
    at(signature.caller_slot) = caller != nullptr ? *caller : Value::undefined("No caller defined");
  }
  auto rest = std::make_shared<Dict>();
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    if (signature.kwargs_slot < 0) {
      fault("macro '", name, "' takes no keyword argument '", arguments.keywords[i].first, "'");
    }
    rest->set(Value::string(arguments.keywords[i].first), arguments.keywords[i].second);
  }
  if (signature.kwargs_slot >= 0) at(signature.kwargs_slot) = Value::dict(std::move(rest));
  if (signature.varargs_slot >= 0) {
    const auto extra = std::min(count, arguments.positional.size());
    at(signature.varargs_slot) =
        Value::tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(extra), arguments.positional.end()});
  } else if (arguments.positional.size() > count) {
    fault("macro '", name, "' takes not more than ", std::to_string(count), " argument(s)");
  }
  for (std::size_t i = 0; i < count; ++i) {
    Value& value = at(signature.slots[i]);
    if (!value.is(Kind::missing)) continue;
    const std::size_t first_default = count - signature.defaults.size();
    Value filled = i >= first_default
                       ? eval(*signature.defaults[i - first_default], frame)
                       : Value::undefined("parameter '" + signature.parameters[i] + "' was not provided");
    at(signature.slots[i]) = std::move(filled);
  }
  Text out;
  run_body(statement.body, frame, out);
  leave(frame);
  --macro_depth_;
  return Value::string(std::move(out));
}

bool Loop::advance() {
  std::optional<Value> item;
  if (peeked) {
    item = std::move(after);
    peeked = false;
    after.reset();
  } else {
    item = source();
  }
  if (!item) return false;
  ++index0;
  before = std::move(current);
  current = std::move(item);
  return true;
}

bool Loop::is_last() {
  if (!peeked) {
    after = source();
    peeked = true;
  }
  return !after;
}

std::int64_t Loop::total() {
  if (length) return *length;
  std::vector<Value> rest;
  while (auto item = source()) rest.push_back(std::move(*item));
  length = static_cast<std::int64_t>(rest.size()) + index0 + 1 + (after ? 1 : 0);
  source = [rest = std::move(rest), at = std::size_t{0}]() mutable -> std::optional<Value> {
    if (at >= rest.size()) return std::nullopt;
    return rest[at++];
  };
  return *length;
}

Template::Template(std::string_view source)
    : source_(source), parsed_(std::make_unique<ParsedTemplate>(parse_template(source))) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Text Template::render(const Dict& context) const { return Interpreter(*parsed_, context, limits, strftime_now).run(); }

}  // namespace m3::chat
