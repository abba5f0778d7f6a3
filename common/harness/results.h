// Measured results as JSON: an array with one record a line, so that a record is found again by its beginning.
#pragma once

#include "error.h"

enum { RESULTS_MAX = 1024 };

// Records gathered during a run; a record's first `key_length` characters say what it is about.
struct results {
    int count;
    char *record[RESULTS_MAX];
    size_t key_length[RESULTS_MAX];
};

// Writes the members that say what a record is about: `operation` is NULL in a chapter of one; `what` is a case or a shape.
void results_key(char *key, size_t size, const char *chapter, const char *operation, const char *step,
                 const char *what, const char *dtype, const char *metric);

// Adds the record {KEY, VALUE}: two lists of JSON members, both copied. Exits when there are more than RESULTS_MAX.
void results_add(struct results *results, const char *key, const char *value);

// `text` as a JSON string, quotes included; returns out.
char *results_quote(const char *text, char *out, size_t size);

// Replaces in file `path` the records of the same key, adds the others, and keeps what else is there. The file is
// replaced at once or not at all; without records nothing is done. Returns true, or false with the reason in *error (cannot be written; holds
// something that this program did not write). Frees the records.
bool results_merge(struct results *results, const char *path, struct error *error);
