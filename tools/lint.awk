# lint.awk - limits of STYLE.md that need a look at the code without its comments and texts. For tools/lint:
#   awk -f tools/lint.awk -v allowed=" name name " FILE ...
#   six parameters, nine of kernels (src/device/cuda, src/ops/cpu) and of builders, whose first is the graph;
#   nesting 4 (src/device/cuda: 5); no switch over ops, no op known by its name; no mutable globals outside base/ but atomic
#   counters.
function say(what) { print FILENAME ":" FNR ": " what }

# The line without comments, and with texts emptied; in_comment is kept from line to line.
function code(s,    out, i) {
    out = ""
    while (length(s)) {
        if (in_comment) {
            i = index(s, "*/")
            if (!i) return out
            s = substr(s, i + 2)
            in_comment = 0
        } else if (match(s, /\/\*|\/\/|"(\\.|[^"\\])*"|'(\\.|[^'\\])'/)) {
            out = out substr(s, 1, RSTART - 1)
            tok = substr(s, RSTART, 2)
            if (tok == "//") return out
            if (tok == "/*") { in_comment = 1; s = substr(s, RSTART + 2) }
            else { out = out "\"\""; s = substr(s, RSTART + RLENGTH) }
        } else { return out s }
    }
    return out
}

# Parameters of the function whose head has been gathered.
function count(head,    i, ch, depth, n, name) {
    i = index(head, "(")
    name = substr(head, 1, i - 1)
    sub(/.*[ *]/, "", name)
    n = 1
    for (depth = 0; i <= length(head); i++) {
        ch = substr(head, i, 1)
        if (ch == "(") depth++
        else if (ch == ")" && --depth == 0) break
        else if (ch == "," && depth == 1) n++
    }
    if (n > (head ~ /\(mx_graph \*g[,)]/ ? 9 : most) && index(allowed, " " name " ") == 0)
        say(name " has " n " parameters (limit " most "); make a struct of what belongs together")
}

FNR == 1 {
    in_comment = 0; head = ""; type = 0
    most = FILENAME ~ /^src\/(device\/cuda|ops\/cpu)\// ? 9 : 6
    deepest = FILENAME ~ /^src\/device\/cuda\// ? 24 : 20
}
{
    line = code($0)
    if (line ~ /^[a-zA-Z_].*\(/ && line !~ /^(typedef|#|return|else|extern "")/ && line !~ /;$/) head = line
    else if (head != "") head = head " " line
    if (head != "" && line ~ /;[ ]*$/) head = ""
    if (line ~ /^\{/) { if (head != "") count(head); head = "" }
    if (match(line, /^ +(if|for|while|switch|do)[ ]/) && line !~ /\\$/) {
        match(line, /^ +/)
        if (RLENGTH >= deepest) say("nesting " RLENGTH / 4 " (limit " deepest / 4 - 1 ")")
    }
    if (FILENAME !~ /\/jinja\// && line ~ /switch \(.*->op[-)]|case MX_OP_|strn?cmp\([^,]*op->name/)
        say("a switch over ops; ask for a property of the op (src/ir/op.h)")
    if (FILENAME !~ /^src\/base\//) {
        if (line ~ /^[a-z_][A-Za-z_0-9 *]*[ *][a-z_0-9]+(\[[^\]]*\])*( =.*|;)$/ &&
            line !~ /^(static|extern|typedef|struct [a-z_0-9]+;|return|goto|union [a-z_0-9]+;)|const |__constant__/)
            say("a mutable global")
        if (line ~ /^typedef/) type = 1
        if (line ~ /^} [a-z_0-9]+(\[.*\])?;/ && !type) say("a mutable global")
        if (line ~ /^}/) type = 0
        if (line ~ /^ *static [^(]*;$/ && line !~ /const|inline|static atomic_/) say("a mutable global")
        if (line ~ /^ *static [^(]*=/ && line !~ /const|constexpr/) say("a mutable global")
    }
}
