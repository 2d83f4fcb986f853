/* line_edit.c - see line_edit.h.
 *
 * The terminal sends keys as they are pressed while a line is read, and is as before between lines.
 * After each key, prompt and text are drawn again from the prompt's row on. Columns are counted as
 * terminals do: two for wide characters, none for combining ones.
 */
#include "cmd/line_edit.h"

#include "base/arena.h"
#include "base/signals.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { MOST_LINES = 500, END = -1 };
/* Keys that are no characters; control characters are themselves. */
enum { UP = 256, DOWN, RIGHT, LEFT, HOME, LINE_END, DELETE, PASTE, PASTED, OTHER };

typedef struct {
    const char *prompt;
    mx_str *text;
    size_t at; /* of the cursor, in bytes */
    int row;   /* of the cursor, below the prompt's */
    int shown; /* line of the history; n: the new one */
    mx_str own; /* the new line, while another is shown */
    bool pastes;
} editor;

/* --- keys --- */

/* A byte of input, END at its end. A signal to end counts as that. */
static int next_byte(void)
{
    unsigned char c;
    for (;;) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        int ready = poll(&p, 1, -1);
        if (ready < 0 && errno == EINTR && mx_stop_signal() != SIGTERM)
            continue;
        return ready > 0 && read(STDIN_FILENO, &c, 1) == 1 ? c : END;
    }
}

/* What follows Escape: [ or O, digits, a letter or ~. */
static int escape_key(void)
{
    int c = next_byte(), n = 0;
    if (c != '[' && c != 'O')
        return c == END ? END : OTHER;
    for (c = next_byte(); (c >= '0' && c <= '9') || c == ';'; c = next_byte())
        n = c == ';' || n > 999 ? 1000 : 10 * n + c - '0'; /* with a modifier: another key */
    switch (c) {
    case 'A': return UP;
    case 'B': return DOWN;
    case 'C': return RIGHT;
    case 'D': return LEFT;
    case 'H': return HOME;
    case 'F': return LINE_END;
    case '~':
        return n == 1 || n == 7     ? HOME
               : n == 4 || n == 8   ? LINE_END
               : n == 3             ? DELETE
               : n == 200           ? PASTE
               : n == 201           ? PASTED
                                    : OTHER;
    default: return c == END ? END : OTHER;
    }
}

/* --- characters --- */

static size_t before(const mx_str *s, size_t at)
{
    while (at > 0 && (s->text[--at] & 0xc0) == 0x80)
        ;
    return at;
}

static size_t after(const mx_str *s, size_t at)
{
    for (at += at < s->len; at < s->len && (s->text[at] & 0xc0) == 0x80; at++)
        ;
    return at;
}

