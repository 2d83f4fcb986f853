#!/bin/sh
# chat.sh - `maxc chat`: messages of a pipe, and keys at a terminal: editing, the lines before, pasted text, Ctrl-C, SIGTERM.
. tests/cli/expect.inc
. tests/cli/letters.inc
m="$tmp/model"
letters_model "$m"
printf '%s' '{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}' \
    > "$m/chat_template.jinja"
say() { echo "chat.sh: $*"; bad=1; }
said() { tr -d ' \n' < "$tmp/saved" | grep -o '"role":"user","content":"[^"]*"' | sed 's/.*content":"//; s/"$//' | tr '\n' ' '; }

printf 'one\ntwo\\\nlines\n/save %s\n/quit\n' "$tmp/saved" | $maxc chat "$m" max_new_tokens=3 num_threads=1 > "$tmp/out" || say "a pipe ends with $?"
[ "$(said)" = 'one two\nlines ' ] || say "messages of a pipe: $(said)"

command -v script > "$tmp/null" || { echo "chat.sh: no script(1) here: keys at a terminal are left out"; [ "$bad" = 0 ]; exit; }
# keys TEXT: what is typed, with printf's escapes, a while after the program has begun to read
keys() {
    : > "$tmp/screen"
    {
        until grep -q 'lists commands' "$tmp/screen"; do sleep 0.1; done
        sleep 1
        printf "$1"
    } | TERM=xterm script -qefc "$maxc chat $m max_new_tokens=3 num_threads=1" "$tmp/screen" > "$tmp/out"
}
rm "$tmp/saved"
# a character is taken back, one put in front, one changed in the middle; the line before that comes again
keys "ab\303\251\177c\r\033[A\033[Hz\033[D\033[C\033[C\033[3~d\r\033[A\033[A\r\033[200~x\ry\033[201~\rno\003/save $tmp/saved\r\004" || say "a terminal ends with $?: $(cat "$tmp/screen")"
[ "$(said)" = 'abc zadc abc x\ny ' ] || say "messages of a terminal: $(said)"
grep -q 'checkpoint' "$tmp/screen" && say "a conversation speaks of checkpoints"

# Ctrl-C ends an answer and says nothing; SIGTERM ends the conversation, and the terminal is as before.
rm "$tmp/saved"
: > "$tmp/screen"
{
    until grep -q 'lists commands' "$tmp/screen"; do sleep 0.1; done
    sleep 1
    printf 'long\r'
    sleep 0.3
    printf '\003'
    sleep 1
    printf '/save %s\r' "$tmp/saved"
    until [ -s "$tmp/saved" ]; do sleep 0.1; done
    sleep 1
    kill -TERM "$(cat "$tmp/pid")"
    until grep -q 'ended' "$tmp/screen"; do sleep 0.1; done
} | TERM=xterm script -qefc "sh -c 'echo \$\$ > $tmp/pid; exec $maxc chat $m max_new_tokens=200 num_threads=1'; echo ended \$?; stty -a" "$tmp/screen" > "$tmp/out"
[ "$(said)" = 'long ' ] || say "an answer that was cut off: $(said)"
grep -q 'ended 0' "$tmp/screen" && grep -q ' icanon' "$tmp/screen" || say "SIGTERM: $(cat "$tmp/screen")"
grep -q 'checkpoint' "$tmp/screen" && say "Ctrl-C speaks of checkpoints"
[ "$bad" = 0 ]
