#define _GNU_SOURCE
#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_SKIPPED = 77, EXIT_HAS = 10, EXIT_HAS_NOT = 11, MAX_JOBS = 64 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One line of printable text. */
static void set_why(char *why, size_t size, const char *text)
{
    size_t n = 0;
    for (; *text && n + 1 < size; text++)
        if (*text != '\r' && !(*text == '\n' && (n == 0 || !text[1])))
            why[n++] = (unsigned char)*text < ' ' ? ' ' : *text;
    why[n] = 0;
}

/* ---- in the child ----------------------------------------------------------------------------------------------- */

/* Runs one test in this process; what it has to say goes to fd. */
static int run_test(const conform_case *c, int fd)
{
    Suite *suite = suite_create(c->group);
    TCase *tcase = tcase_create(c->name);
    tcase_add_loop_test(tcase, c->test, c->index, c->index + 1);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    if (failed) {
        TestResult **failures = srunner_failures(runner);
        dprintf(fd, "%s (%s:%d)", tr_msg(failures[0]), tr_lfile(failures[0]), tr_lno(failures[0]));
        free(failures);
    }
    srunner_free(runner);
    if (!failed && h_had_no_family())
        h_skip("it is about families that the plugin does not have");
    return failed ? EXIT_FAILED : 0;
}

void h_skip(const char *why)
{
    printf("%s", why);
    fflush(stdout);
    _exit(EXIT_SKIPPED);
}

/* Cases of `chosen` from i to end - 1; a byte to `passes` for each that passed, and the end with the first that did not.
 * stdout and stderr of the test go to the parent too: a plugin that prints, or the C library's last words. */
static _Noreturn void be_child(const conform_run *run, int i, int end, int fd, int passes)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* the judge may be killed */
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    for (; i < end; i++) {
        int rc = run_test(&run->cases[run->chosen[i]], fd);
        if (rc || write(passes, "", 1) != 1)
            _exit(rc ? rc : EXIT_FAILED);
    }
    _exit(0);
}

/* ---- in the parent ---------------------------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int fd, passes; /* read ends; -1 = closed */
    int i, end;     /* of chosen: the case at work, and where its batch ends */
    double begun, limit;
    bool killed;
    char said[sizeof(((conform_result *)0)->why)];
    size_t length;
} child;

/* The case at c->i is at work from now on. What was said stays: it may be this case's, read before the pass of the one before. */
static void begin_case(const conform_run *run, child *c)
{
    c->begun = now();
    c->limit = run->timeout ? run->timeout : run->cases[run->chosen[c->i]].timeout;
}

static void start(const conform_run *run, child *c, int i, int end)
{
    int said[2], passes[2];
    *c = (child){.fd = -1, .passes = -1, .i = i, .end = end};
    begin_case(run, c);
    fflush(NULL);
    if (pipe2(said, O_CLOEXEC))
        return;
    if (pipe2(passes, O_CLOEXEC)) {
        close(said[0]);
        close(said[1]);
        return;
    }
    c->pid = fork();
    if (c->pid == 0)
        be_child(run, i, end, said[1], passes[1]);
    close(said[1]);
    close(passes[1]);
    c->fd = said[0];
    c->passes = passes[0];
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    fcntl(c->passes, F_SETFL, O_NONBLOCK);
}

/* Where the batch ends that begins at i. The cases of `boundary` are about the process: each has one of its own. */
static int batch_end(const conform_run *run, int i)
{
    const conform_case *first = &run->cases[run->chosen[i]];
    int end = i + 1;
    while (end < run->count && end - i < run->batch && strcmp(first->group, "boundary") != 0 &&
           run->cases[run->chosen[end]].test == first->test)
        end++;
    return end;
}

/* What the child said, its beginning kept. Closes at the end of file. */
static void listen_to(child *c)
{
    char text[1024];
    ssize_t n;
    while (c->fd >= 0 && (n = read(c->fd, text, sizeof(text))) != 0) {
        if (n < 0)
            return; /* nothing now */
        size_t keep = sizeof(c->said) - 1 - c->length;
        keep = (size_t)n < keep ? (size_t)n : keep;
        memcpy(c->said + c->length, text, keep);
        c->length += keep;
        c->said[c->length] = 0;
    }
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static void finish(const conform_run *run, int i, conform_result *results)
{
    run->done(run->user, i, &results[i]);
}

/* Cases that passed since the last look. */
static void count_passes(const conform_run *run, child *c, conform_result *results)
{
    char passed;
    while (c->passes >= 0 && c->i < c->end && read(c->passes, &passed, 1) == 1) {
        results[c->i] = (conform_result){.outcome = CONFORM_PASSED, .seconds = now() - c->begun};
        finish(run, c->i++, results);
        if (c->i < c->end)
            begin_case(run, c);
    }
}

static void judge(child *c, int status, conform_result *result)
{
    char text[sizeof(result->why)];
    *result = (conform_result){.outcome = CONFORM_FAILED, .seconds = now() - c->begun};
    if (c->killed)
        snprintf(text, sizeof(text), "did not end within %g s", c->limit);
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof(text), "killed by signal %d (%s). %.900s", WTERMSIG(status), strsignal(WTERMSIG(status)),
                 c->said);
    else if (WEXITSTATUS(status) == EXIT_SKIPPED)
        result->outcome = CONFORM_SKIPPED;
    else if (WEXITSTATUS(status) == 0)
        snprintf(text, sizeof(text), "something in it called exit(0). %.900s", c->said);
    else
        snprintf(text, sizeof(text), "%s", c->said);
    set_why(result->why, sizeof(result->why), result->outcome == CONFORM_SKIPPED ? c->said : text);
}

