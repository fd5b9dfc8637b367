#include "src/engine/constraint.h"

#include <pthread.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "cmake/xgrammar/hooks.h"
#include "cmake/xgrammar/mask_memory.h"
#include "src/base/error.h"
#include "src/grammar/ebnf.h"
#include "src/grammar/json_rules.h"
#include "src/grammar/syntax.h"

namespace m3::engine {

using Clock = std::chrono::steady_clock;

struct CompiledConstraint::Data {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  State state = State::waiting;
  std::string error;
  double seconds = 0;
  std::string text;  // the grammar
  std::vector<std::function<void()>> ready;
  xgrammar::CompiledGrammar grammar{xgrammar::NullObj{}};
  std::int32_t number = 0;  // in the memory of masks
};

struct ConstraintMatcher::Data {
  xgrammar::GrammarMatcher matcher;
  std::int64_t work;  // at most, of one call
};

namespace {

constexpr const char* too_much_work = "the form is too ambiguous: what may come next takes too much work to find out";

void fill_words(xgrammar::GrammarMatcher& matcher, std::span<std::uint32_t> words) {
  std::int64_t shape = static_cast<std::int64_t>(words.size());
  DLTensor tensor{};
  tensor.data = words.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &shape;
  matcher.FillNextTokenBitmask(&tensor);
}

}  // namespace

ConstraintMatcher::ConstraintMatcher(std::unique_ptr<Data> data) : data_(std::move(data)) {}
ConstraintMatcher::ConstraintMatcher(ConstraintMatcher&&) noexcept = default;
ConstraintMatcher& ConstraintMatcher::operator=(ConstraintMatcher&&) noexcept = default;
ConstraintMatcher::~ConstraintMatcher() = default;

void ConstraintMatcher::fill(std::span<std::uint32_t> words) {
  if (data_->matcher.IsTerminated()) {
    std::ranges::fill(words, 0u);
    return;
  }
  try {
    const xgrammar::WorkLimit limit(data_->work);
    fill_words(data_->matcher, words);
  } catch (const xgrammar::WorkSpent&) {
    fail("{}", too_much_work);
  }
}

bool ConstraintMatcher::accept(TokenId token) {
  try {
    const xgrammar::WorkLimit limit(data_->work);
    return !data_->matcher.IsTerminated() && data_->matcher.AcceptToken(token);
  } catch (const xgrammar::WorkSpent&) {
    fail("{}", too_much_work);
  }
}

void ConstraintMatcher::rollback(int count) {
  if (count > 0) data_->matcher.Rollback(count);
}

bool ConstraintMatcher::may_end() const { return data_->matcher.IsCompleted(); }
bool ConstraintMatcher::is_finished() const { return data_->matcher.IsTerminated(); }

CompiledConstraint::State CompiledConstraint::state() const {
  const std::lock_guard lock(data_->mutex);
  return data_->state;
}

void CompiledConstraint::wait() const {
  std::unique_lock lock(data_->mutex);
  data_->changed.wait(lock, [&] { return data_->state != State::waiting; });
}

std::string CompiledConstraint::error() const {
  const std::lock_guard lock(data_->mutex);
  return data_->error;
}

double CompiledConstraint::seconds() const {
  const std::lock_guard lock(data_->mutex);
  return data_->seconds;
}

std::size_t CompiledConstraint::bytes() const {
  const std::lock_guard lock(data_->mutex);
  return data_->state == State::ready ? data_->grammar.MemorySizeBytes() + data_->text.size() : data_->text.size();
}

namespace {

// xgrammar says which of its checks failed before it says why.
std::string reason_of(const std::string& error) {
  constexpr std::string_view check = "Check failed: ", why = " is false: ";
  const std::size_t at = error.find(why);
  std::string reason = error.starts_with(check) && at != std::string::npos ? error.substr(at + why.size()) : error;
  // It may quote a long expression, and has its point at the end.
  constexpr std::size_t kept = 150;
  if (reason.size() <= 2 * kept + 50) return reason;
  const auto begins_character = [&](std::size_t i) { return (static_cast<unsigned char>(reason[i]) & 0xc0) != 0x80; };
  std::size_t head = kept, tail = reason.size() - kept;
  while (!begins_character(head)) --head;
  while (!begins_character(tail)) --tail;
  return reason.substr(0, head) + " … " + reason.substr(tail);
}

}  // namespace

struct Constraints::Data {
  Tokenizer tokenizer;
  std::int64_t vocab_size;
  std::vector<TokenId> end_ids;
  ConstraintLimits limits;
  std::shared_ptr<xgrammar::MaskMemory> masks;
  std::vector<std::pair<std::string, TokenId>> added;  // the tokenizer's added tokens, the longest first

  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::deque<ConstraintHandle> queue;
  std::list<ConstraintHandle> used;  // the newest first
  std::map<std::string, std::list<ConstraintHandle>::iterator, std::less<>> by_text;
  // What was asked for last, and its grammar: each request of a list asks for the same.
  std::optional<Constraint> last = {};
  std::string last_text = {};
  std::optional<pthread_t> thread = {};

