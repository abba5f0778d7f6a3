#define _GNU_SOURCE
#include "rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../common/harness/error.h"

enum {
    TIMEOUT = 120,  // seconds until all must have come, unless COOKBOOK_TIMEOUT says otherwise
    RETRY_MS = 100, // between two attempts to reach rank 0
    ANSWER_S = 3,   // that a connection may take for a message
    SILENCE_S = 6,  // after which a process counts as gone
    ABANDON_S = 2,  // that abandon() may take
    LEAVE_S = 10,   // that a process which is done waits for the others to be
};
static const char MAGIC[8] = "KCDDP-1";

enum kind {
    HELLO,   // to rank 0: here is a rank; text: its process and machine
    WELCOME, // from rank 0: all are here; the token; text: rank 0's process and machine
    REFUSED, // from rank 0: text says why
    ALIVE,
    LOST, // from rank 0: text says who, and how
    DONE,
};

struct message {
    char magic[8];
    int kind, rank, ranks;
    struct token token;
    char text[200];
};

struct peer {
    int socket; // -1: none
    bool done;
    double heard; // when, in seconds
    char name[200];
};

static struct {
    struct launch launch;
    struct peer *peer; // rank 0: [rank] of each other; the others: [0]
    int peers;         // length of that
    void (*abandon)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t speaking; // nothing follows DONE
    atomic_bool watching, leaving, ending;
} group = {.speaking = PTHREAD_MUTEX_INITIALIZER};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double timeout(void)
{
    const char *text = getenv("COOKBOOK_TIMEOUT");
    const double value = text ? atof(text) : TIMEOUT;
    if (!(value > 0)) die_input("COOKBOOK_TIMEOUT: found '%s', expected seconds", text);
    return value;
}

// --- Messages ---------------------------------------------------------------------------------------------------------

static bool say(int socket, enum kind kind, const struct token *token, const char *text)
{
    struct message m = {.kind = kind, .rank = group.launch.rank, .ranks = group.launch.ranks};
    memcpy(m.magic, MAGIC, sizeof MAGIC);
    if (token) m.token = *token;
    snprintf(m.text, sizeof m.text, "%s", text ? text : "");
    return send(socket, &m, sizeof m, MSG_NOSIGNAL) == sizeof m;
}

// The next message; false if the connection has ended, takes too long or speaks another language.
static bool hear(int socket, struct message *m)
{
    const bool whole = recv(socket, m, sizeof *m, MSG_WAITALL) == sizeof *m;
    m->text[sizeof m->text - 1] = 0;
    return whole && memcmp(m->magic, MAGIC, sizeof MAGIC) == 0;
}

