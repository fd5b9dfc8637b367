#include "src/cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "m3/engine.h"
#include "src/base/console.h"
#include "src/cli/commands.h"
#include "src/cli/common.h"
#include "src/cli/foreign_flags.h"

namespace m3::cli {

namespace {

// Edits that turn one word into another.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Nothing if none is near: within a third of the word's length.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t longest = 64;
  if (word.size() > longest) return "";
  const auto best = std::ranges::min_element(known, {}, [&](const std::string& name) { return distance(word, name); });
  const std::size_t most = std::max<std::size_t>(2, word.size() / 3);
  return best == known.end() || distance(word, *best) > most ? "" : *best;
}

// The line for words that no option or subcommand takes. `early`: it stands before the command.
std::string explain_unknown(const CLI::App& app, const std::string& word, bool early) {
  const CLI::App* innermost = &app;
  std::string where;
  while (!innermost->get_subcommands().empty()) {
    innermost = innermost->get_subcommands().front();
    where += (where.empty() ? "" : " ") + innermost->get_name();
  }
  const CLI::App& command = *innermost;
  const std::string help = (where.empty() ? "m3" : "m3 " + where) + " --help";
  const std::string prefix = where.empty() ? "" : where + ": ";
  if (early) return fmt::format("{}: options come behind the command, as in m3 {} {}", word, where, word);
  std::vector<std::string> known;
  if (word.starts_with("-")) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  } else {
    for (const CLI::App* subcommand : command.get_subcommands({})) known.push_back(subcommand->get_name());
  }
  const std::string name = word.substr(0, word.find('='));
  const std::string guess = nearest(name, known);
  if (!guess.empty()) {
    return fmt::format("{}unknown {} {}; the nearest known is {} ({} lists all)", prefix,
                       word.starts_with("-") ? "option" : "command", name, guess, help);
  }
  if (word.starts_with("-")) return fmt::format("{}unknown option {}; {} lists them", prefix, name, help);
  if (where.empty()) return fmt::format("unknown command {}; {} lists them", word, help);
  const bool question = where == "run" && word.find(' ') != std::string::npos;
  return fmt::format("{}unexpected argument {}; {}", prefix, word,
                     question ? "a question goes behind --prompt" : help + " lists what is known");
}

int fail_with(const std::string& line, int code) {
  write_error("m3: " + line + "\n");
  return code;
}

}  // namespace

int run_program(int argc, char** argv, const server::ModelLoader& load_model) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error of write(), not a death
  CLI::App app("m3: the engine for MiniMax-M3", "m3");
  app.set_version_flag("--version", "m3 " + std::string(version()));
  app.require_subcommand(0, 1);
  add_run_command(app);
  add_serve_command(app, load_model);
  add_trace_command(app);
  add_eval_command(app);
  add_bench_command(app);
  add_inspect_command(app);
  add_tokenize_command(app);
  add_chat_commands(app);
  for (CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() != "serve") take_one_value_each(*command);
  }
  try {
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (!words.empty() && words.front() == "help") {  // m3 help [COMMAND]
      words.erase(words.begin());
      words.emplace_back("--help");
    }
    if (!words.empty() && words.front() == "serve") {
      std::string note;
      words = translate_foreign_flags(*app.get_subcommand("serve"), words, note);
      if (!note.empty()) write_error("m3: " + note + "\n");
    }
    std::ranges::reverse(words);  // as CLI11 asks for
    app.parse(words);
    if (app.get_subcommands().empty()) {
      if (argc > 1) return fail_with(explain_unknown(app, argv[1], false), 2);
      write_output(app.help());
      return 2;
    }
    return 0;
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> extras = app.remaining(true);
    const std::string word = extras.empty() ? "" : extras.front();
    const bool early = argc > 1 && word == argv[1] && word.starts_with("-") && !app.get_subcommands().empty();
    return fail_with(explain_unknown(app, word, early), 2);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text, text);
      try {
        write_output(text.str());
      } catch (const Error& unwritable) {
        return fail_with(unwritable.what(), 1);
      } catch (const CLI::RuntimeError& unread) {
        return unread.get_exit_code();
      }
      return 0;
    }
    if (const auto* status = dynamic_cast<const CLI::RuntimeError*>(&error)) return status->get_exit_code();
    return fail_with(error.what(), 2);
  } catch (const Error& error) {
    return fail_with(error.what(), error.kind() == ErrorKind::usage ? 2 : 1);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail_with(fmt::format("{}: {}", error.path1().string(), error.code().message()), 1);
  } catch (const std::bad_alloc&) {
    return fail_with("out of memory; a shorter --max-model-len or smaller --max-num-batched-tokens needs less", 1);
  } catch (const std::exception& error) {
    return fail_with(error.what(), 1);
  }
}

}  // namespace m3::cli
