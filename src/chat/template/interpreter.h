// Runs a parsed template over a context.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/chat/template/ast.h"
#include "src/chat/template/builtins.h"
#include "src/chat/template/template.h"
#include "src/chat/template/value.h"

namespace m3::chat {

struct Frame {
  Frame* parent = nullptr;
  std::vector<Value> slots;
  bool captured = false;  // a macro or a recursive loop may come back to it
};

struct Macro : Object {
  const Stmt* statement = nullptr;
  Frame* closure = nullptr;
};

// A global (no `self`) or a method with the value it is bound to.
struct Function : Object {
  std::string name;
  std::optional<Value> self;
};

struct Loop : Object {
  std::function<std::optional<Value>()> source;
  std::optional<Value> current, before, after;
  bool peeked = false;
  std::int64_t index0 = -1;
  std::optional<std::int64_t> length;
  std::int64_t depth0 = 0;
  std::optional<std::vector<Value>> changed;
  const Stmt* recursive = nullptr;  // the loop to run again for loop(...)
  Frame* frame = nullptr;           // where it stands

  bool advance();
  bool is_last();
  std::int64_t total();
};

struct Helper : Object {  // joiner or cycler
  bool joiner = false;
  bool used = false;
  Value separator;
  std::vector<Value> items;
  std::size_t at = 0;
};

enum class Flow : std::uint8_t { normal, break_, continue_ };

class Interpreter {
 public:
  Interpreter(const ParsedTemplate& parsed, const Dict& context, const RenderLimits& limits,
              const std::function<std::string(const std::string&)>& strftime_now);

  Text run();

  // For the built-ins.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, const CallArguments& arguments);
  void charge(std::size_t work);
  // Before a string of `bytes` bytes is made.
  void charge_bytes(std::size_t bytes);
  Value make_generator(std::function<std::optional<Value>()> next);
  std::string format_time(const std::string& format) const;
  template <typename T>
  T* make() {
    auto owned = std::make_unique<T>();
    T* object = owned.get();
    heap_.push_back(std::move(owned));
    return object;
  }

 private:
  // Counts the interpreter's own recursion.
  struct Depth {
    explicit Depth(Interpreter& owner);
    ~Depth() { --interpreter.depth_; }
    Interpreter& interpreter;
  };

  // statements
  Flow run_body(const Body& body, Frame& frame, Text& out);
  Flow run_statement(const Stmt& statement, Frame& frame, Text& out);
  Flow run_if(const Stmt& statement, Frame& frame, Text& out);
  Flow run_for(const Stmt& statement, Frame& frame, Text& out);
  Flow run_loop(const Stmt& statement, Frame& frame, const Value& iterable, std::int64_t depth0, Text& out);
  Flow run_with(const Stmt& statement, Frame& frame, Text& out);
  Flow run_set_block(const Stmt& statement, Frame& frame);
  Flow run_filter_block(const Stmt& statement, Frame& frame, Text& out);
  void run_call_block(const Stmt& statement, Frame& frame, Text& out);
  void assign(const Expr& target, const Value& value, Frame& frame);
  Frame& enter(const FrameLayout& layout, Frame* parent);
  void leave(Frame& frame);
  Value context_value(const std::string& name);
  Value& slot(const Slot& slot, Frame& frame);
  Value make_macro(const Stmt& statement, Frame& frame);
  void load_slots(const FrameLayout& layout, Frame& frame);
  Value call_macro(const Macro& macro, const CallArguments& arguments);
  void print(Text& out, const Value& value);
  void print(Text& out, const Text& text);

  // expressions
  Value eval(const Expr& node, Frame& frame);
  Value eval_name(const Expr& node, Frame& frame);
  Value eval_dict(const Expr& node, Frame& frame);
  Value eval_slice(const Expr& node, Frame& frame);
  Value eval_call(const Expr& node, Frame& frame, const Value* caller);
  Value eval_filter(const Expr& node, Frame& frame, const Text* block);
  Value eval_compare(const Expr& node, Frame& frame);
  Value eval_concat(const Expr& node, Frame& frame);
  CallArguments eval_arguments(const Arguments& arguments, Frame& frame);

  const ParsedTemplate& parsed_;
  const Dict& context_;
  const RenderLimits& limits_;
  const std::function<std::string(const std::string&)>& strftime_now_;
  std::deque<std::unique_ptr<Object>> heap_;
  std::deque<std::unique_ptr<Frame>> frames_;
  std::vector<Frame*> free_frames_;
  std::unordered_map<std::string, Value> globals_;
  std::size_t work_ = 0;
  int depth_ = 0;
  int macro_depth_ = 0;
  Position at_;
};

}  // namespace m3::chat