static unsigned code_point(const char *s, size_t n)
{
    unsigned c = (unsigned char)s[0];
    c &= n == 1 ? 0x7f : n == 2 ? 0x1f : n == 3 ? 0x0f : 0x07;
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

static int columns_of(unsigned c)
{
    static const struct {
        unsigned from, to;
    } none[] = {{0x300, 0x36f}, {0x200b, 0x200f}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}},
      wide[] = {{0x1100, 0x115f}, {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xac00, 0xd7a3},
                {0xf900, 0xfaff}, {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},
                {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (c >= none[i].from && c <= none[i].to)
            return 0;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (c >= wide[i].from && c <= wide[i].to)
            return 2;
    return 1;
}

/* --- drawing --- */

typedef struct {
    int row, column;
} place;

/* Appends text up to byte `to`, a line break as one on the screen, and moves p along. */
static void put(mx_str *out, const mx_str *text, size_t to, place *p, int width)
{
    for (size_t i = 0, next; i < to; i = next) {
        next = after(text, i);
        if (text->text[i] == '\n') {
            mx_str_add(out, "\r\n");
            *p = (place){p->row + 1, 0};
            continue;
        }
        int n = columns_of(code_point(text->text + i, next - i));
        if (p->column + n > width) { /* the terminal goes on in the next row */
            mx_str_add(out, "\r\n");
            *p = (place){p->row + 1, 0};
        }
        mx_str_add_n(out, text->text + i, next - i);
        p->column += n;
    }
}

static void draw(editor *e)
{
    struct winsize w;
    int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 2 ? w.ws_col - 1 : 79;
    mx_str out = {0}, unseen = {0};
    int start = (int)strlen(e->prompt);
    place end = {0, start}, cursor = {0, start};
    if (e->row)
        mx_str_addf(&out, "\x1b[%dA", e->row);
    mx_str_addf(&out, "\r\x1b[J%s", e->prompt);
    put(&out, e->text, e->text->len, &end, width);
    put(&unseen, e->text, e->at, &cursor, width);
    if (end.row > cursor.row)
        mx_str_addf(&out, "\x1b[%dA", end.row - cursor.row);
    mx_str_add(&out, "\r");
    if (cursor.column)
        mx_str_addf(&out, "\x1b[%dC", cursor.column);
    (void)!write(STDERR_FILENO, mx_str_text(&out), out.len);
    e->row = cursor.row;
    mx_str_fini(&out);
    mx_str_fini(&unseen);
}

/* --- editing --- */

static void cut(editor *e, size_t from, size_t to)
{
    mx_str *s = e->text;
    if (from == to)
        return;
    memmove(s->text + from, s->text + to, s->len - to);
    s->len -= to - from;
    s->text[s->len] = 0;
    e->at = from;
}

static void insert(editor *e, char c)
{
    mx_str *s = e->text;
    mx_str_add_n(s, &c, 1);
    memmove(s->text + e->at + 1, s->text + e->at, s->len - 1 - e->at);
    s->text[e->at++] = c;
}

static size_t word_before(const editor *e)
{
    size_t at = e->at;
    while (at > 0 && e->text->text[at - 1] == ' ')
        at--;
    while (at > 0 && e->text->text[at - 1] != ' ')
        at--;
    return at;
}

/* Another line of the history, or the new one after them. */
static void show(editor *e, const mx_line_history *h, int i)
{
    if (i < 0 || i > h->n)
        return;
    if (e->shown == h->n) {
        mx_str_clear(&e->own);
        mx_str_add_n(&e->own, mx_str_text(e->text), e->text->len);
    }
    mx_str_clear(e->text);
    mx_str_add(e->text, i < h->n ? h->line[i] : mx_str_text(&e->own));
    e->shown = i;
    e->at = e->text->len;
}

/* False: the key is none that edits. */
static bool edit(editor *e, const mx_line_history *h, int key)
{
    mx_str *s = e->text;
    switch (key) {
    case UP: case CTRL('P'): show(e, h, e->shown - 1); return true;
    case DOWN: case CTRL('N'): show(e, h, e->shown + 1); return true;
    case RIGHT: case CTRL('F'): e->at = after(s, e->at); return true;
    case LEFT: case CTRL('B'): e->at = before(s, e->at); return true;
    case HOME: case CTRL('A'): e->at = 0; return true;
    case LINE_END: case CTRL('E'): e->at = s->len; return true;
    case 127: case CTRL('H'): cut(e, before(s, e->at), e->at); return true;
    case DELETE: case CTRL('D'): cut(e, e->at, after(s, e->at)); return true;
    case CTRL('K'): cut(e, e->at, s->len); return true;
    case CTRL('U'): cut(e, 0, e->at); return true;
    case CTRL('W'): cut(e, word_before(e), e->at); return true;
    case CTRL('L'):
        (void)!write(STDERR_FILENO, "\x1b[H\x1b[2J", 7);
        e->row = 0;
        return true;
    default: return false;
    }
}

static bool read_keys(editor *e, const mx_line_history *h)
{
    for (;;) {
        int key = next_byte();
        if (key == 27)
            key = escape_key();
        if (key == END || (key == CTRL('D') && !e->text->len))
            return false;
        if (key == PASTE || key == PASTED)
            e->pastes = key == PASTE;
        else if ((key == '\r' || key == '\n') && !e->pastes)
            return true;
        else if (key == CTRL('C'))
            cut(e, 0, e->text->len);
        else if (!edit(e, h, key) && key < 256 && (key >= ' ' || key == '\r' || key == '\n'))
            insert(e, (char)(key == '\r' ? '\n' : key));
        struct pollfd more = {.fd = STDIN_FILENO, .events = POLLIN};
        if (poll(&more, 1, 0) <= 0) /* what is pasted is drawn once */
            draw(e);
    }
}

static void remember(mx_line_history *h, const char *line)
{
    if (!*line || (h->n && strcmp(h->line[h->n - 1], line) == 0))
        return;
    if (h->n == MOST_LINES) {
        mx_free(h->line[0]);
        memmove(h->line, h->line + 1, sizeof *h->line * (size_t)--h->n);
    }
    h->line = mx_realloc(h->line, sizeof *h->line * (size_t)(h->n + 1));
    h->line[h->n++] = mx_strdup(line);
}

bool mx_line_read(mx_line_history *h, const char *prompt, mx_str *out)
{
    struct termios was, raw;
    mx_str_clear(out);
    if (tcgetattr(STDIN_FILENO, &was))
        return false;
    raw = was;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | IXON | BRKINT | INPCK | ISTRIP);
    raw.c_lflag &= ~(tcflag_t)(ECHO | ICANON | IEXTEN | ISIG);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    (void)!write(STDERR_FILENO, "\x1b[?2004h", 8); /* pasted text is marked as such */
    editor e = {.prompt = prompt, .text = out, .shown = h->n};
    draw(&e);
    bool more = read_keys(&e, h);
    e.at = out->len;
    draw(&e);
    (void)!write(STDERR_FILENO, "\x1b[?2004l\r\n", 10);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &was);
    if (more)
        remember(h, mx_str_text(out));
    mx_str_fini(&e.own);
    return more;
}

void mx_line_history_fini(mx_line_history *h)
{
    for (int i = 0; i < h->n; i++)
        mx_free(h->line[i]);
    mx_free(h->line);
    *h = (mx_line_history){0};
}
