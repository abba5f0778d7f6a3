// The trainer's command line.
#pragma once

#include "parallel.h"
#include "settings.h"

struct options {
    struct settings settings;
    const char *program, *command; // as it was called: its name, all of it
    char **files;                  // of text
    int file_count;
    const char *validation_file, *tokenizer, *init, *resume, *check, *save, *json, *record, *algorithms;
    double validation; // share of the text
    int validate_every, save_every, sample, profile;
    float temperature;
    const struct named_step *step;
};

// Reads it, or prints help and exits; exits with a line that says what was found and what was expected. Where --resume says so, the
// settings are those of the checkpoint, which then is loaded into *checkpoint, but for flags that say otherwise.
struct checkpoint;
struct options options_read(int argc, char **argv, struct checkpoint *checkpoint);