  std::optional<xgrammar::GrammarCompiler> compiler = {};  // the thread's own, from the first constraint on

  void start() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    // The compiler recurses as deep as a grammar nests.
    pthread_attr_setstacksize(&attributes, std::size_t{256} << 20);
    pthread_t made;
    const int failed = pthread_create(
        &made, &attributes,
        [](void* data) -> void* {
          static_cast<Data*>(data)->loop();
          return nullptr;
        },
        this);
    pthread_attr_destroy(&attributes);
    if (failed != 0) fail_resource("no thread for compiling constraints can be started");
    thread = made;
  }

  void make_compiler() {
    std::vector<std::string> tokens(static_cast<std::size_t>(vocab_size));
    for (std::int64_t id = 0; id < vocab_size; ++id) {
      const auto token = static_cast<TokenId>(id);
      if (!tokenizer.has_token(id)) continue;
      std::string& text = tokens[static_cast<std::size_t>(id)];
      text = tokenizer.token_bytes(token);
      // An added token begins with a byte that no text has, so that only a grammar that names it takes it.
      if (tokenizer.is_added(token)) text.insert(text.begin(), '\xff');
    }
    const xgrammar::TokenizerInfo info(tokens, xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
                                       std::vector<std::int32_t>(end_ids.begin(), end_ids.end()));
    constexpr std::int64_t shared_masks = std::int64_t{96} << 20;  // of rules that grammars have in common
    compiler.emplace(info, 1, true, shared_masks, true);
  }

  // What waits and was given up by all who asked: refused requests and clients that went would else leave without bound
  // what is compiled for nobody. Below the lock, where nobody can come to hold one again.
  void drop_abandoned() {
    std::erase_if(queue, [&](const ConstraintHandle& waiting) {
      if (waiting.use_count() > 2) return false;  // this queue's and `used`'s
      const auto found = by_text.find(waiting->data_->text);
      used.erase(found->second);
      by_text.erase(found);
      return true;
    });
  }

  void loop() {
    while (true) {
      ConstraintHandle next;
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stopping || !queue.empty(); });
        if (stopping) return;
        drop_abandoned();
        if (queue.empty()) continue;
        next = queue.front();
        queue.pop_front();
      }
      compile(*next->data_);
      shrink();
    }
  }

  void compile(CompiledConstraint::Data& constraint) {
    const auto started = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - started).count(); };
    std::string error;
    xgrammar::CompiledGrammar grammar{xgrammar::NullObj{}};
    try {
      if (!compiler) make_compiler();
      xgrammar::last_warning().clear();
      xgrammar::set_deadline(
          started + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.compile_seconds)));
      grammar = compiler->CompileGrammar(constraint.text);
      if (elapsed() > limits.compile_seconds) fail("it takes too long");
      if (!xgrammar::last_warning().empty()) fail("{}", xgrammar::last_warning());
      const std::size_t states = xgrammar::count_states(grammar);
      if (states > limits.max_states) fail("it is too large ({} states)", states);
      check_first(grammar);
      if (const std::string rule = xgrammar::endless_rule(grammar); !rule.empty())
        fail("nothing can satisfy the rule {}, which never ends", rule);
      xgrammar::fill_mask_cache(
          grammar, [&] { return elapsed() < limits.fill_seconds && !stop_asked(); }, limits.mask_work);
    } catch (const std::exception& problem) {
      error = problem.what();
      if (elapsed() > limits.compile_seconds) error = fmt::format("it takes longer than {} s", limits.compile_seconds);
    }
    xgrammar::set_deadline({});
    std::vector<std::function<void()>> ready;
    {
      const std::lock_guard lock(constraint.mutex);
      constraint.seconds = elapsed();
      constraint.state = error.empty() ? CompiledConstraint::State::ready : CompiledConstraint::State::failed;
      if (error.empty()) {
        constraint.grammar = grammar;
        constraint.number = masks->next_grammar();
      } else {
        std::ranges::replace(error, '\n', ' ');
        constraint.error = reason_of(error);
      }
      ready.swap(constraint.ready);
    }
    constraint.changed.notify_all();
    for (const auto& call : ready) call();
  }

  // The first mask of every reply: whether there is one, and at what price.
  void check_first(const xgrammar::CompiledGrammar& grammar) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(vocab_size + 31) / 32);
    try {
      const xgrammar::WorkLimit limit(limits.mask_work);
      xgrammar::GrammarMatcher matcher(grammar);
      fill_words(matcher, words);
    } catch (const xgrammar::WorkSpent&) {
      fail("{}", too_much_work);
    }
    if (std::ranges::all_of(words, [](std::uint32_t word) { return word == 0; })) fail("nothing can satisfy it");
  }

  bool stop_asked() {
    const std::lock_guard lock(mutex);
    return stopping;
  }

  // Forgets what was not used for longest. Who still has one keeps it.
  void shrink() {
    const std::lock_guard lock(mutex);
    std::size_t bytes = 0, entries = 0;
    for (auto at = used.begin(); at != used.end();) {
      const bool waiting = (*at)->state() == CompiledConstraint::State::waiting;
      bytes += (*at)->bytes();
      ++entries;
      const bool keep = waiting || (entries <= limits.cache_entries && bytes <= limits.cache_bytes);
      if (keep) {
        ++at;
        continue;
      }
      by_text.erase((*at)->data_->text);
      at = used.erase(at);
    }
  }
};

