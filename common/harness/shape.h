// Dimensions by name, and whole-number expressions over them: "m", "3*c", "(k+127)/128", "2*m*n*k".
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "error.h"

enum { SHAPE_MAX_DIMS = 16 };

// Reads "m=64,n=32,k=8" into dim[], in the order of names[] (ended by NULL). Every name must come exactly once with
// a value from smallest[] (NULL: 1) to 2^31-1. Returns true, or false with the reason in *error.
bool shape_read(const char *text, const char *const *names, const int *smallest, int64_t *dim,
                struct error *error);

// "m=64,n=32,k=8"; returns text.
char *shape_write(const char *const *names, const int64_t *dim, char *text, size_t size);

// Index in names[] of the name that stands at text[0..length), or -1.
int shape_find(const char *const *names, const char *text, size_t length);

// Value of an expression: numbers, names, + - * / (rounding down) and parentheses; it ends at ',' or the end of
// text. Returns where it ended, or NULL with the reason in *error (a syntax error, an unknown name, an overflow).
const char *shape_evaluate(const char *text, const char *const *names, const int64_t *dim, int64_t *value,
                           struct error *error);
