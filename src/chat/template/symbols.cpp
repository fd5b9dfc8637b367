// Names to slots, by Jinja2's rules: which frame owns a name is decided before anything runs, from where it is read
// and written. A for body, macro, call, filter, set block and `with` each make a frame; an if does not.
#include <algorithm>
#include <map>
#include <set>

#include "src/base/error.h"
#include "src/chat/template/ast.h"
#include "src/chat/template/builtins.h"

namespace m3::chat {
namespace {

struct Symbols {
  const Symbols* parent = nullptr;
  std::set<std::string> refs, stores;
  std::map<std::string, Load> loads;
  std::map<std::string, int> slots;  // after analysis

  // Frames outward to the one that knows the name, or -1.
  int find(const std::string& name) const {
    int hops = 0;
    for (const Symbols* scope = this; scope != nullptr; scope = scope->parent, ++hops) {
      if (scope->refs.count(name) != 0) return hops;
    }
    return -1;
  }

  const Symbols& outward(int hops) const {
    const Symbols* scope = this;
    while (hops-- > 0) scope = scope->parent;
    return *scope;
  }

  void define(const std::string& name, Load load) {
    refs.insert(name);
    loads[name] = std::move(load);
  }

  void load(const std::string& name) {
    if (find(name) < 0) define(name, {LoadKind::context, name, {}});
  }

  void parameter(const std::string& name) {
    stores.insert(name);
    define(name, {LoadKind::parameter, {}, {}});
  }

  Load alias_or(const std::string& name, Load otherwise) const {
    const int hops = parent == nullptr ? -1 : parent->find(name);
    if (hops < 0) return otherwise;
    return {LoadKind::alias, {}, {hops + 1, parent->outward(hops).slots.at(name)}};
  }

  void store(const std::string& name) {
    stores.insert(name);
    if (refs.count(name) == 0) define(name, alias_or(name, {LoadKind::missing, {}, {}}));
  }

  // After an if: a name that only some branches set falls back to what it was before.
  void merge(const std::vector<Symbols>& branches) {
    std::set<std::string> stored;
    for (const Symbols& branch : branches) stored.insert(branch.stores.begin(), branch.stores.end());
    for (const std::string& name : stores) stored.erase(name);
    for (const Symbols& branch : branches) {
      refs.insert(branch.refs.begin(), branch.refs.end());
      for (const auto& [name, load] : branch.loads) loads[name] = load;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : stored) loads[name] = alias_or(name, {LoadKind::context, name, {}});
  }

  FrameLayout finish() {
    FrameLayout layout;
    for (const std::string& name : refs) {
      slots[name] = static_cast<int>(layout.loads.size());
      layout.loads.push_back(loads.at(name));
    }
    return layout;
  }
};

// The walk that finds which names a frame reads and writes.
void collect_body(Symbols& symbols, const Body& body);

void collect(Symbols& symbols, const ExprPtr& node) {
  if (!node) return;
  if (node->kind == ExprKind::name) return symbols.load(node->text);
  for (const auto& child : node->children) collect(symbols, child);
  for (const auto& argument : node->arguments.positional) collect(symbols, argument);
  for (const auto& [name, argument] : node->arguments.keywords) collect(symbols, argument);
  collect(symbols, node->arguments.star);
  collect(symbols, node->arguments.double_star);
}

void collect_target(Symbols& symbols, const Expr& target, bool parameter) {
  switch (target.kind) {
    case ExprKind::name: return parameter ? symbols.parameter(target.text) : symbols.store(target.text);
    case ExprKind::namespace_target: return symbols.load(target.text);
    default:
      for (const auto& child : target.children) collect_target(symbols, *child, parameter);
  }
}

void collect_statement(Symbols& symbols, const Stmt& statement) {
  switch (statement.kind) {
    case StmtKind::print:
      for (const auto& value : statement.values) collect(symbols, value);
      return;
    case StmtKind::if_: {
      // An elif is an if in its predecessor's else, for the names as for the flow.
      collect(symbols, statement.branches.front().first);
      std::vector<Symbols> branches(3, symbols);
      collect_body(branches[0], statement.branches.front().second);
      for (std::size_t i = 1; i < statement.branches.size(); ++i) {
        collect(branches[1], statement.branches[i].first);
        std::vector<Symbols> inner(1, branches[1]);
        collect_body(inner[0], statement.branches[i].second);
        branches[1].merge(inner);
      }
      collect_body(branches[2], statement.else_body);
      return symbols.merge(branches);
    }
    case StmtKind::for_: return collect(symbols, statement.value);
    case StmtKind::set: collect(symbols, statement.value); return collect_target(symbols, *statement.target, false);
    case StmtKind::set_block: return collect_target(symbols, *statement.target, false);
    case StmtKind::with_:
      for (const auto& value : statement.values) collect(symbols, value);
      return;
    case StmtKind::macro: return symbols.store(statement.text);
    case StmtKind::call_block:
    case StmtKind::filter_block: return collect(symbols, statement.value);
    default: return;
  }
}

void collect_body(Symbols& symbols, const Body& body) {
  for (const auto& statement : body) collect_statement(symbols, *statement);
}

// Which of some special names a body reads before it writes them, nested frames included.
class Undeclared {
 public:
  explicit Undeclared(std::set<std::string> names) : names_(std::move(names)) {}

