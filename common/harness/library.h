// Functions of a baseline's library, which is opened when it is asked for.
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

// Finds a function of the library (of dlopen), which becomes *function, of any pointer type; dlsym's object pointer becomes a
// function pointer as POSIX prescribes. Returns false, after a line on stderr that names library and function, if it is not there.
static inline bool library_find(void *library, const char *name, void *function)
{
    *(void **)function = dlsym(library, name);
    if (!*(void **)function) fprintf(stderr, "%s\n", dlerror());
    return *(void **)function != NULL;
}
