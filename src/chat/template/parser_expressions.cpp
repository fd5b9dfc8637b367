#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "src/base/error.h"
#include "src/chat/template/parser.h"

namespace m3::chat {

struct TemplateParser::Nesting {
  Nesting(TemplateParser& owner) : parser(owner) {
    if (++parser.nesting_ > max_expression_depth) {
      fail_at(parser.current().at, fmt::format("expressions nested more than {} deep", max_expression_depth));
    }
  }
  ~Nesting() { --parser.nesting_; }
  TemplateParser& parser;
};

ExprPtr TemplateParser::make(ExprKind kind, Position at) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->at = at;
  return node;
}

// The evaluator recurses over the tree, and a long chain of operators is a deep tree.
void TemplateParser::measure(Expr& node) const {
  int depth = 0;
  const auto add = [&](const ExprPtr& child) {
    if (child) depth = std::max(depth, child->depth);
  };
  for (const auto& child : node.children) add(child);
  for (const auto& argument : node.arguments.positional) add(argument);
  for (const auto& [name, argument] : node.arguments.keywords) add(argument);
  add(node.arguments.star);
  add(node.arguments.double_star);
  node.depth = depth + 1;
  if (node.depth > max_expression_depth) {
    fail_at(node.at, fmt::format("an expression of more than {} nested operations", max_expression_depth));
  }
}

ExprPtr TemplateParser::binary(ExprKind kind, std::string op, Position at, ExprPtr left, ExprPtr right) {
  ExprPtr node = make(kind, at);
  node->text = std::move(op);
  node->children.push_back(std::move(left));
  node->children.push_back(std::move(right));
  measure(*node);
  return node;
}

Token TemplateParser::next() {
  Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TemplateParser::skip_op(std::string_view op) {
  if (!current().is_op(op)) return false;
  next();
  return true;
}

bool TemplateParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  next();
  return true;
}

void TemplateParser::unexpected(std::string_view wanted) const {
  fail_at(current().at, fmt::format("expected {}, found {}", wanted, describe(current())));
}

Token TemplateParser::expect_op(std::string_view op) {
  if (!current().is_op(op)) unexpected(fmt::format("'{}'", op));
  return next();
}

Token TemplateParser::expect_name() {
  if (current().kind != TokenKind::name) unexpected("a name");
  return next();
}

void TemplateParser::expect_kind(TokenKind kind) {
  if (current().kind != kind) unexpected(describe({kind, "", {}}));
  next();
}

bool TemplateParser::at_tuple_end(Words ends) const {
  const Token& token = current();
  if (token.kind == TokenKind::variable_end || token.kind == TokenKind::block_end || token.is_op(")")) return true;
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view word) { return token.is_name(word); });
}

ExprPtr TemplateParser::parse_tuple(bool with_condition, Words ends, bool parenthesised) {
  const Position at = current().at;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (at_tuple_end(ends)) break;
    items.push_back(parse_expression(with_condition));
    if (!current().is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items.front());
    if (!parenthesised) unexpected("an expression");
  }
  ExprPtr node = make(ExprKind::tuple, at);
  node->children = std::move(items);
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? parse_conditional() : parse_or();
}

ExprPtr TemplateParser::parse_conditional() {
  Position at = current().at;
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr node = make(ExprKind::conditional, at);
    node->children.push_back(parse_or());
    node->children.push_back(std::move(value));
    node->children.push_back(nullptr);
    if (skip_name("else")) {
      const Nesting nesting(*this);
      node->children[2] = parse_conditional();
    }
    measure(*node);
    value = std::move(node);
    at = current().at;
  }
  return value;
}

ExprPtr TemplateParser::parse_or() {
  ExprPtr left = parse_and();
  while (current().is_name("or")) {
    const Position at = next().at;
    left = binary(ExprKind::logical, "or", at, std::move(left), parse_and());
  }
  return left;
}

ExprPtr TemplateParser::parse_and() {
  ExprPtr left = parse_not();
  while (current().is_name("and")) {
    const Position at = next().at;
    left = binary(ExprKind::logical, "and", at, std::move(left), parse_not());
  }
  return left;
}

