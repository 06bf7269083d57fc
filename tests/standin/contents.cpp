#include "contents.h"

#include <algorithm>
#include <cstring>

namespace standin {
namespace {

// Repeats what the first `known` bytes hold.
void repeat(char* to, std::uint64_t known, std::uint64_t size) {
  for (; known < size; known *= 2) std::memcpy(to + known, to, std::min(known, size - known));
}

// Calls `body` with a page, the offset in it, the bytes there, and the bytes before them.
template <typename Pages, typename Body>
void for_pages(Pages& pages, std::uint64_t page_size, std::uint64_t offset, std::uint64_t size,
               Body body) {
  for (std::uint64_t done = 0; done < size;) {
    const std::uint64_t at = (offset + done) % page_size;
    const std::uint64_t part = std::min(page_size - at, size - done);
    body(pages[(offset + done) / page_size], at, part, done);
    done += part;
  }
}

}  // namespace

Contents::Contents(std::uint64_t size) : pages_((size + kPage - 1) / kPage) {
  for (Page& page : pages_) page.pattern.fill('\xff');
}

char* Contents::materialize(Page& page) {
  if (!page.bytes) {
    page.bytes.reset(new char[kPage]);
    std::memcpy(page.bytes.get(), page.pattern.data(), page.pattern.size());
    repeat(page.bytes.get(), page.pattern.size(), kPage);
  }
  return page.bytes.get();
}

void Contents::read(std::uint64_t offset, void* to, std::uint64_t size) const {
  auto* out = static_cast<char*>(to);
  for_pages(pages_, kPage, offset, size, [&](const Page& page, auto at, auto part, auto done) {
    if (page.bytes) {
      std::memcpy(out + done, page.bytes.get() + at, part);
      return;
    }
    const std::uint64_t turn = at % page.pattern.size();
    Pattern pattern = page.pattern;
    std::rotate(pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(turn),
                pattern.end());
    std::memcpy(out + done, pattern.data(), std::min<std::uint64_t>(part, pattern.size()));
    repeat(out + done, pattern.size(), part);
  });
}

void Contents::write(std::uint64_t offset, const void* from, std::uint64_t size) {
  const auto* in = static_cast<const char*>(from);
  for_pages(pages_, kPage, offset, size, [&](Page& page, auto at, auto part, auto done) {
    constexpr std::uint64_t kPattern = sizeof(Pattern);
    if (part == kPage && std::memcmp(in + done, in + done + kPattern, kPage - kPattern) == 0) {
      std::memcpy(page.pattern.data(), in + done, kPattern);
      page.bytes.reset();
    } else {
      std::memcpy(materialize(page) + at, in + done, part);
    }
  });
}

void Contents::fill(std::uint64_t offset, const void* pattern, std::uint64_t length,
                    std::uint64_t size) {
  Pattern whole;
  std::memcpy(whole.data(), pattern, length);
  repeat(whole.data(), length, whole.size());
  for_pages(pages_, kPage, offset, size, [&](Page& page, auto at, auto part, auto) {
    if (part == kPage) {
      page.pattern = whole;
      page.bytes.reset();
    } else {
      char* to = materialize(page) + at;
      std::memcpy(to, whole.data(), std::min<std::uint64_t>(part, whole.size()));
      repeat(to, whole.size(), part);
    }
  });
}

}  // namespace standin
