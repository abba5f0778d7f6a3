// What is read: text as tokens, and batches of it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../common/harness/error.h"

// Tokens of several files, one behind the other. A file is llm.c's token file (2-byte tokens behind a header), or any other: then
// each of its bytes is a token, and between two files there is a 0. All must be of one kind.
struct text {
    uint16_t *token;
    size_t count, training; // the first `training` tokens are trained on, the others validate
    int vocabulary;         // 256, or GPT-2's 50257
    int separator;          // the token between documents, which a sample begins with
};

// Reads the files; the last `validation` of it (0 to below 1), or a whole file of its own (NULL: none) is kept for validation.
// Returns false with the reason in *error: a file that cannot be read, of another kind, or shorter than its header says.
bool text_load(char *const *files, int count, const char *validation_file, double validation,
               struct text *text, struct error *error);
void text_free(struct text *text);

// Which windows of a batch are asked for: `count` from number `first` on, of `batch`, `length` tokens each.
struct windows {
    int batch, first, count, length;
};

// Those of batch number `step` (from 0), from places that seed and step alone decide, and the token behind each token. There are more
// than `length` tokens to train on.
void text_batch(const struct text *text, uint64_t seed, int step, struct windows windows, int *tokens,
                int *targets);

// The number of batches that the validation tokens have, and windows of number i of them: neighbours, none twice.
int text_validation_batches(const struct text *text, int batch, int length);
void text_validation_batch(const struct text *text, int i, struct windows windows, int *tokens, int *targets);

// The number with this index in the stream of random 64-bit numbers that `seed` begins: Steele, Lea and Flood, SplitMix (2014).
uint64_t random_bits(uint64_t seed, uint64_t index);

// What a token says: llm.c's tokenizer file (NULL: a byte each).
struct vocabulary {
    int count;
    char **piece;
    unsigned char *length;
};
bool vocabulary_load(const char *path, struct vocabulary *vocabulary, struct error *error);

// Prints a token's bytes, of the text's vocabulary or, NULL, the byte that it is. A character of UTF-8 is printed once it is whole, a byte
// that is of none as \xHH, and control characters as dots. print_rest: at the end, the bytes of a character that is not whole.
void vocabulary_print(const struct vocabulary *vocabulary, int token);
void print_rest(void);
