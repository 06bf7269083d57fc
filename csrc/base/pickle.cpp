// The instructions are those of protocols 0 to 5. Only their arguments' lengths matter here, so one
// table holds them all. Instructions that look up, call or fill in an object of a class are refused
// by name. A memo index above the pickle's length is refused: no pickler writes one, and an
// unpickler that keeps its memo in an array would allocate up to it. PickleStack follows the parts
// of tuples only.
#include "base/pickle.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/pickle_stack.h"

namespace stalloc {
namespace {

enum class Argument : std::uint8_t {
  kUnknown,
  kNone,
  kHeader,   // `size` bytes that make no object
  kFixed,    // `size` bytes
  kCounted,  // a little-endian number of `size` bytes, then that many bytes
  kMemo,     // a memo index of `size` bytes
  kLine,     // up to the end of the line
  kMemoLine,
  kGlobal,  // two lines
  kRefused,
  kStop,
};

struct Opcode {
  Argument argument = Argument::kUnknown;
  std::uint8_t size = 0;
  const char* name = "";  // of a refused object
};

constexpr std::array<Opcode, 256> make_opcodes() {
  std::array<Opcode, 256> codes = {};
  const auto set = [&](std::string_view opcodes, Opcode code) {
    for (const char c : opcodes) codes[static_cast<unsigned char>(c)] = code;
  };
  set("(012Naedl]})stu\x85\x86\x87\x88\x89\x94", {Argument::kNone});
  set("\x80", {Argument::kHeader, 1});
  set("\x95", {Argument::kHeader, 8});
  set("K", {Argument::kFixed, 1});
  set("M", {Argument::kFixed, 2});
  set("J", {Argument::kFixed, 4});
  set("G", {Argument::kFixed, 8});
  set("UC\x8a\x8c", {Argument::kCounted, 1});
  set("TXB\x8b", {Argument::kCounted, 4});
  set("\x8d\x8e\x96", {Argument::kCounted, 8});
  set("hq", {Argument::kMemo, 1});
  set("jr", {Argument::kMemo, 4});
  set("FILSV", {Argument::kLine});
  set("gp", {Argument::kMemoLine});
  set("ci", {Argument::kGlobal});
  set(".", {Argument::kStop});
  set("\x93", {Argument::kRefused, 0, "a global"});
  set("Rb\x81o\x92", {Argument::kRefused, 0, "an object of a class"});
  set("\x82\x83\x84", {Argument::kRefused, 0, "a global of the extension registry"});
  set("PQ", {Argument::kRefused, 0, "a persistent object"});
  set("\x97\x98", {Argument::kRefused, 0, "a buffer outside the pickle"});
  set("\x8f\x90\x91", {Argument::kRefused, 0, "a set"});
  return codes;
}

constexpr std::array<Opcode, 256> kOpcodes = make_opcodes();

class Scanner {
 public:
  Scanner(std::string_view content, std::string_view source) : rest_(content), source_(source) {
    length_ = content.size();
  }

  void run() {
    for (;;) {
      const char code = take(1)[0];
      const Opcode& opcode = kOpcodes[static_cast<unsigned char>(code)];
      switch (opcode.argument) {
        case Argument::kNone:
          if (!stack_.apply(code)) fail("a tuple with more elements than any snapshot has");
          break;
        case Argument::kHeader:
          take(opcode.size);
          break;
        case Argument::kFixed:
          take(opcode.size);
          stack_.push();
          break;
        case Argument::kCounted:
          note_text(take(number(opcode.size)));
          stack_.push();
          break;
        case Argument::kMemo:
          use_place(code, number(opcode.size));
          break;
        case Argument::kLine:
          note_text(line());
          stack_.push();
          break;
        case Argument::kMemoLine:
          use_place(code, decimal(line()));
          break;
        case Argument::kGlobal: {
          const auto module = line();
          refuse("the global " + std::string(module) + "." + std::string(line()));
        }
        case Argument::kRefused:
          refuse(code == '\x93'
                     ? "the global " + std::string(texts_[0]) + "." + std::string(texts_[1])
                     : opcode.name);
        case Argument::kStop:
          return;
        case Argument::kUnknown:
          fail("there is no pickle instruction " +
               std::to_string(static_cast<unsigned char>(code)));
      }
    }
  }

 private:
  std::string_view take(std::uint64_t count) {
    at_ = length_ - rest_.size();
    if (count > rest_.size()) {
      fail("the pickle is cut off: " + std::to_string(count) + " bytes were to come, and " +
           std::to_string(rest_.size()) + " are left");
    }
    const auto bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }

  std::string_view line() {
    const auto end = rest_.find('\n');
    if (end == std::string_view::npos) fail("the pickle is cut off in the middle of a line");
    const auto text = take(end);
    take(1);
    return text;
  }

  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const auto bytes = take(size);
    for (std::size_t i = 0; i < size; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return value;
  }

  std::uint64_t decimal(std::string_view text) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail("expected a number");
    return value;
  }

  void use_place(char code, std::uint64_t place) {
    if (place > length_) {
      fail("memo index " + std::to_string(place) + " in a pickle of " + std::to_string(length_) +
           " bytes");
    }
    const bool reads = code == 'g' || code == 'h' || code == 'j';
    reads ? stack_.get(place) : stack_.put(place);
  }

  // The last two texts: mostly the name of a global that is looked up from the stack.
  void note_text(std::string_view text) {
    texts_[0] = texts_[1];
    texts_[1] = text.substr(0, 100);
  }

  [[noreturn]] void refuse(const std::string& what) {
    fail("the pickle asks for " + what +
         ", and plain data needs none; it was not executed. Is it a memory snapshot?");
  }

  [[noreturn]] void fail(const std::string& what) {
    std::string message = source_ + ": byte " + std::to_string(at_) + ": " + what;
    // Names in a pickle may be any bytes, and messages are text.
    for (char& c : message) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
    }
    throw TraceError(message);
  }

  std::string_view rest_;
  std::string source_;
  std::size_t length_ = 0;
  std::size_t at_ = 0;
  PickleStack stack_;
  std::array<std::string_view, 2> texts_;
};

}  // namespace

void check_plain_pickle(std::string_view content, std::string_view source) {
  Scanner(content, source).run();
}

}  // namespace stalloc