static void set_patience(int socket, double patience)
{
    const struct timeval t = {.tv_sec = (time_t)patience, .tv_usec = (long)(patience * 1e6) % 1000000};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static const char *own_name(char *text, size_t size)
{
    char machine[100] = "?";
    gethostname(machine, sizeof machine - 1);
    snprintf(text, size, "process %d on %s", (int)getpid(), machine);
    return text;
}

// --- The meeting ------------------------------------------------------------------------------------------------------

static struct addrinfo *look_up(const struct launch *l, bool to_listen)
{
    char port[16];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    struct addrinfo *found;
    snprintf(port, sizeof port, "%d", l->port);
    const int error = getaddrinfo(l->address, port, &hints, &found);
    if (error) die_input("MASTER_ADDR: %s: %s", l->address, gai_strerror(error));
    return found;
}

// At every address of this machine, unless the group stays on it.
static int open_door(const struct launch *l)
{
    struct addrinfo *where = look_up(l, true);
    const int door = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    if (where->ai_family == AF_INET) {
        struct sockaddr_in *address = (struct sockaddr_in *)where->ai_addr;
        if (ntohl(address->sin_addr.s_addr) >> 24 != 127) address->sin_addr.s_addr = htonl(INADDR_ANY);
    } else
        ((struct sockaddr_in6 *)where->ai_addr)->sin6_addr = in6addr_any;
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (door < 0 || bind(door, where->ai_addr, where->ai_addrlen) != 0 || listen(door, l->ranks) != 0)
        die_input("rank 0 cannot listen at port %d (MASTER_PORT): %s", l->port, strerror(errno));
    freeaddrinfo(where);
    return door;
}

static void tell_all(enum kind kind, const struct token *token, const char *text)
{
    for (int r = 0; r < group.peers; r++)
        if (group.peer[r].socket >= 0) say(group.peer[r].socket, kind, token, text);
}

// Rank 0 gives up: tells those who are there why.
static __attribute__((format(printf, 1, 2), noreturn)) void refuse_all(const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tell_all(REFUSED, NULL, text);
    die_input("%s", text);
}

// Someone has come. Who is none of us is sent away.
static bool admit(int socket, struct peer *peer)
{
    struct message m;
    char text[200];
    set_patience(socket, ANSWER_S);
    if (!hear(socket, &m) || m.kind != HELLO) {
        close(socket);
        return false;
    }
    const int ranks = group.launch.ranks;
    if (m.ranks != ranks || m.rank < 1 || m.rank >= ranks)
        snprintf(text, sizeof text, "rank %d says that there are %d ranks, and rank 0 that there are %d",
                 m.rank, m.ranks, ranks);
    else if (peer[m.rank].socket >= 0)
        snprintf(text, sizeof text, "two processes say that they are rank %d", m.rank);
    else {
        peer[m.rank].socket = socket;
        memcpy(peer[m.rank].name, m.text, sizeof m.text);
        return true;
    }
    say(socket, REFUSED, NULL, text);
    refuse_all("%s", text);
}

static void receive_all(const struct token *token)
{
    const struct launch *l = &group.launch;
    const double until = seconds() + timeout();
    const int door = open_door(l);
    char name[200];
    for (int missing = l->ranks - 1; missing > 0;) {
        struct pollfd polled[1 + l->ranks];
        for (int r = 0; r < l->ranks; r++)
            polled[r] = (struct pollfd){.fd = r ? group.peer[r].socket : door, .events = POLLIN};
        const double left = until - seconds();
        if (left <= 0) {
            int r = 1;
            while (group.peer[r].socket >= 0) r++;
            refuse_all(
                "rank 0 waited at %s:%d for %.0f s (COOKBOOK_TIMEOUT): %d of %d ranks have not come, the "
                "first is rank %d",
                l->address, l->port, timeout(), missing, l->ranks, r);
        }
        poll(polled, (nfds_t)l->ranks, (int)(left * 1000) + 1);
        for (int r = 1; r < l->ranks; r++) // None says anything before it has been welcomed.
            if (polled[r].fd >= 0 && polled[r].revents)
                refuse_all("rank %d (%s) has ended before all were there", r, group.peer[r].name);
        if (!polled[0].revents) continue;
        const int socket = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0) missing -= admit(socket, group.peer);
    }
    close(door);
    tell_all(WELCOME, token, own_name(name, sizeof name));
}

static int reach(const struct launch *l, double until)
{
    struct addrinfo *where = look_up(l, false);
    for (;;) {
        const int s = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        set_patience(s, ANSWER_S);
        if (connect(s, where->ai_addr, where->ai_addrlen) == 0) {
            freeaddrinfo(where);
            return s;
        }
        if (seconds() > until)
            die_input("rank %d waited for rank 0 at %s:%d for %.0f s (COOKBOOK_TIMEOUT): %s", l->rank,
                      l->address, l->port, timeout(), strerror(errno));
        close(s);
        usleep(RETRY_MS * 1000);
    }
}

static void go_to_rank_0(struct token *token)
{
    const struct launch *l = &group.launch;
    const double until = seconds() + timeout();
    struct message m;
    char name[200];
    const int s = reach(l, until);
    say(s, HELLO, NULL, own_name(name, sizeof name));
    set_patience(s, until - seconds() + ANSWER_S); // Rank 0 gives up first, and says why.
    if (!hear(s, &m))
        die_input("rank %d: who listens at %s:%d is not rank 0 of this group, or has ended", l->rank,
                  l->address, l->port);
    if (m.kind != WELCOME) die_input("rank %d is sent away: %s", l->rank, m.text);
    set_patience(s, ANSWER_S);
    *token = m.token;
    group.peer[0].socket = s;
    memcpy(group.peer[0].name, m.text, sizeof m.text);
}

