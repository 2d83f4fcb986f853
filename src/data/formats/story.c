/* story.c - a small grammar that writes stories and sums, so that training works without data.
 *
 * A model of a few million parameters that sees a few million bytes of this for some minutes goes
 * from noise to readable stories, because the text has structure at every distance:
 *   letters -> words      a few hundred common English words
 *   words -> sentences    fixed frames with agreeing pronouns ("her", "his")
 *   sentences -> story    the hero, the friend, the animal and the thing stay the same to the
 *                         end; what was lost is what is found
 *   numbers               "had 3 apples ... gave her 4 more ... now had 7 apples"; and documents
 *                         of sums, "12 + 7 = 19", one a line
 * Every fourth document or so is sums. Nothing is stored: the choice at every branch is a draw from
 * the stream (seed, index), so document 10^12 costs what document 0 does. Entropy is far below
 * English by design: it is for demonstrations and tests, not for pre-training.
 *
 * A template is text with {x} slots: {h} hero, {k} girl/boy, {s}/{S} she/he, {r} her/his, {o}
 * her/him, {f} friend, {T} the friend's She/He, {a} animal, {w} its name, {c} colour, {p} place,
 * {n} thing, {g} food (plural), {1} {2} numbers and {3} their sum.
 */
#include "data/formats/story.h"

#include "data/load/random.h"
#include <string.h>

#define COUNT(v) ((int)(sizeof(v) / sizeof *(v)))

/* Names come in pairs of tables so that the pronoun always agrees. */
static const char *const girls[] = {"Mia", "Anna", "Lily", "Rosa", "Nina", "Emma", "Sara", "Zoe"};
static const char *const boys[] = {"Tom", "Ben", "Max", "Leo", "Sam", "Jack", "Omar", "Finn"};
static const char *const animals[] = {"cat", "dog", "rabbit", "duck",
                                      "fox", "bear", "mouse", "horse"};
static const char *const pet_names[] = {"Coco", "Buddy", "Star", "Pip", "Snow", "Lucky"};
static const char *const colours[] = {"red", "blue", "green", "yellow", "white", "brown", "black"};
static const char *const places[] = {"park", "garden", "forest", "beach",
                                     "farm", "old house", "river"};
static const char *const things[] = {"ball", "kite", "hat", "book", "drum", "boat", "key", "lamp"};
static const char *const foods[] = {"apples", "cookies", "berries", "pears", "nuts", "plums"};

static const char *const openings[] = {
    "Once upon a time there was a {k} named {h}. {S} lived near the {p}. ",
    "One day, a {k} named {h} went to the {p}. ",
    "{h} was a {k} who loved to play in the {p}. ",
    "There was once a {k} called {h}. Every day {s} went to the {p} with {r} friend {f}. ",
};
static const char *const meetings[] = {
    "There {s} saw a {c} {a}. The {a} was named {w}. ",
    "{h} met a little {a} with {c} ears. \"My name is {w},\" said the {a}. ",
    "A {c} {a} was sitting under a tree. \"Hello, I am {w},\" said the {a}. ",
};
static const char *const events[] = {
    "{h} had a {c} {n}. But the {n} was lost! {h} was very sad. {f} looked for the {n} all day. "
    "At last {w} found the {n} near the {p}. ",
    "{w} was hungry. {h} had {1} {g}. {f} gave {o} {2} more {g}. Now {h} had {3} {g}. "
    "{h} shared the {g} with {w}. ",
    "It started to rain. {h} and {w} were cold and wet. {f} came with a big {c} hat. "
    "They all went home and ate {g}. ",
    "{h} wanted to make a {n}. \"Can you help me?\" {s} asked. \"Yes, I can,\" said {f}. "
    "They worked hard, and soon the {c} {n} was ready. ",
    "{h} climbed a tall tree and could not come down. \"Help!\" {s} cried. {f} heard {o} "
    "and ran to the {p}. {T} helped {o} come down. ",
    "{h} counted the {g}. There were {3} {g} in the box. {w} ate {1} of them. "
    "Now there were {2} {g}. {h} laughed. ",
};
static const char *const endings[] = {
    "{h} was happy. \"Thank you, {f},\" {s} said. They were friends forever.\n",
    "{h} smiled and gave {w} a big hug. Then they all went home.\n",
    "From that day on, {h}, {f} and {w} played in the {p} every day. The end.\n",
    "{h} learned that it is good to help a friend. The end.\n",
};

