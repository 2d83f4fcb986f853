#!/bin/sh
# install.sh - make install into a folder: the program works from there and finds its configs from any folder, manual
# pages and completion know every verb and key, a program is built with the library, and uninstall leaves nothing.
set -u
cd "$(dirname "$0")/../.."
tree=$PWD
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0
say() { echo "install.sh: $*"; bad=1; }
make_it() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s --no-print-directory "$@" > "$tmp/make" 2>&1 || { say "make $* fails:"; cat "$tmp/make"; }; }

root=$tmp/a\ root
make_it install PREFIX=/opt/maxc DESTDIR="$root"
maxc=$root/opt/maxc/bin/maxc
grep -qx 'prefix=/opt/maxc' "$root/opt/maxc/lib/pkgconfig/maxc.pc" || say "maxc.pc does not have the prefix"
grep -rqF "$root" "$root/opt/maxc/lib/pkgconfig" "$root/opt/maxc/share" && say "DESTDIR is in an installed file"

# Recipes and models from another folder: installed, from the build tree, and where MAXC_CONFIGS says.
mkdir "$tmp/elsewhere"
for program in "$maxc" "$tree/build/maxc" "$tree/build/release/maxc"; do
    (cd "$tmp/elsewhere" && "$program" plan small.yml && "$program" plan model_name=llama3.2-1b chip=h100 && "$program" help recipes &&
        "$program" plan configs/recipes/demo.yml) > "$tmp/out" 2>&1 || { say "$program does not find its configs:"; cat "$tmp/out"; }
    grep -q '^small.yml - ' "$tmp/out" || say "$program does not list the recipes"
done
cp "$maxc" "$tmp/elsewhere/maxc"
(cd "$tmp/elsewhere" && MAXC_CONFIGS=$tree/configs ./maxc plan small.yml) > "$tmp/out" 2>&1 || { say "MAXC_CONFIGS does not help:"; cat "$tmp/out"; }
(cd "$tmp/elsewhere" && "$maxc" plan no-such.yml) > "$tmp/out" 2>&1
[ $? = 3 ] && grep -q 'no file no-such.yml, and no recipe of that name; recipes: demo.yml, ' "$tmp/out" || { say "a missing file:"; cat "$tmp/out"; }

# Manual pages: every verb, every key; man has nothing to say against them.
for v in $("$maxc" completion verbs); do
    page=$root/opt/maxc/share/man/man1/maxc-$v.1
    [ -s "$page" ] || { say "no manual page of $v"; continue; }
    if command -v man > /dev/null; then
        man --warnings -E ascii -l "$page" 2>&1 > "$tmp/page" | grep . && say "man warns about maxc-$v.1"
    fi
done
for k in learning_rate dataset_path dtype; do
    grep -q "^.fB$k" "$root/opt/maxc/share/man/man1/maxc-train.1" || say "maxc-train.1 does not know $k"
done

# Completion. bash splits words at =.
cat > "$tmp/complete" << 'END'
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
compopt() { :; }
_maxc
printf '%s\n' "${COMPREPLY[@]}"
END
completes() { # EXPECTED WORDS...
    expected=$1; shift
    PATH="$(dirname "$maxc"):$PATH" bash "$tmp/complete" "$root/opt/maxc/share/bash-completion/completions/maxc" maxc "$@" > "$tmp/out" 2>&1
    grep -qxF -e "$expected" "$tmp/out" || { say "bash does not complete \`maxc $*\` with $expected:"; head -5 "$tmp/out"; }
}
if command -v bash > /dev/null; then
    completes train tr
    completes learning_rate= train learning_r
    completes cosine train lr_schedule_type = ''
    completes cosine train lr_schedule_type = cos
    completes lr_schedule_type=cosine train lr_schedule_type=cos
    completes --learning_rate= train --learning_r
    completes true train packing = t
    completes llama3.2-1b train model_name = llama3.2
    completes small.yml train sm
    completes temperature= generate temper
    completes llama3.2-1b generate llama3.2
    completes jsonl tokenize format = js
    completes json doctor format = js
    completes learning_rate help learning_r
    completes doctor help doc
