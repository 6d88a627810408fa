#include "data/glyphs.h"

#include <array>
#include <cstddef>

#include "base/index.h"

namespace lockstep::data {
namespace {

using Glyph = std::span<const PenMove>;

constexpr PenMove at(double x, double y) { return {PenMove::Kind::lift, x, y}; }
constexpr PenMove line(double x, double y) { return {PenMove::Kind::line, x, y}; }
constexpr PenMove arc(double x, double y, double radius_x, double radius_y, double from, double to) {
  return {PenMove::Kind::arc, x, y, radius_x, radius_y, from, to};
}

// An arc as the first piece sets the pen down at its own beginning.
constexpr PenMove kZeroRound[] = {arc(.5, .5, .31, .45, -.25, .75)};
constexpr PenMove kZeroNarrow[] = {arc(.5, .5, .21, .45, -.2, .83)};
constexpr PenMove kZeroOpen[] = {arc(.5, .5, .27, .43, -.15, -1.08)};
constexpr PenMove kOneBar[] = {at(.5, .05), line(.5, .95)};
constexpr PenMove kOneFlag[] = {at(.3, .28), line(.54, .05), line(.54, .95)};
constexpr PenMove kOneBase[] = {at(.34, .24), line(.52, .06), line(.52, .94), at(.3, .94), line(.74, .94)};
constexpr PenMove kTwoAngular[] = {arc(.48, .3, .28, .24, .55, 1.12), line(.2, .93), line(.82, .93)};
constexpr PenMove kTwoLooped[] = {arc(.47, .28, .27, .22, .58, 1.15), line(.36, .82),
                                  arc(.29, .84, .09, .09, .1, .8), line(.58, .9), line(.84, .86)};
constexpr PenMove kTwoFlat[] = {at(.22, .1), line(.62, .07), arc(.6, .24, .17, .17, -.25, .12),
                                line(.18, .92), line(.8, .94)};
constexpr PenMove kThreeRound[] = {arc(.45, .28, .28, .22, .6, 1.25), arc(.45, .72, .31, .23, .75, 1.4)};
constexpr PenMove kThreeFlat[] = {at(.2, .07), line(.76, .07), line(.45, .42),
                                  arc(.45, .69, .3, .26, -.25, .4)};
constexpr PenMove kFourOpen[] = {at(.3, .08), line(.19, .56), line(.82, .55), at(.64, .3), line(.61, .95)};
constexpr PenMove kFourClosed[] = {at(.62, .95), line(.62, .05), line(.14, .65), line(.86, .65)};
constexpr PenMove kFourSquare[] = {at(.22, .08), line(.22, .52), line(.78, .5), at(.76, .08), line(.74, .95)};
constexpr PenMove kFive[] = {at(.78, .07), line(.3, .07), line(.27, .45), arc(.46, .67, .3, .26, .65, 1.4)};
constexpr PenMove kFiveTwoStrokes[] = {at(.3, .08), line(.26, .42), arc(.45, .66, .29, .27, .66, 1.36),
                                       at(.3, .09), line(.8, .06)};
constexpr PenMove kFiveRounded[] = {arc(.55, .27, .27, .2, -.1, -.72), arc(.46, .7, .28, .24, .75, 1.42)};
constexpr PenMove kSixCurved[] = {arc(.76, .62, .54, .57, .7, .5), arc(.49, .7, .27, .24, .5, -.5)};
constexpr PenMove kSixStraight[] = {at(.62, .05), line(.25, .62), arc(.49, .71, .25, .23, .5, -.45)};
constexpr PenMove kSevenPlain[] = {at(.18, .08), line(.8, .08), line(.4, .95)};
constexpr PenMove kSevenCrossed[] = {at(.18, .08), line(.8, .08), line(.42, .95), at(.34, .52),
                                     line(.74, .5)};
constexpr PenMove kSevenHooked[] = {at(.19, .22), line(.2, .09), line(.82, .08), line(.56, .5),
                                    line(.48, .95)};
constexpr PenMove kEightStacked[] = {arc(.5, .27, .22, .21, .25, 1.25), arc(.5, .71, .28, .24, -.25, .75)};
constexpr PenMove kEightCrossed[] = {arc(.5, .26, .22, .2, -.08, -.63), arc(.5, .72, .25, .22, -.12, .6),
                                     line(.68, .18)};
constexpr PenMove kNineStraight[] = {arc(.5, .3, .26, .24, 0, -1), line(.7, .95)};
constexpr PenMove kNineCurved[] = {arc(.5, .3, .26, .23, -.05, -1), arc(.34, .42, .42, .52, 0, .2)};
constexpr PenMove kNineSlanted[] = {arc(.48, .29, .23, .23, -.1, -1.02), line(.46, .95)};

constexpr Glyph kZero[] = {kZeroRound, kZeroNarrow, kZeroOpen};
constexpr Glyph kOne[] = {kOneBar, kOneFlag, kOneBase};
constexpr Glyph kTwo[] = {kTwoAngular, kTwoLooped, kTwoFlat};
constexpr Glyph kThree[] = {kThreeRound, kThreeFlat};
constexpr Glyph kFour[] = {kFourOpen, kFourClosed, kFourSquare};
constexpr Glyph kFiveAll[] = {kFive, kFiveTwoStrokes, kFiveRounded};
constexpr Glyph kSix[] = {kSixCurved, kSixStraight};
constexpr Glyph kSeven[] = {kSevenPlain, kSevenCrossed, kSevenHooked};
constexpr Glyph kEight[] = {kEightStacked, kEightCrossed};
constexpr Glyph kNine[] = {kNineStraight, kNineCurved, kNineSlanted};

constexpr std::array<std::span<const Glyph>, 10> kGlyphs{kZero,    kOne, kTwo,   kThree, kFour,
                                                         kFiveAll, kSix, kSeven, kEight, kNine};

}  // namespace

std::span<const std::span<const PenMove>> glyphs_of(int digit) { return nth(kGlyphs, digit); }

}  // namespace lockstep::data
