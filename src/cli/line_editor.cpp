#include "src/cli/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <string_view>

#include "src/base/error.h"
#include "src/cli/common.h"
#include "src/tokenizer/utf8.h"

namespace m3::cli {

namespace {

constexpr int history_size = 1000;
constexpr const char* more_prompt = "… ";
constexpr std::string_view paste_on = "\x1b[?2004h";  // the terminal then marks what is pasted
constexpr std::string_view paste_off = "\x1b[?2004l";
constexpr const char* paste_begins = "\x1b[200~";
constexpr const char* paste_ends = "\x1b[201~";

volatile std::sig_atomic_t resized = 0;
volatile std::sig_atomic_t resumed = 0;

extern "C" void on_resize(int) { resized = 1; }
extern "C" void on_resume(int) { resumed = 1; }

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

// UTF-8 whatever the environment says: libedit reads characters by the locale.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::string to_utf8(std::wstring_view text) {
  std::string out;
  for (const wchar_t c : text) append_utf8(out, static_cast<std::uint32_t>(c));
  return out;
}

}  // namespace

struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  std::string bytes;  // read, not yet a whole character
  bool interrupted = false;
  bool continues = false;  // a paste brought more lines than one
  std::wstring pasted;     // what follows the line that it ended
  std::size_t pasted_at = 0;

  ~State() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }

  static State& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<State*>(data);
  }
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }
  static int read_character(EditLine* editor, wchar_t* out);
  static unsigned char take_paste(EditLine* editor, int);
  int read_byte(unsigned char& byte);
};

// 1, or 0 at the end and after Ctrl-C.
int LineEditor::State::read_byte(unsigned char& byte) {
  while (true) {
    if (cli::interrupted()) {
      interrupted = true;
      return 0;
    }
    if (resized != 0) {
      resized = 0;
      el_resize(editor);
    }
    if (resumed != 0) {
      resumed = 0;
      el_set(editor, EL_PREP_TERM, 1);
      el_set(editor, EL_REFRESH);
    }
    // A signal that comes just before the wait is seen a moment later.
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = ::poll(&input, 1, 100);
    if (ready <= 0) continue;
    const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
    if (count == 1) return 1;
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return 0;
  }
}

int LineEditor::State::read_character(EditLine* editor, wchar_t* out) {
  State& state = of(editor);
  std::string& bytes = state.bytes;
  unsigned char byte = 0;
  while (bytes.empty() || incomplete_suffix(bytes) == bytes.size()) {
    if (state.read_byte(byte) == 0) return 0;
    bytes += static_cast<char>(byte);
  }
  const Utf8Character character = decode_utf8(bytes, 0);
  bytes.erase(0, character.length);
  // A Ctrl-D that came while a reply was written, without an editor, is handed over by the terminal as a zero.
  constexpr wchar_t ctrl_d = 4;
  *out = character.code == 0 ? ctrl_d : static_cast<wchar_t>(character.code);
  return 1;
}

// Reads up to the terminal's mark. The first line joins what was typed; the others follow from read().
unsigned char LineEditor::State::take_paste(EditLine* editor, int) {
  State& state = of(editor);
  const std::wstring end_mark(paste_ends, paste_ends + std::strlen(paste_ends));
  std::wstring text;
  wchar_t c = 0;
  while (!text.ends_with(end_mark)) {
    if (el_wgetc(editor, &c) != 1) return CC_EOF;
    if (c == L'\r') c = L'\n';
    text += c;
  }
  text.resize(text.size() - end_mark.size());
  const std::size_t end = text.find(L'\n');
  el_winsertstr(editor, text.substr(0, end).c_str());
  if (end == std::wstring::npos) return CC_REFRESH;
  state.continues = true;
  state.pasted = text.substr(end + 1);
  state.pasted_at = 0;
  el_set(editor, EL_REFRESH);
  return CC_NEWLINE;
}

LineEditor::LineEditor() : state_(std::make_unique<State>()) {
  use_utf8();
  handle(SIGWINCH, on_resize);
  handle(SIGCONT, on_resume);
  State& state = *state_;
  state.editor = el_init("m3", stdin, stdout, stderr);
  state.history = history_init();
  if (state.editor == nullptr || state.history == nullptr) {
    fail_resource("the terminal cannot be used for a chat; give --prompt, or a question on standard input");
  }
  HistEvent event;
  history(state.history, &event, H_SETSIZE, history_size);
  history(state.history, &event, H_SETUNIQUE, 1);
  el_set(state.editor, EL_CLIENTDATA, &state);
  el_set(state.editor, EL_PROMPT, State::prompt_of);
  el_set(state.editor, EL_EDITOR, "emacs");
  el_set(state.editor, EL_HIST, history, state.history);
  el_set(state.editor, EL_GETCFN, State::read_character);
  // The wide call: the narrow one keeps copies of both texts that libedit never frees.
  el_wset(state.editor, EL_ADDFN, L"take-paste", L"Takes what is pasted", State::take_paste);
  el_set(state.editor, EL_BIND, paste_begins, "take-paste", nullptr);
  el_source(state.editor, nullptr);  // the person's ~/.editrc
}

LineEditor::~LineEditor() = default;

InputLine LineEditor::read_line(const std::string& prompt) {
  State& state = *state_;
  state.prompt = prompt;
  state.interrupted = false;
  state.continues = false;
  clear_interrupt();
  // Before the prompt is seen, so that keys which answer it at once are not taken for the terminal's own.
  el_set(state.editor, EL_PREP_TERM, 1);
  int count = 0;
  const char* line = el_gets(state.editor, &count);
  if (state.interrupted) {
    const LineInfo* typed = el_line(state.editor);
    const bool empty = typed == nullptr || typed->lastchar == typed->buffer;
    el_reset(state.editor);
    return {InputLine::Kind::interrupted, "", empty};
  }
  if (line == nullptr || count <= 0) return {InputLine::Kind::end, "", true};
  std::string text(line, static_cast<std::size_t>(count));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return {InputLine::Kind::text, std::move(text), false};
}

InputLine LineEditor::read(const std::string& prompt) {
  State& state = *state_;
  write_output(paste_on);
  InputLine message{InputLine::Kind::text, "", false};
  bool first = true;
  while (true) {
    InputLine line = read_line(first ? prompt : more_prompt);
    if (line.kind != InputLine::Kind::text) {
      write_output(paste_off);
      write_output("\n");
      state.pasted.clear();
      line.was_empty = line.was_empty && first;
      return line;
    }
    first = false;
    HistEvent event;
    if (!line.text.empty()) history(state.history, &event, H_ENTER, line.text.c_str());
    message.text += line.text;
    if (state.continues) {
      write_output("\n");
      message.text += '\n';
      // The whole lines of the paste; the last one comes back for editing.
      for (std::size_t end; (end = state.pasted.find(L'\n', state.pasted_at)) != std::wstring::npos;
           state.pasted_at = end + 1) {
        const std::string whole =
            to_utf8(std::wstring_view(state.pasted).substr(state.pasted_at, end - state.pasted_at));
        write_output(more_prompt + whole + "\n");
        message.text += whole + "\n";
      }
      const std::string rest = to_utf8(std::wstring_view(state.pasted).substr(state.pasted_at));
      if (!rest.empty()) el_push(state.editor, (paste_begins + rest + paste_ends).c_str());
      state.pasted.clear();
      continue;
    }
    if (!message.text.ends_with('\\')) break;
    message.text.back() = '\n';
  }
  write_output(paste_off);
  return message;
}

}  // namespace m3::cli