  void visit(const Body& body) {
    for (const auto& statement : body) visit(*statement);
  }
  bool has(const std::string& name) const { return found_.count(name) != 0; }

 private:
  void visit(const ExprPtr& node) {
    if (!node) return;
    if (node->kind == ExprKind::name && names_.count(node->text) != 0) found_.insert(node->text);
    for (const auto& child : node->children) visit(child);
    for (const auto& argument : node->arguments.positional) visit(argument);
    for (const auto& [name, argument] : node->arguments.keywords) visit(argument);
    visit(node->arguments.star);
    visit(node->arguments.double_star);
  }
  void visit_target(const ExprPtr& target) {
    if (!target) return;
    if (target->kind == ExprKind::name) names_.erase(target->text);
    for (const auto& child : target->children) visit_target(child);
  }
  void visit(const Stmt& statement) {
    visit_target(statement.target);
    visit(statement.value);
    for (const auto& target : statement.targets) visit_target(target);
    for (const auto& value : statement.values) visit(value);
    for (const std::string& name : statement.signature.parameters) names_.erase(name);
    for (const auto& value : statement.signature.defaults) visit(value);
    for (const auto& [condition, body] : statement.branches) {
      visit(condition);
      visit(body);
    }
    visit(statement.body);
    visit(statement.else_body);
    visit(statement.condition);
  }

  std::set<std::string> names_, found_;
};

bool mentions(const Body& body, const std::string& name) {
  Undeclared undeclared({name});
  undeclared.visit(body);
  return undeclared.has(name);
}

class Resolver {
 public:
  void resolve_root(ParsedTemplate& parsed) {
    Symbols root;
    collect_body(root, parsed.body);
    parsed.frame = root.finish();
    resolve(parsed.body, root, false);
  }

 private:
  static Slot slot_of(const Symbols& symbols, const Expr& node) {
    const int hops = symbols.find(node.text);
    if (hops < 0) fail_at(node.at, fmt::format("'{}' cannot be resolved here", node.text));
    return {hops, symbols.outward(hops).slots.at(node.text)};
  }

  void resolve(const ExprPtr& node, const Symbols& symbols, bool soft) {
    if (!node) return;
    switch (node->kind) {
      case ExprKind::name:
      case ExprKind::namespace_target: node->slot = slot_of(symbols, *node); return;
      case ExprKind::filter:
        node->filter_entry = find_filter(node->text);
        if (node->filter_entry == nullptr && !soft) fail_at(node->at, unknown_filter(node->text));
        break;
      case ExprKind::test:
        node->test_entry = find_test(node->text);
        if (node->test_entry == nullptr && !soft) fail_at(node->at, unknown_test(node->text));
        break;
      case ExprKind::conditional: soft = true; break;
      default: break;
    }
    for (const auto& child : node->children) resolve(child, symbols, soft);
    for (const auto& argument : node->arguments.positional) resolve(argument, symbols, soft);
    for (const auto& [name, argument] : node->arguments.keywords) resolve(argument, symbols, soft);
    resolve(node->arguments.star, symbols, soft);
    resolve(node->arguments.double_star, symbols, soft);
  }

  void resolve(const Body& body, const Symbols& symbols, bool soft) {
    for (const auto& statement : body) resolve(*statement, symbols, soft);
  }

  static Symbols inner(const Symbols& symbols) {
    Symbols scope;
    scope.parent = &symbols;
    return scope;
  }

