/* lex.h: PTX text as tokens (front/ptx_lex.c). */
#ifndef LEX_H
#define LEX_H

#include "../sim.h"

enum token_kind { TOKEN_END, TOKEN_NAME, TOKEN_DOT_NAME, TOKEN_NUMBER, TOKEN_STRING, TOKEN_PUNCT };

/* NAME: `ld`, `%r1`, `$L__BB0_2`. DOT_NAME: `.param`, `.mbarrier::complete_tx::bytes`, with the dot. `text` is interned:
 * equal names are equal pointers. NUMBER: `value` holds the integer, or the bits of a float. */
struct token {
    enum token_kind kind;
    const char *text;
    const char *start, *end; /* in the source */
    u64 value;
    u8 float_bytes; /* NUMBER: 0 integer, 4: 0f…, 8: 0d… or decimal */
    bool spaced;    /* white space before it */
};

struct lexer {
    const char *text, *at, *limit;
    struct token token; /* the current one */
};

void lex_start(struct lexer *l, const char *text, size_t length);
void lex_next(struct lexer *l);
/* The line of the text that it has come to, from 1 on. */
u32 lex_line(const struct lexer *l);
/* Passes over the rest of a { } block whose `{` was the token before: its `}` is the current token then. */
void lex_skip_block(struct lexer *l);
const char *intern(const char *s, size_t length);

/* Memory that lives as long as the program: modules are never unloaded. Zeroed; never returns NULL. */
void *keep(size_t bytes);

#endif
