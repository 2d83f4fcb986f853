/* font.c - renders the letters of a font for src/train/report/curve_png.c: pictures then need
 * neither the font nor FreeType where the program runs. Built and run by make.
 *
 *     font_maker DejaVuSans.ttf > font.c
 */
#include <ft2build.h>
#include FT_FREETYPE_H
#include <stdio.h>
#include <stdlib.h>

/* Latin, Greek and Cyrillic, dashes, dots, and the sign for what is not there. */
static const unsigned ranges[][2] = {{0x20, 0x7e},     {0xa0, 0x17f},    {0x370, 0x3ff},
                                     {0x400, 0x45f},   {0x2013, 0x2014}, {0x2026, 0x2026},
                                     {0xfffd, 0xfffd}};
static const struct {
    const char *name;
    unsigned pixels;
} sizes[] = {{"mx_font_small", 15}, {"mx_font_large", 20}};

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "font_maker: %s: %s\n", path, what);
    exit(1);
}

/* One glyph's coverage, row by row; its measures go to `table`. */
static void put_glyph(FT_Face face, unsigned code, FILE *table, long *at)
{
    if (FT_Load_Char(face, code, FT_LOAD_RENDER | FT_LOAD_TARGET_LIGHT) != 0)
        fail("a glyph cannot be rendered", "FreeType");
    FT_GlyphSlot g = face->glyph;
    fprintf(table, "{%u, %u, %u, %d, %d, %ld, %ld},\n", code, g->bitmap.width, g->bitmap.rows,
            g->bitmap_left, g->bitmap_top, (g->advance.x + 32) >> 6, *at);
    for (unsigned y = 0; y < g->bitmap.rows; y++)
        for (unsigned x = 0; x < g->bitmap.width; x++)
            printf("%u,", g->bitmap.buffer[(long)y * g->bitmap.pitch + (long)x]);
    *at += (long)g->bitmap.rows * (long)g->bitmap.width;
    puts("");
}

static void put_size(FT_Face face, const char *name, unsigned pixels)
{
    char *text;
    size_t n;
    long at = 0;
    int glyphs = 0;
    FILE *table = open_memstream(&text, &n);
    if (!table || FT_Set_Pixel_Sizes(face, 0, pixels) != 0)
        fail("no such size", name);
    printf("static const unsigned char %s_alpha[] = {\n", name);
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (unsigned code = ranges[r][0]; code <= ranges[r][1]; code++)
            if (FT_Get_Char_Index(face, code)) {
                put_glyph(face, code, table, &at);
                glyphs++;
            }
    fclose(table);
    printf("0};\nstatic const mx_glyph %s_glyphs[] = {\n%s};\n", name, text);
    printf("const mx_font %s = {%s_glyphs, %d, %s_alpha, %u};\n", name, name, glyphs, name, pixels);
    free(text);
}

int main(int argc, char **argv)
{
    FT_Library library;
    FT_Face face;
    if (argc != 2)
        fail("give the file of a font; fonts-dejavu-core has DejaVuSans.ttf", "no font");
    if (FT_Init_FreeType(&library) != 0 || FT_New_Face(library, argv[1], 0, &face) != 0)
        fail("is no font that FreeType reads", argv[1]);
    puts("/* Written by tools/font.c. */\n#include \"train/report/font.h\"\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        put_size(face, sizes[i].name, sizes[i].pixels);
    FT_Done_Face(face);
    FT_Done_FreeType(library);
    return fflush(stdout) != 0;
}