Constraints::Constraints(const Tokenizer& tokenizer, std::int64_t vocab_size, std::vector<TokenId> end_ids,
                         const ConstraintLimits& limits)
    : data_(new Data{tokenizer, vocab_size, std::move(end_ids), limits, {}, {}, {}, {}, false, {}, {}, {}, {}, {}}) {
  std::size_t longest = 0;
  for (std::int64_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!tokenizer.has_token(id)) continue;
    longest = std::max(longest, tokenizer.token_text(token).size());
    if (tokenizer.is_added(token)) data_->added.emplace_back(tokenizer.token_text(token), token);
  }
  data_->masks = std::make_shared<xgrammar::MaskMemory>(limits.mask_bytes, longest + 1);  // added ones have a byte more
  std::ranges::sort(data_->added, [](const auto& left, const auto& right) {
    return left.first.size() > right.first.size();  // where one begins another, the longer counts
  });
}

Constraints::~Constraints() {
  {
    const std::lock_guard lock(data_->mutex);
    data_->stopping = true;
  }
  data_->wake.notify_all();
  if (data_->thread) pthread_join(*data_->thread, nullptr);
}

const std::vector<TokenId>& Constraints::end_ids() const { return data_->end_ids; }
std::int64_t Constraints::vocab_size() const { return data_->vocab_size; }

std::size_t Constraints::waiting() const {
  const std::lock_guard lock(data_->mutex);
  return data_->queue.size();
}

namespace {

// Literals that hold the text of an added token, with the token in its place; Special("…") as the token's id.
std::string name_special_tokens(std::string_view grammar, const Tokenizer& tokenizer,
                                const std::vector<std::pair<std::string, TokenId>>& added) {
  std::string out;
  bool macro = false;    // the literals of a macro's arguments stay as they are
  bool special = false;  // but for Special's
  int depth = 0;
  std::string first_bytes;
  for (const auto& [text, id] : added) {
    if (!text.empty() && first_bytes.find(text[0]) == std::string::npos) first_bytes += text[0];
  }
  for (const grammar::Piece& piece : grammar::pieces(grammar)) {
    using Kind = grammar::Piece::Kind;
    if (piece.kind == Kind::name && piece.text == "Special") {
      special = true;
      continue;
    }
    if (piece.kind == Kind::name &&
        (piece.text == "TagDispatch" || piece.text == "Regex" || piece.text == "Substring")) {
      macro = true;
      depth = 0;
    }
    if (piece.kind == Kind::other && macro) {
      if (piece.text == "(") ++depth;
      if (piece.text == ")" && --depth == 0) macro = false;
    }
    if (special) {
      if (piece.kind == Kind::literal) {
        const TokenId id = tokenizer.id_of(grammar::unquote(piece.text));
        if (id < 0) fail_usage("the grammar names {}, which the tokenizer does not have", piece.text);
        out += std::to_string(id);
      }
      if (piece.text == ")") special = false;
      continue;
    }
    if (piece.kind != Kind::literal || macro) {
      out += piece.text;
      continue;
    }
    const std::string text = grammar::unquote(piece.text);
    std::vector<std::string> parts;
    std::size_t plain = 0;
    // Few bytes begin an added token.
    for (std::size_t at = 0; (at = text.find_first_of(first_bytes, at)) != std::string::npos;) {
      const auto found = std::ranges::find_if(
          added, [&](const auto& token) { return std::string_view(text).substr(at).starts_with(token.first); });
      if (found == added.end()) {
        ++at;
        continue;
      }
      if (at > plain) parts.push_back(grammar::quote(std::string_view(text).substr(plain, at - plain)));
      parts.push_back(fmt::format("Token({})", found->second));
      at += found->first.size();
      plain = at;
    }
    if (parts.empty()) {
      out += piece.text;
      continue;
    }
    if (plain < text.size()) parts.push_back(grammar::quote(std::string_view(text).substr(plain)));
    out += fmt::format("({})", grammar::join(parts));
  }
  return out;
}

}  // namespace