void rendezvous_meet(const struct launch *launch, struct token *token)
{
    group.launch = *launch;
    group.peers = launch->rank == 0 ? launch->ranks : 1;
    group.peer = calloc((size_t)group.peers, sizeof *group.peer);
    if (!group.peer) die_input("no memory for %d ranks", launch->ranks);
    for (int r = 0; r < group.peers; r++) group.peer[r].socket = -1;
    if (launch->rank == 0)
        receive_all(token);
    else
        go_to_rank_0(token);
}

// --- The watch --------------------------------------------------------------------------------------------------------

static void end_now(int signal)
{
    (void)signal;
    _exit(EXIT_CUDA);
}

// A connection that is closed with something unread in it takes what it has sent along: who, to the others.
static void wait_for_their_end(void)
{
    char unread[1024];
    for (int r = 0; r < group.peers; r++)
        if (group.peer[r].socket >= 0)
            while (recv(group.peer[r].socket, unread, sizeof unread, 0) > 0) {
            }
}

// Ends this process, since another has.
static _Noreturn void lost(const char *who)
{
    fprintf(stderr, "%s: rank %d of %d ends too\n", who, group.launch.rank, group.launch.ranks);
    group.ending = true;
    signal(SIGALRM, end_now);
    alarm(ABANDON_S); // What is waited for from here on may never come.
    if (group.launch.rank == 0) tell_all(LOST, NULL, who);
    group.abandon(group.context);
    if (group.launch.rank == 0) wait_for_their_end();
    _exit(EXIT_CUDA);
}

static void listen_to(int r)
{
    struct peer *peer = &group.peer[r];
    struct message m;
    char who[400];
    if (hear(peer->socket, &m)) {
        peer->heard = seconds();
        if (m.kind == LOST) lost(m.text);
        if (m.kind == DONE) peer->done = true;
        return;
    }
    close(peer->socket);
    peer->socket = -1;
    if (peer->done) return;
    snprintf(who, sizeof who, "rank %d (%s) has ended", r, peer->name);
    lost(who);
}

static bool all_done(void)
{
    for (int r = 0; r < group.peers; r++)
        if (group.peer[r].socket >= 0 && !group.peer[r].done) return false;
    return true;
}

static void *watch(void *unused)
{
    (void)unused;
    double said = 0, left = 0;
    char who[400];
    // Each side's last message is DONE, and each waits for the other's: see wait_for_their_end.
    while (!group.leaving || (!all_done() && seconds() < left)) {
        struct pollfd polled[group.peers];
        if (!group.leaving) left = seconds() + LEAVE_S;
        for (int r = 0; r < group.peers; r++)
            polled[r] = (struct pollfd){.fd = group.peer[r].socket, .events = POLLIN};
        poll(polled, (nfds_t)group.peers, 100);
        for (int r = 0; r < group.peers; r++)
            if (polled[r].fd >= 0 && polled[r].revents) listen_to(r);
        if (seconds() - said < 1) continue;
        said = seconds();
        pthread_mutex_lock(&group.speaking);
        if (!group.leaving) tell_all(ALIVE, NULL, NULL);
        pthread_mutex_unlock(&group.speaking);
        for (int r = 0; r < group.peers; r++) {
            if (group.peer[r].socket < 0 || group.peer[r].done || said - group.peer[r].heard < SILENCE_S)
                continue;
            snprintf(who, sizeof who, "rank %d (%s) has been silent for %d s", r, group.peer[r].name,
                     SILENCE_S);
            lost(who);
        }
    }
    return NULL;
}

void rendezvous_watch(void (*abandon)(void *context), void *context)
{
    group.abandon = abandon;
    group.context = context;
    for (int r = 0; r < group.peers; r++) group.peer[r].heard = seconds();
    if (pthread_create(&group.thread, NULL, watch, NULL) != 0)
        die_input("no thread to watch the other ranks");
    group.watching = true;
}

void rendezvous_check(void)
{
    while (group.ending) pause();
}

void rendezvous_leave(void)
{
    if (!group.watching) return;
    group.leaving = true;
    pthread_mutex_lock(&group.speaking);
    tell_all(DONE, NULL, NULL);
    pthread_mutex_unlock(&group.speaking);
    pthread_join(group.thread, NULL);
    group.watching = false;
}
