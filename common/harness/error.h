// Exit statuses, and errors that say what was found and what was expected, in one line on stderr.
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

enum exit_status {
    EXIT_RIGHT = 0,     // every step gave the right answer
    EXIT_WRONG = 1,     // a step gave a wrong answer
    EXIT_BAD_INPUT = 2, // bad usage or a bad file
    EXIT_CUDA = 3,      // CUDA or device trouble
};

// What a library function that can fail writes its one-line reason into.
struct error {
    char text[512];
};

// Writes the reason and returns false, so that a function can `return error_set(error, ...)`.
static inline __attribute__((format(printf, 2, 3))) bool error_set(struct error *error, const char *format,
                                                                   ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof error->text, format, args);
    va_end(args);
    return false;
}

// Prints one line and exits with EXIT_BAD_INPUT.
static inline __attribute__((format(printf, 1, 2), noreturn)) void die_input(const char *format, ...)
{
    va_list args;
    fflush(stdout);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(EXIT_BAD_INPUT);
}

// Prints the call, the error's name and the place, and exits with EXIT_CUDA; does nothing on success.
static inline void cuda_check(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess) return;
    fflush(stdout);
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, cudaGetErrorName(error),
            cudaGetErrorString(error));
    exit(EXIT_CUDA);
}

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