std::string Constraints::grammar_text(const Constraint& constraint) const {
  std::size_t size = constraint.text.size();
  for (const std::string& choice : constraint.choices) size += choice.size();
  if (size > data_->limits.max_text) fail_usage("{}: more than {} bytes", constraint.name, data_->limits.max_text);
  switch (constraint.kind) {
    case Constraint::Kind::none: fail_usage("there is no constraint to compile");
    case Constraint::Kind::json_object: return grammar::json_object_grammar();
    case Constraint::Kind::json_schema: return grammar::json_schema_grammar(constraint.text, "json_schema");
    case Constraint::Kind::regex:
      grammar::check_regex(constraint.text, "regex");
      return fmt::format("root ::= {}\n", grammar::regex(constraint.text));
    case Constraint::Kind::choice:
      if (constraint.choices.empty()) fail_usage("choice: the list is empty");
      return grammar::choice_grammar(constraint.choices);
    case Constraint::Kind::grammar: break;
  }
  return name_special_tokens(constraint.text, data_->tokenizer, data_->added);
}

std::string Constraints::remembered_text(const Constraint& constraint) {
  {
    const std::lock_guard lock(data_->mutex);
    const std::optional<Constraint>& last = data_->last;
    if (last && last->kind == constraint.kind && last->text == constraint.text && last->choices == constraint.choices) {
      return data_->last_text;
    }
  }
  std::string text = grammar_text(constraint);
  const std::lock_guard lock(data_->mutex);
  data_->last = constraint;
  data_->last_text = text;
  return text;
}

ConstraintHandle Constraints::compile(const Constraint& constraint, std::function<void()> ready) {
  std::string text = remembered_text(constraint);
  ConstraintHandle handle;
  {
    const std::lock_guard lock(data_->mutex);
    if (const auto found = data_->by_text.find(text); found != data_->by_text.end()) {
      data_->used.splice(data_->used.begin(), data_->used, found->second);
      handle = data_->used.front();
    } else {
      if (constraint.kind == Constraint::Kind::grammar) grammar::check_grammar(constraint.text, "grammar");
      data_->drop_abandoned();
      handle = std::make_shared<CompiledConstraint>();
      handle->data_ = std::make_shared<CompiledConstraint::Data>();
      handle->data_->text = text;
      data_->used.push_front(handle);
      data_->by_text.emplace(std::move(text), data_->used.begin());
      data_->queue.push_back(handle);
      if (!data_->thread) data_->start();
      data_->wake.notify_one();
    }
  }
  if (ready) {
    std::unique_lock lock(handle->data_->mutex);
    if (handle->data_->state == CompiledConstraint::State::waiting) {
      handle->data_->ready.push_back(std::move(ready));
    } else {
      lock.unlock();
      ready();
    }
  }
  return handle;
}

ConstraintMatcher Constraints::matcher(const CompiledConstraint& constraint) const {
  const std::lock_guard lock(constraint.data_->mutex);
  if (constraint.data_->state != CompiledConstraint::State::ready) fail_internal("a constraint is not compiled");
  xgrammar::GrammarMatcher matcher(constraint.data_->grammar);
  xgrammar::use_mask_memory(matcher, data_->masks, constraint.data_->number);
  return ConstraintMatcher(
      std::make_unique<ConstraintMatcher::Data>(ConstraintMatcher::Data{std::move(matcher), data_->limits.mask_work}));
}

}  // namespace m3::engine
