#include "launcher.h"

#include "../../common/harness/error.h"

// The variables of each launcher: rank, ranks, number on this machine, ranks on this machine.
static const struct launcher {
    const char *rank, *ranks, *local_rank, *local_ranks;
} launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, // torchrun, tools/ranks.sh
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},                                 // Open MPI's mpirun
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, // MPICH's
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

// A whole number from the environment, `otherwise` where it is not set.
static int number(const char *name, int least, int most, int otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text) return otherwise;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most)
        die_input("%s: found '%s', expected a whole number from %d to %d", name, text, least, most);
    return (int)value;
}

struct launch launch_read(void)
{
    enum { MOST = 65536, PORT = 29500 };
    struct launch launch = {.ranks = 1};
    int local_ranks = 1;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const struct launcher *l = &launchers[i];
        if (!getenv(l->rank)) continue;
        launch.ranks = number(l->ranks, 1, MOST, 0);
        if (launch.ranks == 0) die_input("%s is set, and %s is not", l->rank, l->ranks);
        launch.rank = number(l->rank, 0, launch.ranks - 1, 0);
        local_ranks = number(l->local_ranks, 1, MOST, launch.ranks);
        launch.local_rank = number(l->local_rank, 0, MOST, launch.rank % local_ranks);
        break;
    }
    launch.address = getenv("MASTER_ADDR");
    if (!launch.address && (local_ranks < launch.ranks || number("SLURM_NNODES", 1, MOST, 1) > 1))
        die_input(
            "MASTER_ADDR is not set, expected the machine of rank 0, such as the first of: scontrol show "
            "hostnames");
    if (!launch.address) launch.address = "127.0.0.1";
    launch.port = number("MASTER_PORT", 1, 65534, PORT);
    // Then torchrun itself listens at that port.
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (store && strcmp(store, "True") == 0) launch.port++;
    return launch;
}
