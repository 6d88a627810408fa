#include "data/tables/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "data/tables/npy_testing.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::data {
namespace {

using test::message_of;
using test::npy_bytes;
using ::testing::HasSubstr;

TEST(Npy, ReadsNumbersOfEveryKind) {
  const auto first = [](const std::string& type, const auto& values) {
    const std::string bytes = npy_bytes(type, "(2,)", values);
    return NpyArray(bytes, "name").value(1, 0);
  };
  EXPECT_EQ(first("<f4", std::vector<float>{1, -2.5f}), -2.5);
  EXPECT_EQ(first("<f8", std::vector<double>{1, 1e300}), 1e300);
  EXPECT_EQ(first("<f2", std::vector<uint16_t>{0, 0xc100}), -2.5);
  EXPECT_EQ(first("|i1", std::vector<int8_t>{1, -3}), -3);
  EXPECT_EQ(first("<i2", std::vector<int16_t>{1, -300}), -300);
  EXPECT_EQ(first("<i4", std::vector<int32_t>{1, -70000}), -70000);
  EXPECT_EQ(first("<i8", std::vector<int64_t>{1, -(int64_t{1} << 40)}), -0x1p40);
  EXPECT_EQ(first("|u1", std::vector<uint8_t>{1, 255}), 255);
  EXPECT_EQ(first("<u2", std::vector<uint16_t>{1, 65535}), 65535);
  EXPECT_EQ(first("<u4", std::vector<uint32_t>{1, UINT32_MAX}), 0xffffffff);
  EXPECT_EQ(first("<u8", std::vector<uint64_t>{1, uint64_t{1} << 63}), 0x1p63);
  EXPECT_EQ(first("|b1", std::vector<uint8_t>{0, 1}), 1);
}

TEST(Npy, TellsLargeIntegersApart) {
  const int64_t border = int64_t{1} << 53;
  const std::string bytes =
      npy_bytes("<i8", "(4,)", std::vector<int64_t>{border, border + 1, -border - 1, 3});
  const NpyArray array(bytes, "name");
  EXPECT_EQ(array.value(0, 0), array.value(1, 0));
  EXPECT_NE(array.number_text(0, 0), array.number_text(1, 0));
  EXPECT_EQ(array.number_text(1, 0), "9007199254740993");
  EXPECT_EQ(array.number_text(2, 0), "-9007199254740993");
  EXPECT_EQ(array.number_text(3, 0), "3");
  const std::string unsigned_bytes = npy_bytes("<u8", "(1,)", std::vector<uint64_t>{UINT64_MAX});
  EXPECT_EQ(NpyArray(unsigned_bytes, "name").number_text(0, 0), "18446744073709551615");
}

TEST(Npy, RefusesMoreColumnsThanATableHas) {
  const std::string bytes = npy_bytes("|u1", "(1, 1048577)", std::vector<uint8_t>(1'048'577));
  EXPECT_THAT(message_of<DataError>([&] { NpyArray(bytes, "name"); }), HasSubstr("1048577 columns"));
}

TEST(Npy, HasRowsAndColumnsInEitherOrder) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::string bytes = npy_bytes("<f4", "(2, 3)", values);
  const NpyArray by_rows(bytes, "name");
  EXPECT_EQ(by_rows.rows(), 2);
  EXPECT_EQ(by_rows.columns(), 3);
  EXPECT_EQ(by_rows.value(1, 0), 4);
  EXPECT_EQ(by_rows.byte_of(1), 128 + 12);
  const std::string turned = npy_bytes("<f4", "(2, 3)", values, "True");
  EXPECT_EQ(NpyArray(turned, "name").value(1, 0), 2);
  EXPECT_EQ(NpyArray(turned, "name").value(0, 2), 5);
}

/// As np.save writes np.array(..., dtype=[('height', '<f4'), ('', 'V2'), ('name', '<U3'), ('tag', 'S2')]).
std::string structured_npy(const std::string& fields, const std::string& records, int64_t rows) {
  std::string header =
      "{'descr': " + fields + ", 'fortran_order': False, 'shape': (" + std::to_string(rows) + ",), }";
  header.resize(245, ' ');
  header += '\n';
  return std::string("\x93NUMPY\x01\x00\xf6\x00", 10) + header + records;
}

constexpr const char* kStructured =
    "[('height', '<f4'), ('', '|V2'), (\"it's, [n]\", '<U3'), ('tag', '|S2')]";

std::string record_of(float height, const std::u32string& name, const std::string& tag) {
  std::string bytes(reinterpret_cast<const char*>(&height), 4);
  bytes += "??";
  std::u32string three = name;
  three.resize(3, U'\0');
  bytes += std::string(reinterpret_cast<const char*>(three.data()), 12);
  return bytes + tag + std::string(2 - tag.size(), '\0');
}

