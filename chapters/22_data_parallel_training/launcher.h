// What the program that started this process says of the group: torchrun, tools/ranks.sh and others by RANK, mpirun and srun by
// variables of their own.
#pragma once

struct launch {
    int rank, ranks; // this process's number, from 0 on, and how many there are
    int local_rank;  // its number on this machine
    const char *address;
    int port; // where rank 0 listens: MASTER_ADDR and MASTER_PORT
};

// A process that nobody has numbered is the only one. Exits with a line that names the variable if one is missing or no number.
struct launch launch_read(void);
