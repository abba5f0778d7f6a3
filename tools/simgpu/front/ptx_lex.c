/* ptx_lex.c: PTX ISA, "Syntax": names, directives, numbers, comments. */
#include "lex.h"

#include <stdlib.h>
#include <string.h>

void *keep(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "simgpu: out of host memory\n");
        exit(3);
    }
    return p;
}

/* What a character may be. MARK: a block's text is looked through for these. */
enum { SPACE = 1, DIGIT = 2, LETTER = 4, NAME = 8, MARK = 16 };
static const u8 class_of[256] = {[' '] = SPACE,
                                 ['\t' ... '\r'] = SPACE,
                                 ['0' ... '9'] = DIGIT | NAME,
                                 ['a' ... 'z'] = LETTER | NAME,
                                 ['A' ... 'Z'] = LETTER | NAME,
                                 ['_'] = NAME,
                                 ['$'] = NAME,
                                 ['%'] = NAME,
                                 ['{'] = MARK,
                                 ['}'] = MARK,
                                 ['"'] = MARK,
                                 ['/'] = MARK};
static inline bool is(char c, u32 classes)
{
    return class_of[(u8)c] & classes;
}

const char *intern(const char *s, size_t length)
{
    static struct entry {
        struct entry *next;
        u64 hash;
        size_t length;
        char text[];
    } * table[1 << 14];
    u64 hash = 1469598103934665603u;
    for (size_t i = 0; i < length; i++) hash = (hash ^ (u8)s[i]) * 1099511628211u;
    struct entry **slot = &table[(hash ^ hash >> 29) & ((1 << 14) - 1)];
    for (struct entry *e = *slot; e; e = e->next)
        if (e->hash == hash && e->length == length && memcmp(e->text, s, length) == 0) return e->text;
    struct entry *e = keep(sizeof *e + length + 1);
    e->hash = hash;
    e->length = length;
    memcpy(e->text, s, length);
    e->next = *slot;
    *slot = e;
    return e->text;
}

void lex_start(struct lexer *l, const char *text, size_t length)
{
    *l = (struct lexer){.at = text, .limit = text + length, .text = text};
    lex_next(l);
}

u32 lex_line(const struct lexer *l)
{
    u32 line = 1;
    for (const char *c = l->text; c < l->at; c++) line += *c == '\n';
    return line;
}

static void skip_space(struct lexer *l)
{
    for (;;) {
        if (l->at < l->limit && is(*l->at, SPACE)) {
            l->at++;
        } else if (l->at + 1 < l->limit && l->at[0] == '/' && l->at[1] == '/') {
            while (l->at < l->limit && *l->at != '\n') l->at++;
        } else if (l->at + 1 < l->limit && l->at[0] == '/' && l->at[1] == '*') {
            l->at += 2;
            while (l->at + 1 < l->limit && !(l->at[0] == '*' && l->at[1] == '/')) l->at++;
            l->at = l->at + 2 < l->limit ? l->at + 2 : l->limit;
        } else {
            return;
        }
    }
}

/* From a string's opening quote to its closing one, or to the end of the text. */
static void skip_string(struct lexer *l)
{
    for (l->at++; l->at < l->limit && *l->at != '"'; l->at++)
        if (*l->at == '\\' && l->at + 1 < l->limit) l->at++;
}

void lex_skip_block(struct lexer *l)
{
    l->at = l->token.start;
    for (u32 depth = 1; l->at < l->limit; l->at++) {
        while (l->at < l->limit && !is(*l->at, MARK)) l->at++;
        if (l->at < l->limit && *l->at == '/') skip_space(l); /* a comment */
        if (l->at >= l->limit) break;
        if (*l->at == '{') depth++;
        if (*l->at == '}' && --depth == 0) break;
        if (*l->at == '"') skip_string(l);
    }
    lex_next(l);
}

/* 0x1F, 017, 0b101, 12U, 0f3F800000, 0d3FF0000000000000, 1.5e3 */
static void number(struct lexer *l, struct token *t)
{
    const char *s = l->at;
    while (l->at < l->limit &&
           (is(*l->at, DIGIT | LETTER) || *l->at == '.' ||
            ((*l->at == '+' || *l->at == '-') && s[0] != '0' && (l->at[-1] == 'e' || l->at[-1] == 'E'))))
        l->at++;
    char text[64];
    size_t n = (size_t)(l->at - s) < sizeof text - 1 ? (size_t)(l->at - s) : sizeof text - 1;
    memcpy(text, s, n);
    text[n] = 0;
    if (text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) {
        t->float_bytes = 4;
        t->value = strtoull(text + 2, NULL, 16);
    } else if (text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
        t->float_bytes = 8;
        t->value = strtoull(text + 2, NULL, 16);
    } else if (text[0] == '0' && (text[1] == 'b' || text[1] == 'B')) {
        t->value = strtoull(text + 2, NULL, 2);
    } else if (!(text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) && strpbrk(text, ".eE")) {
        double d = strtod(text, NULL);
        t->float_bytes = 8;
        memcpy(&t->value, &d, 8);
    } else {
        t->value = strtoull(text, NULL, 0);
    }
}

void lex_next(struct lexer *l)
{
    const char *before = l->at;
    skip_space(l);
    struct token t = {.start = l->at, .spaced = l->at != before};
    if (l->at >= l->limit || !*l->at) {
        t.kind = TOKEN_END;
        t.text = "end of text";
    } else if (is(*l->at, DIGIT)) {
        t.kind = TOKEN_NUMBER;
        number(l, &t);
        t.text = intern(t.start, (size_t)(l->at - t.start));
    } else if (is(*l->at, NAME)) {
        t.kind = TOKEN_NAME;
        while (l->at < l->limit && is(*l->at, NAME)) l->at++;
        t.text = intern(t.start, (size_t)(l->at - t.start));
    } else if (*l->at == '.' && l->at + 1 < l->limit && is(l->at[1], NAME)) {
        t.kind = TOKEN_DOT_NAME;
        for (l->at++; l->at < l->limit && (is(*l->at, NAME) || (l->at[0] == ':' && l->at[1] == ':')); l->at++)
            if (*l->at == ':') l->at++;
        t.text = intern(t.start, (size_t)(l->at - t.start));
    } else if (*l->at == '"') {
        t.kind = TOKEN_STRING;
        skip_string(l);
        t.text = intern(t.start + 1, (size_t)(l->at - t.start - 1));
        if (l->at < l->limit) l->at++;
    } else {
        t.kind = TOKEN_PUNCT;
        l->at++;
        t.text = intern(t.start, 1);
    }
    t.end = l->at;
    l->token = t;
}
