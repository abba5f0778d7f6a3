// Measured results as JSON: an array with one record a line, so that a record is found again by its beginning.
#pragma once

#include "error.h"

enum { RESULTS_MAX = 256 };

// Records gathered during a run; a record's first `key_length` characters say what it is about.
struct results {
    int count;
    char *record[RESULTS_MAX];
    size_t key_length[RESULTS_MAX];
};

// Adds the record {KEY, VALUE}: two lists of JSON members, both copied. Exits when there are more than RESULTS_MAX.
void results_add(struct results *results, const char *key, const char *value);

// `text` as a JSON string, quotes included; returns out.
char *results_quote(const char *text, char *out, size_t size);

// Replaces in file `path` the records of the same key, adds the others, and keeps what else is there. The file is
// replaced at once or not at all. Returns true, or false with the reason in *error (cannot be written; holds
// something that this program did not write). Frees the records.
bool results_merge(struct results *results, const char *path, struct error *error);
