#!/usr/bin/env bash
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$(realpath "$0")")/../common.sh"

# Lines of this checkout with their languages: lines_of CLASS FILE...
lines_of() {
  awk -v class="$1" 'length($0) > 8 { gsub(/\t/, " "); print class "\t" $0 }' "${@:2}"
}
mkdir "$OUT/lines"
{
  lines_of C++ src/data/*.cpp src/data/*.h
  lines_of Markdown docs/*.md
  lines_of Python scripts/*.py
  lines_of shell scripts/*.sh examples/*/run.sh
} > "$OUT/lines/lines.tsv"
{
  lines_of C++ src/base/*.cpp src/base/*.h
  lines_of Markdown README.md CONTRIBUTING.md
  lines_of Python tests/examples/*.py
  lines_of shell .ci/run .ci/nightly
} > "$OUT/lines/others.tsv"

"$lockstep" data check "$example/languages.textproto" --data-dir "$OUT/lines"
"${run[@]}" -n 2 -- train "$example/languages.textproto" --data-dir "$OUT/lines" --device cpu --out "$OUT/run" --quiet
# Lines of files that no part of was trained on.
"$lockstep" eval --checkpoint "$OUT/run" --json --quiet --set 'data.lines.files=["others.tsv"]' \
  --set data.lines.eval_fraction=1 > "$OUT/evaluation.json"
echo "accuracy $(field "$OUT/evaluation.json" eval_accuracy) on lines of other files"