typedef struct {
    const char *hero, *friend, *animal, *pet, *colour, *place, *thing, *food;
    bool hero_girl, friend_girl;
    int a, b; /* the numbers: {1}, {2} and {3} = a + b */
} cast;

#define PICK(d, v) ((v)[mx_draw_below((d), (uint64_t)COUNT(v))])

static const char *person(mx_draws *d, bool girl)
{
    return girl ? PICK(d, girls) : PICK(d, boys);
}

static cast choose_cast(mx_draws *d)
{
    cast c = {.hero_girl = mx_draw_below(d, 2), .friend_girl = mx_draw_below(d, 2)};
    c.hero = person(d, c.hero_girl);
    do
        c.friend = person(d, c.friend_girl);
    while (c.friend == c.hero);
    c.animal = PICK(d, animals);
    c.pet = PICK(d, pet_names);
    c.colour = PICK(d, colours);
    c.place = PICK(d, places);
    c.thing = PICK(d, things);
    c.food = PICK(d, foods);
    c.a = 1 + (int)mx_draw_below(d, 9);
    c.b = 1 + (int)mx_draw_below(d, 9);
    return c;
}

static void fill_slot(mx_str *out, char slot, const cast *c)
{
    switch (slot) {
    case 'h': mx_str_add(out, c->hero); break;
    case 'f': mx_str_add(out, c->friend); break;
    case 'k': mx_str_add(out, c->hero_girl ? "girl" : "boy"); break;
    case 's': mx_str_add(out, c->hero_girl ? "she" : "he"); break;
    case 'S': mx_str_add(out, c->hero_girl ? "She" : "He"); break;
    case 'r': mx_str_add(out, c->hero_girl ? "her" : "his"); break;
    case 'o': mx_str_add(out, c->hero_girl ? "her" : "him"); break;
    case 'T': mx_str_add(out, c->friend_girl ? "She" : "He"); break;
    case 'a': mx_str_add(out, c->animal); break;
    case 'w': mx_str_add(out, c->pet); break;
    case 'c': mx_str_add(out, c->colour); break;
    case 'p': mx_str_add(out, c->place); break;
    case 'n': mx_str_add(out, c->thing); break;
    case 'g': mx_str_add(out, c->food); break;
    case '1': mx_str_addf(out, "%d", c->a); break;
    case '2': mx_str_addf(out, "%d", c->b); break;
    case '3': mx_str_addf(out, "%d", c->a + c->b); break;
    default: MX_ASSERT(false, "no slot {%c} in the story grammar", slot);
    }
}

static void fill(mx_str *out, const char *frame, const cast *c)
{
    for (const char *open; (open = strchr(frame, '{')); frame = open + 3) {
        mx_str_add_n(out, frame, (size_t)(open - frame));
        fill_slot(out, open[1], c);
    }
    mx_str_add(out, frame);
}

static void write_sums(mx_str *out, mx_draws *d)
{
    int n = 6 + (int)mx_draw_below(d, 10);
    int top = mx_draw_below(d, 3) ? 10 : 50; /* small sums are learned first, larger ones later */
    for (int i = 0; i < n; i++) {
        int a = (int)mx_draw_below(d, (uint64_t)top), b = (int)mx_draw_below(d, (uint64_t)top);
        if (mx_draw_below(d, 3))
            mx_str_addf(out, "%d + %d = %d\n", a, b, a + b);
        else
            mx_str_addf(out, "%d - %d = %d\n", a + b, b, a);
    }
}

void mx_story_write(mx_str *out, uint64_t seed, uint64_t index)
{
    mx_draws d = {mx_mix_key(seed, index), 0};
    if (mx_draw_below(&d, 4) == 0) {
        write_sums(out, &d);
        return;
    }
    cast c = choose_cast(&d);
    fill(out, PICK(&d, openings), &c);
    fill(out, PICK(&d, meetings), &c);
    fill(out, PICK(&d, events), &c);
    fill(out, PICK(&d, endings), &c);
}