/* The child of a batch has ended; of the case at work, if any, this is the result. */
static void bury(const conform_run *run, child *c, bool known, int status, conform_result *results)
{
    if (c->pid > 0)
        kill(-c->pid, SIGKILL); /* what the test left running */
    count_passes(run, c, results);
    listen_to(c);
    if (c->fd >= 0)
        close(c->fd);
    if (c->passes >= 0)
        close(c->passes);
    if (c->i == c->end)
        return;
    if (known)
        judge(c, status, &results[c->i]);
    else
        results[c->i] = (conform_result){.outcome = CONFORM_FAILED, .why = "the judge could not start a child"};
    finish(run, c->i++, results);
}

/* One child that has ended, if any; its place in children, or -1. */
static int reap(const conform_run *run, child *children, int running, conform_result *results)
{
    for (int k = 0; k < running; k++) {
        child *c = &children[k];
        int status = 0;
        listen_to(c);
        count_passes(run, c, results);
        if (c->pid > 0 && !c->killed && now() - c->begun > c->limit) {
            kill(-c->pid, SIGKILL);
            kill(c->pid, SIGKILL);
            c->killed = true;
        }
        pid_t ended = c->pid > 0 ? waitpid(c->pid, &status, WNOHANG) : -1;
        if (ended == 0)
            continue;
        bury(run, c, ended > 0, status, results);
        return k;
    }
    return -1;
}

/* Until one of them says something or ends. */
static void wait_a_little(const child *children, int running)
{
    struct pollfd fds[2 * MAX_JOBS];
    for (int k = 0; k < running; k++) {
        fds[2 * k] = (struct pollfd){.fd = children[k].fd, .events = POLLIN};
        fds[2 * k + 1] = (struct pollfd){.fd = children[k].passes, .events = POLLIN};
    }
    poll(fds, 2 * (nfds_t)running, 20);
    bool all_closed = true;
    for (int k = 0; k < running; k++)
        all_closed = all_closed && (fds[2 * k].revents & POLLHUP);
    if (all_closed)
        usleep(500);
}

static void run_here(const conform_run *run, conform_result *results)
{
    for (int i = 0; i < run->count; i++) {
        results[i] = (conform_result){.outcome = CONFORM_PASSED};
        if (run_test(&run->cases[run->chosen[i]], STDERR_FILENO))
            results[i].outcome = CONFORM_FAILED;
        finish(run, i, results);
    }
}

void conform_run_all(const conform_run *run, conform_result *results)
{
    child children[MAX_JOBS];
    int jobs = run->jobs < 1 ? 1 : run->jobs > MAX_JOBS ? MAX_JOBS : run->jobs;
    int running = 0, next = 0;
    if (run->no_fork) {
        run_here(run, results);
        return;
    }
    while (running > 0 || next < run->count) {
        while (running < jobs && next < run->count) {
            int end = batch_end(run, next);
            start(run, &children[running++], next, end);
            next = end;
        }
        int k = reap(run, children, running, results);
        if (k < 0)
            wait_a_little(children, running);
        else if (children[k].i < children[k].end) /* what was left of its batch */
            start(run, &children[k], children[k].i, children[k].end);
        else
            children[k] = children[--running];
    }
}

int conform_has_extension(const char *id, char *why, size_t size)
{
    child c = {.limit = 20, .begun = now(), .fd = -1, .passes = -1};
    int ends[2], status = 0;
    why[0] = 0;
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    c.pid = fork();
    if (c.pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit(h_api()->get_extension(id) ? EXIT_HAS : EXIT_HAS_NOT);
    }
    close(ends[1]);
    c.fd = ends[0];
    fcntl(c.fd, F_SETFL, O_NONBLOCK);
    while (waitpid(c.pid, &status, WNOHANG) == 0) {
        listen_to(&c);
        if (now() - c.begun > c.limit)
            kill(c.pid, SIGKILL);
        usleep(1000);
    }
    listen_to(&c);
    if (c.fd >= 0)
        close(c.fd);
    set_why(why, size, c.said);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == EXIT_HAS || WEXITSTATUS(status) == EXIT_HAS_NOT))
        return WEXITSTATUS(status) == EXIT_HAS;
    if (!why[0])
        snprintf(why, size, WIFSIGNALED(status) ? "loading it ended with signal %d" : "loading it failed (%d)",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return -1;
}
