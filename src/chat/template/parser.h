// Recursive descent over a template's tokens, with Jinja2's precedence.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "src/chat/template/ast.h"

namespace m3::chat {

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Body parse_all();

 private:
  using Words = std::initializer_list<std::string_view>;

  // statements
  Body parse_until(Words ends);  // the current token is then one of `ends`
  Body parse_block(Words ends);  // the same from behind a tag's expression
  StmtPtr parse_statement();
  StmtPtr parse_for();
  StmtPtr parse_if();
  StmtPtr parse_set();
  StmtPtr parse_with();
  StmtPtr parse_macro();
  StmtPtr parse_call_block();
  StmtPtr parse_generation();
  StmtPtr parse_filter_block();
  StmtPtr parse_print(Position at);
  void parse_signature(Signature& signature);
  void end_block(std::string_view word);
  ExprPtr parse_target(bool allow_namespace, bool stop_at_in);
  static ExprPtr clone_target(const Expr& target);

  // expressions
  ExprPtr parse_tuple(bool with_condition, Words ends = {}, bool parenthesised = false);
  ExprPtr parse_expression(bool with_condition = true);
  ExprPtr parse_conditional();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter = true);
  ExprPtr parse_primary();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters(ExprPtr node);
  ExprPtr parse_filter(ExprPtr node);
  ExprPtr parse_test(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_call(ExprPtr node);
  Arguments parse_arguments();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  std::string parse_dotted_name();

  ExprPtr make(ExprKind kind, Position at) const;
  ExprPtr binary(ExprKind kind, std::string op, Position at, ExprPtr left, ExprPtr right);
  void measure(Expr& node) const;

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  Token expect_op(std::string_view op);
  Token expect_name();
  void expect_kind(TokenKind kind);
  bool at_tuple_end(Words ends) const;
  [[noreturn]] void unexpected(std::string_view wanted) const;

  struct Nesting;  // counts recursion of the parser itself

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int statement_depth_ = 0;
  int loop_depth_ = 0;  // loops around, inside the current macro
};

}  // namespace m3::chat