ExprPtr TemplateParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExprPtr node = make(ExprKind::unary, next().at);
  node->text = "not";
  node->children.push_back(parse_not());
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_compare() {
  const Position at = current().at;
  ExprPtr first = parse_sum();
  ExprPtr node;
  while (true) {
    std::string op;
    const Token& token = current();
    if (token.kind == TokenKind::op && (token.text == "==" || token.text == "!=" || token.text == "<" ||
                                        token.text == "<=" || token.text == ">" || token.text == ">=")) {
      op = next().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (token.is_name("not") && look().is_name("in")) {
      next();
      next();
      op = "not in";
    } else {
      break;
    }
    if (!node) {
      node = make(ExprKind::compare, at);
      node->children.push_back(std::move(first));
    }
    node->operators.push_back(std::move(op));
    node->children.push_back(parse_sum());
  }
  if (!node) return first;
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (current().is_op("+") || current().is_op("-")) {
    const Token op = next();
    left = binary(ExprKind::binary, op.text, op.at, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr TemplateParser::parse_concat() {
  const Position at = current().at;
  ExprPtr first = parse_product();
  if (!current().is_op("~")) return first;
  ExprPtr node = make(ExprKind::concat, at);
  node->children.push_back(std::move(first));
  while (skip_op("~")) node->children.push_back(parse_product());
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_product() {
  ExprPtr left = parse_power();
  while (current().is_op("*") || current().is_op("/") || current().is_op("//") || current().is_op("%")) {
    const Token op = next();
    left = binary(ExprKind::binary, op.text, op.at, std::move(left), parse_power());
  }
  return left;
}

ExprPtr TemplateParser::parse_power() {
  ExprPtr left = parse_unary();
  while (current().is_op("**")) {
    const Position at = next().at;
    left = binary(ExprKind::binary, "**", at, std::move(left), parse_unary());
  }
  return left;
}

ExprPtr TemplateParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  ExprPtr node;
  if (current().is_op("-") || current().is_op("+")) {
    const Token op = next();
    node = make(ExprKind::unary, op.at);
    node->text = op.text;
    node->children.push_back(parse_unary(false));
    measure(*node);
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters(std::move(node)) : std::move(node);
}

namespace {

Value integer_constant(const Token& token) {
  int base = 10;
  std::string digits = token.text;
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = digits[1] | 0x20;
    base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    if (base != 10) digits.erase(0, 2);
  }
  errno = 0;
  const long long value = std::strtoll(digits.c_str(), nullptr, base);
  if (errno != 0) fail_at(token.at, "an integer beyond 64 bits");
  return Value::integer(value);
}

}  // namespace

ExprPtr TemplateParser::parse_primary() {
  const Token token = current();
  switch (token.kind) {
    case TokenKind::name: {
      next();
      ExprPtr node = make(ExprKind::constant, token.at);
      if (token.text == "true" || token.text == "True") {
        node->constant = Value::boolean(true);
      } else if (token.text == "false" || token.text == "False") {
        node->constant = Value::boolean(false);
      } else if (token.text == "none" || token.text == "None") {
        node->constant = Value::none();
      } else {
        node->kind = ExprKind::name;
        node->text = token.text;
      }
      return node;
    }
    case TokenKind::string: {
      std::string text;
      while (current().kind == TokenKind::string) text += next().text;
      ExprPtr node = make(ExprKind::constant, token.at);
      node->constant = Value::string(std::move(text));
      return node;
    }
    case TokenKind::integer:
    case TokenKind::floating: {
      next();
      ExprPtr node = make(ExprKind::constant, token.at);
      node->constant = token.kind == TokenKind::integer ? integer_constant(token)
                                                        : Value::floating(std::strtod(token.text.c_str(), nullptr));
      return node;
    }
    default: break;
  }
  if (token.is_op("(")) {
    next();
    ExprPtr node = parse_tuple(true, {}, true);
    expect_op(")");
    return node;
  }
  if (token.is_op("[")) return parse_list();
  if (token.is_op("{")) return parse_dict();
  unexpected("an expression");
}

ExprPtr TemplateParser::parse_list() {
  ExprPtr node = make(ExprKind::list, expect_op("[").at);
  while (!current().is_op("]")) {
    if (!node->children.empty()) {
      expect_op(",");
      if (current().is_op("]")) break;
    }
    node->children.push_back(parse_expression());
  }
  expect_op("]");
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_dict() {
  ExprPtr node = make(ExprKind::dict, expect_op("{").at);
  while (!current().is_op("}")) {
    if (!node->children.empty()) {
      expect_op(",");
      if (current().is_op("}")) break;
    }
    node->children.push_back(parse_expression());
    expect_op(":");
    node->children.push_back(parse_expression());
  }
  expect_op("}");
  measure(*node);
  return node;
}

ExprPtr TemplateParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (current().is_op(".") || current().is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (current().is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr TemplateParser::parse_filters(ExprPtr node) {
  while (true) {
    if (current().is_op("|")) {
      next();
      node = parse_filter(std::move(node));
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr TemplateParser::parse_subscript(ExprPtr node) {
  const Token open = next();
  if (open.text == ".") {
    const Token name = next();
    ExprPtr result = make(ExprKind::attribute, open.at);
    result->children.push_back(std::move(node));
    if (name.kind == TokenKind::name) {
      result->text = name.text;
    } else if (name.kind == TokenKind::integer) {
      result->kind = ExprKind::item;
      ExprPtr index = make(ExprKind::constant, name.at);
      index->constant = integer_constant(name);
      result->children.push_back(std::move(index));
    } else {
      fail_at(name.at, fmt::format("expected a name or a number behind '.', found {}", describe(name)));
    }
    measure(*result);
    return result;
  }
  ExprPtr result = make(ExprKind::item, open.at);
  result->children.push_back(std::move(node));
  const auto at_bound_end = [&] { return current().is_op("]") || current().is_op(",") || current().is_op(":"); };
  if (current().is_op("]")) unexpected("a subscript");
  ExprPtr first = current().is_op(":") ? nullptr : parse_expression();
  if (current().is_op(":")) {
    result->kind = ExprKind::slice;
    result->children.push_back(std::move(first));
    for (int i = 0; i < 2; ++i) {
      const bool present = skip_op(":") && !at_bound_end();
      result->children.push_back(present ? parse_expression() : nullptr);
    }
    if (current().is_op(",")) fail_at(current().at, "slices of several dimensions are not supported");
  } else if (current().is_op(",")) {
    ExprPtr tuple = make(ExprKind::tuple, open.at);
    tuple->children.push_back(std::move(first));
    while (skip_op(",")) tuple->children.push_back(parse_expression());
    measure(*tuple);
    result->children.push_back(std::move(tuple));
  } else {
    result->children.push_back(std::move(first));
  }
  expect_op("]");
  measure(*result);
  return result;
}

Arguments TemplateParser::parse_arguments() {
  const Position at = expect_op("(").at;
  Arguments arguments;
  bool first = true;
  const auto require = [&](bool holds) {
    if (!holds) fail_at(at, "invalid order of arguments in a call");
  };
  while (!current().is_op(")")) {
    if (!first) {
      expect_op(",");
      if (current().is_op(")")) break;
    }
    first = false;
    if (skip_op("*")) {
      require(!arguments.star && !arguments.double_star);
      arguments.star = parse_expression();
    } else if (skip_op("**")) {
      require(!arguments.double_star);
      arguments.double_star = parse_expression();
    } else if (current().kind == TokenKind::name && look().is_op("=")) {
      require(!arguments.double_star);
      std::string name = next().text;
      next();
      for (const auto& keyword : arguments.keywords) {
        if (keyword.first == name) fail_at(at, fmt::format("keyword argument '{}' is repeated", name));
      }
      arguments.keywords.emplace_back(std::move(name), parse_expression());
    } else {
      require(!arguments.star && !arguments.double_star && arguments.keywords.empty());
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return arguments;
}

ExprPtr TemplateParser::parse_call(ExprPtr node) {
  ExprPtr result = make(ExprKind::call, current().at);
  result->children.push_back(std::move(node));
  result->arguments = parse_arguments();
  measure(*result);
  return result;
}

std::string TemplateParser::parse_dotted_name() {
  std::string name = expect_name().text;
  while (skip_op(".")) name += "." + expect_name().text;
  return name;
}

ExprPtr TemplateParser::parse_filter(ExprPtr node) {
  ExprPtr result = make(ExprKind::filter, current().at);
  result->text = parse_dotted_name();
  result->children.push_back(std::move(node));
  if (current().is_op("(")) result->arguments = parse_arguments();
  measure(*result);
  return result;
}

ExprPtr TemplateParser::parse_test(ExprPtr node) {
  const Position at = next().at;
  const bool negated = skip_name("not");
  ExprPtr result = make(ExprKind::test, at);
  result->text = parse_dotted_name();
  result->children.push_back(std::move(node));
  const Token& token = current();
  const bool argument_follows =
      (token.kind == TokenKind::name || token.kind == TokenKind::string || token.kind == TokenKind::integer ||
       token.kind == TokenKind::floating || token.is_op("[") || token.is_op("{")) &&
      !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
  if (token.is_op("(")) {
    result->arguments = parse_arguments();
  } else if (argument_follows) {
    if (token.is_name("is")) fail_at(token.at, "tests with 'is' cannot be chained");
    const Nesting nesting(*this);
    result->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  measure(*result);
  if (!negated) return result;
  ExprPtr inverse = make(ExprKind::unary, at);
  inverse->text = "not";
  inverse->children.push_back(std::move(result));
  measure(*inverse);
  return inverse;
}

}  // namespace m3::chat