fi
# zsh on a terminal of its own, whose compadd writes down what is offered.
cat > "$tmp/offers.zsh" << 'END'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "fpath=(${(q)1} \$fpath); autoload -Uz compinit && compinit -u -D"
zpty -w shell "compadd() { local -a got; builtin compadd -O got \"\$@\"; print -rl -- \$got >> ${(q)2}; builtin compadd \"\$@\" }; : > ${(q)2}"
repeat 200; do [[ -e $2 ]] && break; sleep 0.1; done
zpty -w -n shell "$3"$'\t'
repeat 200; do grep -qxF -e "$4" $2 && exit 0; sleep 0.1; done
exit 1
END
if command -v zsh > /dev/null; then
    for pair in 'maxc tr|train' 'maxc train learning_r|learning_rate=' 'maxc train lr_schedule_type=c|cosine' 'maxc train sm|small.yml' \
        'maxc train --learning_r|learning_rate=' 'maxc generate llama3.2|llama3.2-1b' 'maxc tokenize format=js|jsonl'; do
        rm -f "$tmp/offers"
        PATH="$(dirname "$maxc"):$PATH" zsh -f "$tmp/offers.zsh" "$root/opt/maxc/share/zsh/site-functions" "$tmp/offers" "${pair%|*}" \
            "${pair#*|}" > "$tmp/out" 2>&1 || { say "zsh does not complete \`${pair%|*}\` with ${pair#*|}:"; head -n 5 "$tmp/offers"; }
    done
fi
if command -v fish > /dev/null; then
    f=$root/opt/maxc/share/fish/vendor_completions.d/maxc.fish
    fish_says() { PATH="$(dirname "$maxc"):$PATH" fish --no-config -c "source '$f'; complete -C '$1'" 2>&1 | cut -f 1; }
    for pair in 'maxc tr|train' 'maxc train learning_r|learning_rate=' 'maxc train lr_schedule_type=c|lr_schedule_type=cosine' \
        'maxc train --lr_schedule_type=c|--lr_schedule_type=cosine' 'maxc train --learning_r|--learning_rate=' 'maxc train sm|small.yml'; do
        fish_says "${pair%|*}" | grep -qxF -e "${pair#*|}" || say "fish does not complete \`${pair%|*}\` with ${pair#*|}"
    done
fi

# A program with the library: the same text as maxc generate.
export MAXC_NUM_THREADS=1
(cd "$tmp/elsewhere" && "$maxc" train demo.yml run_name=r steps=3 base_num_decoder_layers=1 enable_tensorboard=false) > "$tmp/out" 2>&1 ||
    { say "the installed program does not train:"; cat "$tmp/out"; }
ln -s "$root/opt/maxc" "$tmp/prefix" # pkg-config does not quote spaces
flags=$(PKG_CONFIG_PATH="$tmp/prefix/lib/pkgconfig" pkg-config --define-variable=prefix="$tmp/prefix" --cflags --libs maxc) || say "pkg-config does not know maxc"
cc -Wall -Wextra -Werror examples/generate.c $flags -o "$tmp/example" > "$tmp/out" 2>&1 || { say "the example is not built:"; cat "$tmp/out"; }
"$tmp/example" "$tmp/elsewhere/runs/r" "Once upon" > "$tmp/out" 2>&1 || { say "the example fails:"; cat "$tmp/out"; }
"$maxc" generate "$tmp/elsewhere/runs/r" prompt="Once upon" max_new_tokens=40 > "$tmp/wanted"
tail -n +2 "$tmp/out" | cmp - "$tmp/wanted" || say "the library writes other text than maxc generate"
"$tmp/example" "$tmp/nowhere" x > "$tmp/out" 2>&1
[ $? = 3 ] && grep -q 'neither a directory' "$tmp/out" || { say "the example with a model that is not there:"; cat "$tmp/out"; }
printf '#include <maxc.h>\nint main() { return maxc_error_code(nullptr); }\n' > "$tmp/plus.cc"
if command -v c++ > /dev/null; then c++ -fsyntax-only -I"$root/opt/maxc/include" "$tmp/plus.cc" || say "C++ does not read maxc.h"; fi

# What an older version had installed goes, and so does everything in the end.
echo old > "$root/opt/maxc/share/maxc/configs/models/old-model.yml"
echo share/maxc/configs/models/old-model.yml >> "$root/opt/maxc/share/maxc/manifest"
make_it install PREFIX=/opt/maxc DESTDIR="$root"
[ ! -e "$root/opt/maxc/share/maxc/configs/models/old-model.yml" ] || say "a file of an older version is left"
make_it uninstall PREFIX=/opt/maxc DESTDIR="$root"
left=$(find "$root" -not -type d)
[ -z "$left" ] || say "uninstall leaves $left"
[ ! -e "$root/opt/maxc/share/maxc" ] || say "uninstall leaves its folders"
[ "$bad" = 0 ]
