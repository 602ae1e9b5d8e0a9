/* What the judge knows of its cases. The cases themselves are the tests of tests/unit that need nothing but the public
 * ABI; they register here instead of with a runner of Check (unit/harness.h, h_add). */
#ifndef RSSM_TESTS_CONFORM_REGISTRY_H_
#define RSSM_TESTS_CONFORM_REGISTRY_H_

#include "../unit/harness.h"

typedef struct conform_case {
    const char *group;     /* "validate" */
    const char *name;      /* "each role x each defect" */
    const char *extension; /* id that the plugin must have, or the case is skipped; NULL */
    const TTest *test;
    int index;   /* of the loop test */
    int timeout; /* seconds */
    bool once;   /* the only one of its name */
} conform_case;

/* All cases in a fixed order; to be called once. */
const conform_case *conform_cases(int *count);

/* "validate/each role x each defect/17" */
void conform_title(const conform_case *c, char *text, size_t size);

#endif