TEST(Npy, NamesTheColumnsOfStructuredArrays) {
  const std::string bytes =
      structured_npy(kStructured, record_of(1.5f, U"a\u00e9\U0001f600", "x") + record_of(-2, U"b", "yz"), 2);
  const NpyArray array(bytes, "name");
  ASSERT_EQ(array.columns(), 3);
  EXPECT_EQ(array.rows(), 2);
  EXPECT_EQ(array.column_name(0), "height");
  EXPECT_EQ(array.column_name(1), "it's, [n]");
  EXPECT_FALSE(array.is_text(0));
  EXPECT_TRUE(array.is_text(1));
  EXPECT_EQ(array.value(1, 0), -2);
  EXPECT_EQ(array.text(0, 1), "a\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(array.text(1, 1), "b");
  EXPECT_EQ(array.text(0, 2), "x");
  EXPECT_EQ(array.text(1, 2), "yz");
  EXPECT_EQ(array.byte_of(1), 256 + 20);
}

TEST(Npy, NamesAreLatin1OrUtf8ByTheVersion) {
  const std::string latin1 =
                        "gr\xf6\xdf"
                        "e",
                    utf8 =
                        "gr\xc3\xb6\xc3\x9f"
                        "e";
  const auto name_in = [](char version, const std::string& name) {
    const std::string bytes =
        test::npy_of_version(version, "[('" + name + "', '<f4')]", "(1,)", std::string(4, '\0'));
    return NpyArray(bytes, "some/file").column_name(0);
  };
  EXPECT_EQ(name_in(1, latin1), utf8);
  EXPECT_EQ(name_in(2, latin1), utf8);
  EXPECT_EQ(name_in(3, utf8), utf8);
  EXPECT_THAT(message_of<DataError>([&] { name_in(3, latin1); }), Mentions("some/file ... UTF-8 ... 0xf6"));
}

TEST(Npy, RefusesStructuredArraysThatItCannotRead) {
  const auto refusal = [](const std::string& fields, int64_t rows = 1) {
    const std::string bytes = structured_npy(fields, std::string(8, '\1'), rows);
    return message_of<DataError>([&] { NpyArray(bytes, "some/file"); });
  };
  EXPECT_THAT(refusal("[('a', '<f4', (2,))]"), HasSubstr("'a'"));
  EXPECT_THAT(refusal("[('a', '|O')]"), HasSubstr("|O"));
  EXPECT_THAT(refusal("[('a', [('b', '<f4')])]"), HasSubstr("byte"));
  EXPECT_THAT(refusal("[('a', '<U99999999999')]"), HasSubstr("U99999999999"));
  EXPECT_THAT(refusal("[('', '|V9999999999')]"), HasSubstr("V9999999999"));
  EXPECT_THAT(refusal("[]"), HasSubstr("fields"));
  EXPECT_THAT(refusal("[('a', '<f4')", 2), HasSubstr("some/file"));
  EXPECT_THAT(refusal("[('a', '<f4'"), HasSubstr("some/file"));
  EXPECT_THAT(refusal("[('a', '<f4')]", 3), Mentions("3 records ... 4 bytes"));
  EXPECT_THAT(refusal("'<U1'", 2), HasSubstr("texts"));
}

TEST(Npy, RefusesWhatItCannotRead) {
  const auto refusal = [](const std::string& bytes) {
    return message_of<DataError>([&] { NpyArray(bytes, "some/file"); });
  };
  const std::vector<float> values{1, 2, 3, 4};
  EXPECT_THAT(refusal("PK"), HasSubstr("some/file"));
  EXPECT_THAT(refusal(npy_bytes("|O", "(4,)", values)), HasSubstr("|O"));
  EXPECT_THAT(refusal(npy_bytes(">f4", "(4,)", values)), HasSubstr(">f4"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(1, 2, 2)", values)), HasSubstr("3 dimensions"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(5,)", values)), Mentions("5 x 1 ... 16 bytes"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(4611686018427387904, 4)", values)), HasSubstr("16 bytes"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(-4,)", values)), HasSubstr("-4"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(9223372036854775807, 0)", std::vector<float>{})),
              HasSubstr("no columns"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "4", values)), HasSubstr("parentheses"));
  EXPECT_THAT(refusal(npy_bytes("<f4", "(4,)", values, "Perhaps")), HasSubstr("Perhaps"));
  std::string longer = npy_bytes("<f4", "(4,)", values);
  longer[9] = '\x7f';
  EXPECT_THAT(refusal(longer), HasSubstr("byte 8"));
}

// Its columns would be as many as a header says, of which no byte is there.
TEST(Npy, RefusesNoRows) {
  const std::string bytes = test::npy_bytes<float>("<f4", "(0, 1000000000000)", {});
  EXPECT_THAT(test::message_of<DataError>([&] { NpyArray(bytes, "a.npy"); }),
              ::testing::HasSubstr("columns"));
}

TEST(Npy, SurvivesDamage) {
  std::mt19937 random(6);
  const std::string plain = npy_bytes("<f4", "(2, 2)", std::vector<float>{1, 2, 3, 4});
  const std::string structured =
      structured_npy(kStructured, record_of(1, U"abc", "x") + record_of(2, U"d", "yz"), 2);
  for (int round = 0; round < 10'000; ++round) {
    std::string damaged = round % 2 == 0 ? plain : structured;
    for (int flip = 0; flip < 2; ++flip)
      damaged[random() % std::min<size_t>(damaged.size(), 150)] = static_cast<char>(random());
    damaged.resize(random() % 3 ? damaged.size() : random() % damaged.size());
    try {
      const NpyArray array(damaged, "name");
      const int64_t last = array.columns() - 1;
      for (int64_t row = 0; row < array.rows(); ++row)
        if (array.is_text(last))
          array.text(row, last);
        else
          array.value(row, last);
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace lockstep::data
