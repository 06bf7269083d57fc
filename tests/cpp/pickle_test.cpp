// The check of pickles: plain data of every protocol passes, anything else is named.
#include "base/pickle.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace stalloc {
namespace {

using std::string_literals::operator""s;

std::string refusal(const std::string& pickle) {
  try {
    check_plain_pickle(pickle, "snapshot.pickle");
  } catch (const TraceError& e) {
    return e.what();
  }
  return "";
}

TEST(Pickle, PlainDataPasses) {
  // {'a': [1, 2.5, None, True]} by protocols 0, 2 and 4.
  for (const std::string& pickle : {
           "(dp0\nVa\np1\n(lp2\nI1\naF2.5\naNaI01\nas."s,
           "\x80\x02}q\x00X\x01\x00\x00\x00"
           "aq\x01]q\x02(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88"
           "es."s,
           "\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01"
           "a\x94]\x94(K\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88"
           "es."s,
       }) {
    EXPECT_EQ(refusal(pickle), "");
  }
}

TEST(Pickle, IgnoresBytesAfterTheEnd) { EXPECT_EQ(refusal("N.cos\nsystem\n"), ""); }

TEST(Pickle, GlobalsAreNamed) {
  const std::string wanted = "snapshot.pickle: byte 10: the pickle asks for the global os.system";
  EXPECT_EQ(refusal("cos\nsystem\n(V:\ntR.").substr(0, wanted.size()), wanted);
  EXPECT_NE(refusal("\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93."s).find("os.system"),
            std::string::npos);
}

TEST(Pickle, ObjectsPersistentIdsAndExtensionsAreRefused) {
  for (const char* code : {"R", "b", "o", "\x81", "\x92", "Q", "P", "\x82", "\x97", "\x8f"}) {
    EXPECT_NE(refusal(std::string("N") + code + "....").find("not executed"), std::string::npos);
  }
}

TEST(Pickle, DamageIsLocated) {
  EXPECT_NE(refusal("").find("cut off"), std::string::npos);
  EXPECT_NE(refusal("]").find("byte 1"), std::string::npos);
  EXPECT_NE(refusal("\x80\x04\x8c\xff"s).find("255 bytes were to come"), std::string::npos);
  EXPECT_NE(refusal("Vno end").find("middle of a line"), std::string::npos);
  EXPECT_NE(refusal("\xff.").find("instruction 255"), std::string::npos);
}

std::string repeated(std::string_view before, std::string_view text, int times) {
  std::string result(before);
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(Pickle, TuplesWhoseHashWouldNotEndAreRefused) {
  const auto refused = [](const std::string& pickle) {
    return refusal(pickle).find("a tuple with more elements") != std::string::npos;
  };
  EXPECT_FALSE(refused(repeated("N", "\x85", 900) + "."));
  EXPECT_TRUE(refused(repeated("N", "\x85", 1000) + "."));
  EXPECT_TRUE(refused(repeated("N", "2\x86", 30) + "."));  // each the last one twice
  EXPECT_TRUE(refused(repeated("N", "q\0h\0\x86"s, 30) + "."));
  EXPECT_TRUE(refused(repeated("N", "r\0\0\0\0(j\0\0\0\0j\0\0\0\0t"s, 30) + "."));
  EXPECT_TRUE(refused(repeated("N", "p0\n(g0\ng0\nt", 30) + "."));
  std::string memoized = "N\x94";
  for (char i = 0; i < 30; ++i) memoized += "h"s + i + "h" + i + "\x86\x94";
  EXPECT_TRUE(refused(memoized + "."));
  EXPECT_TRUE(refused(repeated("(", "N", 1000) + "t."));
  // An element of a list or a dictionary, or one that has left the stack, is in no tuple.
  EXPECT_FALSE(refused(repeated("(", "N", 5000) + "l."));
  EXPECT_FALSE(refused(repeated("]",
                                "NN\x86NN\x86\x86"
                                "a",
                                5000) +
                       "."));
  EXPECT_FALSE(refused(repeated("(", "NN\x86", 2000) + "l" + "N\x86."));
  EXPECT_FALSE(refused(repeated("}", "NN\x86Ns", 5000) + "."));
  EXPECT_FALSE(refused(repeated("](", "NN\x86", 5000) + "e."));
  EXPECT_FALSE(refused(repeated("", "N\x85(1", 5000) + "N."));
  EXPECT_FALSE(refused(repeated("",
                                "N\x85"
                                "0",
                                5000) +
                       "N."));
  EXPECT_FALSE(refused(repeated("", "a1stu0\x87", 5000) + "N."));  // takes from an empty stack
}

TEST(Pickle, ClaimsOfMemoryAreChecked) {
  EXPECT_NE(refusal("Nr\xff\xff\xff\x7f."s).find("memo index"), std::string::npos);
  EXPECT_NE(refusal("Np99999999\n.").find("memo index"), std::string::npos);
  EXPECT_NE(refusal("Np99999999999999999999\n.").find("expected a number"), std::string::npos);
  EXPECT_NE(refusal("\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."s).find("cut off"), std::string::npos);
}

}  // namespace
}  // namespace stalloc