  void resolve(Stmt& statement, const Symbols& symbols, bool soft) {
    switch (statement.kind) {
      case StmtKind::text:
      case StmtKind::break_:
      case StmtKind::continue_: return;
      case StmtKind::print:
        for (const auto& value : statement.values) resolve(value, symbols, soft);
        return;
      case StmtKind::if_:
        for (const auto& [condition, body] : statement.branches) {
          resolve(condition, symbols, true);
          resolve(body, symbols, true);
        }
        return resolve(statement.else_body, symbols, true);
      case StmtKind::for_: return resolve_for(statement, symbols, soft);
      case StmtKind::set: resolve(statement.target, symbols, soft); return resolve(statement.value, symbols, soft);
      case StmtKind::set_block: {
        resolve(statement.target, symbols, soft);
        Symbols scope = inner(symbols);
        collect_body(scope, statement.body);
        collect(scope, statement.value);
        statement.frame = scope.finish();
        resolve(statement.value, scope, false);
        return resolve(statement.body, scope, false);
      }
      case StmtKind::with_: {
        for (const auto& value : statement.values) resolve(value, symbols, soft);
        Symbols scope = inner(symbols);
        for (const auto& target : statement.targets) collect_target(scope, *target, true);
        collect_body(scope, statement.body);
        statement.frame = scope.finish();
        for (const auto& target : statement.targets) resolve(target, scope, false);
        return resolve(statement.body, scope, false);
      }
      case StmtKind::macro: {
        const int hops = symbols.find(statement.text);
        statement.name_slot = {hops, symbols.outward(hops).slots.at(statement.text)};
        return resolve_macro(statement, symbols);
      }
      case StmtKind::call_block: resolve(statement.value, symbols, soft); return resolve_macro(statement, symbols);
      case StmtKind::generation: return resolve_macro(statement, symbols);
      case StmtKind::filter_block: {
        Symbols scope = inner(symbols);
        collect_body(scope, statement.body);
        collect(scope, statement.value);
        statement.frame = scope.finish();
        resolve(statement.value, scope, false);
        return resolve(statement.body, scope, false);
      }
    }
  }

  void resolve_for(Stmt& statement, const Symbols& symbols, bool soft) {
    resolve(statement.value, symbols, soft);
    Symbols scope = inner(symbols);
    const bool has_loop = statement.recursive || mentions(statement.body, "loop");
    if (has_loop) scope.parameter("loop");
    check_loop_target(*statement.target);
    collect_target(scope, *statement.target, true);
    collect_body(scope, statement.body);
    statement.frame = scope.finish();
    if (has_loop) statement.loop_slot = scope.slots.at("loop");
    resolve(statement.target, scope, false);
    resolve(statement.body, scope, false);
    if (statement.condition) {
      Symbols test = inner(symbols);
      collect_target(test, *statement.test_target, true);
      collect(test, statement.condition);
      statement.test_frame = test.finish();
      resolve(statement.test_target, test, false);
      resolve(statement.condition, test, false);
    }
    Symbols otherwise = inner(symbols);
    collect_body(otherwise, statement.else_body);
    statement.else_frame = otherwise.finish();
    resolve(statement.else_body, otherwise, false);
  }

  static void check_loop_target(const Expr& target) {
    if (target.kind == ExprKind::name && target.text == "loop") {
      fail_at(target.at, "the special variable 'loop' cannot be a loop's target");
    }
    for (const auto& child : target.children) check_loop_target(*child);
  }

  void resolve_macro(Stmt& statement, const Symbols& symbols) {
    Signature& signature = statement.signature;
    Undeclared special({"caller", "kwargs", "varargs"});
    special.visit(statement.body);
    Symbols scope = inner(symbols);
    for (const std::string& name : signature.parameters) scope.parameter(name);
    const auto has = [&](const std::string& name) {
      return std::find(signature.parameters.begin(), signature.parameters.end(), name) != signature.parameters.end();
    };
    signature.explicit_caller = has("caller");
    if (special.has("caller") && signature.explicit_caller) {
      const auto position = std::find(signature.parameters.begin(), signature.parameters.end(), "caller");
      const auto behind = static_cast<std::size_t>(signature.parameters.end() - position);
      if (behind > signature.defaults.size()) {
        fail_at(statement.at, "the special parameter 'caller' needs a default or must be left out");
      }
    }
    const bool takes_caller = special.has("caller") && !signature.explicit_caller;
    const bool takes_kwargs = special.has("kwargs") && !has("kwargs");
    const bool takes_varargs = special.has("varargs") && !has("varargs");
    if (takes_caller) scope.parameter("caller");
    if (takes_kwargs) scope.parameter("kwargs");
    if (takes_varargs) scope.parameter("varargs");
    for (const auto& value : signature.defaults) collect(scope, value);
    collect_body(scope, statement.body);
    statement.frame = scope.finish();
    for (const std::string& name : signature.parameters) signature.slots.push_back(scope.slots.at(name));
    if (takes_caller) signature.caller_slot = scope.slots.at("caller");
    if (takes_kwargs) signature.kwargs_slot = scope.slots.at("kwargs");
    if (takes_varargs) signature.varargs_slot = scope.slots.at("varargs");
    for (const auto& value : signature.defaults) resolve(value, scope, false);
    resolve(statement.body, scope, false);
  }
};

}  // namespace

void resolve_names(ParsedTemplate& parsed) { Resolver().resolve_root(parsed); }

}  // namespace m3::chat
