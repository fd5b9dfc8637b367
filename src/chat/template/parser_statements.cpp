#include <algorithm>

#include "src/base/error.h"
#include "src/chat/template/parser.h"

namespace m3::chat {
namespace {

constexpr std::string_view unsupported_tags[] = {"block",      "extends", "include", "import", "from",
                                                 "autoescape", "trans",   "do",      "debug"};

StmtPtr make_statement(StmtKind kind, Position at) {
  auto statement = std::make_unique<Stmt>();
  statement->kind = kind;
  statement->at = at;
  return statement;
}

}  // namespace

Body TemplateParser::parse_all() {
  Body body = parse_until({});
  return body;
}

Body TemplateParser::parse_until(Words ends) {
  const Position begin = current().at;
  if (++statement_depth_ > max_statement_depth) {
    fail_at(begin, fmt::format("tags nested more than {} deep", max_statement_depth));
  }
  Body body;
  while (true) {
    const Token token = current();
    switch (token.kind) {
      case TokenKind::data: {
        next();
        StmtPtr statement = make_statement(StmtKind::text, token.at);
        statement->text = token.text;
        body.push_back(std::move(statement));
        break;
      }
      case TokenKind::variable_begin: {
        next();
        StmtPtr statement = make_statement(StmtKind::print, token.at);
        statement->values.push_back(parse_tuple(true));
        expect_kind(TokenKind::variable_end);
        body.push_back(std::move(statement));
        break;
      }
      case TokenKind::block_begin: {
        next();
        const bool ended =
            std::any_of(ends.begin(), ends.end(), [&](std::string_view word) { return current().is_name(word); });
        if (ended) {
          --statement_depth_;
          return body;
        }
        body.push_back(parse_statement());
        expect_kind(TokenKind::block_end);
        break;
      }
      default: {
        if (ends.size() != 0) {
          std::string wanted;
          for (const std::string_view word : ends) wanted += (wanted.empty() ? "" : " or ") + std::string(word);
          fail_at(begin, fmt::format("the template ends before the {} that closes this block", wanted));
        }
        --statement_depth_;
        return body;
      }
    }
  }
}

Body TemplateParser::parse_block(Words ends) {
  skip_op(":");
  expect_kind(TokenKind::block_end);
  return parse_until(ends);
}

void TemplateParser::end_block(std::string_view word) {
  if (!current().is_name(word)) unexpected(word);
  next();
}

StmtPtr TemplateParser::parse_statement() {
  const Token token = current();
  if (token.kind != TokenKind::name) unexpected("a tag's name");
  const std::string& tag = token.text;
  if (tag == "for") return parse_for();
  if (tag == "if") return parse_if();
  if (tag == "set") return parse_set();
  if (tag == "with") return parse_with();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call_block();
  if (tag == "generation") return parse_generation();
  if (tag == "filter") return parse_filter_block();
  next();
  if (tag == "print") return parse_print(token.at);
  if (tag == "break" || tag == "continue") {
    if (loop_depth_ == 0) fail_at(token.at, fmt::format("'{}' outside of a loop", tag));
    return make_statement(tag == "break" ? StmtKind::break_ : StmtKind::continue_, token.at);
  }
  const bool known =
      std::find(std::begin(unsupported_tags), std::end(unsupported_tags), tag) != std::end(unsupported_tags);
  if (known) fail_at(token.at, fmt::format("the tag '{}' is not supported in chat templates", tag));
  fail_at(token.at, fmt::format("unknown tag '{}'", tag));
}

StmtPtr TemplateParser::parse_print(Position at) {
  StmtPtr statement = make_statement(StmtKind::print, at);
  while (current().kind != TokenKind::block_end) {
    if (!statement->values.empty()) expect_op(",");
    statement->values.push_back(parse_expression());
  }
  return statement;
}

ExprPtr TemplateParser::clone_target(const Expr& target) {
  auto copy = std::make_unique<Expr>();
  copy->kind = target.kind;
  copy->at = target.at;
  copy->text = target.text;
  copy->attribute = target.attribute;
  for (const auto& child : target.children) copy->children.push_back(clone_target(*child));
  return copy;
}

// name, namespace.name, or a tuple of these with or without parentheses.
ExprPtr TemplateParser::parse_target(bool allow_namespace, bool stop_at_in) {
  const auto parse_one = [&](auto&& self) -> ExprPtr {
    if (current().is_op("(")) {
      const Position at = next().at;
      if (++nesting_ > max_expression_depth) fail_at(at, "targets nested too deep");
      ExprPtr tuple = make(ExprKind::tuple, at);
      bool is_tuple = current().is_op(")");
      while (!current().is_op(")")) {
        tuple->children.push_back(self(self));
        if (!skip_op(",")) break;
        is_tuple = true;
      }
      expect_op(")");
      --nesting_;
      return is_tuple ? std::move(tuple) : std::move(tuple->children.front());
    }
    const Token token = expect_name();
    static constexpr std::string_view constants[] = {"true", "True", "false", "False", "none", "None"};
    if (std::find(std::begin(constants), std::end(constants), token.text) != std::end(constants)) {
      fail_at(token.at, fmt::format("cannot assign to '{}'", token.text));
    }
    ExprPtr node = make(ExprKind::name, token.at);
    node->text = token.text;
    if (allow_namespace && skip_op(".")) {
      node->kind = ExprKind::namespace_target;
      node->attribute = expect_name().text;
    }
    return node;
  };
  const Position at = current().at;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  const auto ended = [&] {
    return current().is_op("=") || current().kind == TokenKind::block_end || (stop_at_in && current().is_name("in"));
  };
  do {
    if (!items.empty() && ended()) break;
    items.push_back(parse_one(parse_one));
    if (current().is_op(",")) is_tuple = true;
  } while (skip_op(","));
  if (!is_tuple) return std::move(items.front());
  ExprPtr tuple = make(ExprKind::tuple, at);
  tuple->children = std::move(items);
  return tuple;
}

StmtPtr TemplateParser::parse_for() {
  StmtPtr statement = make_statement(StmtKind::for_, next().at);
  statement->target = parse_target(false, true);
  if (!skip_name("in")) unexpected("'in'");
  statement->value = parse_tuple(false, {"recursive"});
  if (skip_name("if")) {
    statement->condition = parse_expression();
    statement->test_target = clone_target(*statement->target);
  }
  statement->recursive = skip_name("recursive");
  ++loop_depth_;
  statement->body = parse_block({"endfor", "else"});
  --loop_depth_;
  if (next().text == "else") {
    statement->else_body = parse_block({"endfor"});
    end_block("endfor");
  }
  return statement;
}

StmtPtr TemplateParser::parse_if() {
  StmtPtr statement = make_statement(StmtKind::if_, next().at);
  while (true) {
    ExprPtr condition = parse_tuple(false);
    statement->branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
    const Token token = next();
    if (token.text == "elif") continue;
    if (token.text == "else") {
      statement->else_body = parse_block({"endif"});
      end_block("endif");
    }
    return statement;
  }
}

StmtPtr TemplateParser::parse_set() {
  StmtPtr statement = make_statement(StmtKind::set, next().at);
  statement->target = parse_target(true, false);
  if (skip_op("=")) {
    statement->value = parse_tuple(true);
    return statement;
  }
  statement->kind = StmtKind::set_block;
  while (skip_op("|")) statement->value = parse_filter(std::move(statement->value));
  statement->body = parse_block({"endset"});
  end_block("endset");
  return statement;
}

StmtPtr TemplateParser::parse_with() {
  StmtPtr statement = make_statement(StmtKind::with_, next().at);
  while (current().kind != TokenKind::block_end) {
    if (!statement->targets.empty()) expect_op(",");
    statement->targets.push_back(parse_target(false, false));
    expect_op("=");
    statement->values.push_back(parse_expression());
  }
  statement->body = parse_block({"endwith"});
  end_block("endwith");
  return statement;
}

void TemplateParser::parse_signature(Signature& signature) {
  expect_op("(");
  while (!current().is_op(")")) {
    if (!signature.parameters.empty()) expect_op(",");
    const Token name = expect_name();
    const auto& known = signature.parameters;
    if (std::find(known.begin(), known.end(), name.text) != known.end()) {
      fail_at(name.at, fmt::format("parameter '{}' is repeated", name.text));
    }
    if (skip_op("=")) {
      signature.defaults.push_back(parse_expression());
    } else if (!signature.defaults.empty()) {
      fail_at(name.at, "a parameter without a default follows one with a default");
    }
    signature.parameters.push_back(name.text);
  }
  expect_op(")");
}

StmtPtr TemplateParser::parse_macro() {
  StmtPtr statement = make_statement(StmtKind::macro, next().at);
  statement->text = expect_name().text;
  parse_signature(statement->signature);
  const int loops = std::exchange(loop_depth_, 0);
  statement->body = parse_block({"endmacro"});
  loop_depth_ = loops;
  end_block("endmacro");
  return statement;
}

StmtPtr TemplateParser::parse_call_block() {
  StmtPtr statement = make_statement(StmtKind::call_block, next().at);
  if (current().is_op("(")) parse_signature(statement->signature);
  statement->value = parse_expression();
  if (statement->value->kind != ExprKind::call) fail_at(statement->at, "a call block needs a call");
  const int loops = std::exchange(loop_depth_, 0);
  statement->body = parse_block({"endcall"});
  loop_depth_ = loops;
  end_block("endcall");
  return statement;
}

StmtPtr TemplateParser::parse_generation() {
  StmtPtr statement = make_statement(StmtKind::generation, next().at);
  const int loops = std::exchange(loop_depth_, 0);
  statement->body = parse_block({"endgeneration"});
  loop_depth_ = loops;
  end_block("endgeneration");
  return statement;
}

StmtPtr TemplateParser::parse_filter_block() {
  StmtPtr statement = make_statement(StmtKind::filter_block, next().at);
  statement->value = parse_filter(nullptr);
  while (skip_op("|")) statement->value = parse_filter(std::move(statement->value));
  statement->body = parse_block({"endfilter"});
  end_block("endfilter");
  return statement;
}

ParsedTemplate parse_template(std::string_view source) {
  ParsedTemplate parsed;
  parsed.body = TemplateParser(tokenize_template(source)).parse_all();
  resolve_names(parsed);
  return parsed;
}

}  // namespace m3::chat
