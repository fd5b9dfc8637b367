// A parsed template. Names are resolved to frame slots by resolve_names() before it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/chat/template/lexer.h"
#include "src/chat/template/value.h"

namespace m3::chat {

struct FilterEntry;
struct TestEntry;
struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  constant,
  name,              // `text`
  namespace_target,  // `text`.`attribute`, only as an assignment target
  tuple,
  list,
  dict,       // children: key, value, key, value
  attribute,  // children[0].`text`
  item,       // children[0][children[1]]
  slice,      // children[0][a:b:c], absent bounds are null
  call,       // children[0](arguments)
  filter,     // children[0] | `text`(arguments); children[0] is null in a filter block
  test,       // children[0] is `text`(arguments)
  unary,      // `text` is not, - or +
  binary,     // + - * / // % **
  logical,    // and, or
  concat,
  compare,      // children[0] operators[0] children[1] ...
  conditional,  // children: condition, value, other value or null
};

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, double_star;
};

// Where a name lives: `hops` frames out, then a slot.
struct Slot {
  int hops = 0;
  int index = -1;
};

struct Expr {
  ExprKind kind;
  Position at;
  std::string text;
  std::string attribute;
  std::vector<ExprPtr> children;
  std::vector<std::string> operators;
  Arguments arguments;
  Value constant;
  Slot slot;
  const FilterEntry* filter_entry = nullptr;  // null: unknown, an error only when it is reached
  const TestEntry* test_entry = nullptr;
  int depth = 1;
};

// What fills a slot when its frame is entered.
enum class LoadKind : std::uint8_t { parameter, context, alias, missing };
struct Load {
  LoadKind kind = LoadKind::missing;
  std::string name;  // context
  Slot outer;        // alias: counted from the frame being entered
};

struct FrameLayout {
  std::vector<Load> loads;  // one a slot
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

enum class StmtKind : std::uint8_t {
  text,
  print,
  if_,           // branches, else_body
  for_,          // target, value (the iterable), condition, body, else_body
  set,           // target = value
  set_block,     // target = body, through `value` (a chain of filters) if present
  with_,         // targets[i] = values[i]
  macro,         // name, parameters, defaults, body
  call_block,    // value is the call; parameters, defaults, body
  generation,    // body
  filter_block,  // value, body
  break_,
  continue_,
};

// What a macro or call block needs besides its body.
struct Signature {
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  std::vector<int> slots;         // of the parameters
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;
  bool explicit_caller = false;
};

struct Stmt {
  StmtKind kind;
  Position at;
  std::string text;  // template text; a macro's name
  ExprPtr target, test_target, value, condition;
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body body, else_body;
  std::vector<ExprPtr> targets, values;
  Signature signature;
  bool recursive = false;
  int loop_slot = -1;
  Slot name_slot;  // a macro's
  FrameLayout frame, test_frame, else_frame;
};

struct ParsedTemplate {
  Body body;
  FrameLayout frame;
};

// Expressions and statements nested deeper than this are refused (Python's own compiler stops near 200 and 100).
constexpr int max_expression_depth = 200;
constexpr int max_statement_depth = 90;

ParsedTemplate parse_template(std::string_view source);
// Fills the slots and layouts; called by parse_template.
void resolve_names(ParsedTemplate& parsed);

}  // namespace m3::chat
