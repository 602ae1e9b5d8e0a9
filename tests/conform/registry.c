#include "registry.h"

#include <stdio.h>
#include <stdlib.h>

/* CONFORM_GROUPS, of the build: GROUP(boundary) GROUP(pool) ... */
#define GROUP(name) void name##_tests(h_suite *suite);
CONFORM_GROUPS
#undef GROUP

static conform_case *cases;
static int num_cases, room;
static const char *group;

void h_add(h_suite *suite, const h_tests *tests)
{
    (void)suite;
    if (tests->ours)
        return;
    for (int i = 0; i < tests->count; i++) {
        if (num_cases == room) {
            room = room ? 2 * room : 1024;
            cases = realloc(cases, (size_t)room * sizeof(*cases));
            if (!cases)
                abort();
        }
        cases[num_cases++] = (conform_case){.group = group,
                                            .name = tests->name,
                                            .extension = tests->extension,
                                            .test = tests->test,
                                            .index = i,
                                            .timeout = tests->timeout ? tests->timeout : H_TIMEOUT,
                                            .once = tests->count == 1};
    }
}

const conform_case *conform_cases(int *count)
{
    static const struct {
        const char *name;
        void (*list)(h_suite *suite);
    } groups[] = {
#define GROUP(name) {#name, name##_tests},
        CONFORM_GROUPS
#undef GROUP
    };
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        group = groups[i].name;
        groups[i].list(NULL);
    }
    *count = num_cases;
    return cases;
}

void conform_title(const conform_case *c, char *text, size_t size)
{
    if (c->once)
        snprintf(text, size, "%s/%s", c->group, c->name);
    else
        snprintf(text, size, "%s/%s/%d", c->group, c->name, c->index);
}
